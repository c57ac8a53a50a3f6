"""The texts of a deployment's files; @WORDS@ are filled in by `project`."""

from __future__ import annotations

PYPROJECT = """\
# A Flower app that runs @METHOD@ with FedKeep. FedKeep itself is installed on every machine:
#     pip install "fedkeep[flower]"
# so the app is a thin shim and has no dependencies of its own.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedkeep-app"
version = "1.0.0"
description = "FedKeep over a network"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedkeep"

[tool.flwr.app.components]
serverapp = "fedkeep_app.server:app"
clientapp = "fedkeep_app.client:app"

# The experiment (`fedkeep run --help` explains each option) and the deployment (`fedkeep deploy init --help`).
# One of them for one run:  ./run.sh -c 'rounds=5'
[tool.flwr.app.config]
@CONFIG@"""

CLIENT_APP = '''"""The client's side."""

from fedkeep.deploy.client import app

__all__ = ["app"]
'''

SERVER_APP = '''"""The server's side."""

from fedkeep.deploy.serve import app

__all__ = ["app"]
'''

ENVIRONMENT = """\
# Read by the scripts beside it.
export FLWR_HOME="$PWD/flower"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# Flower would install the app's dependencies at run time; FedKeep is installed already.
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export PYTHONUNBUFFERED=1
mkdir -p "$FLWR_HOME"
"""

CONNECTION = """\
HOST="${HOST:-127.0.0.1}" PORT="${PORT:-@PORT@}"
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "fedkeep"

[superlink.fedkeep]
address = "$HOST:$PORT"
@SECURITY@
END
"""

SUPERLINK = """\
#!/bin/sh
# The SuperLink passes messages between the server app and the nodes. It listens on this machine only: its port also
# serves Flower's control API, which has no login. Let nodes in through a reverse proxy, see nginx.conf.
set -eu
cd "$(dirname "$0")"
. ./environment
exec flower-superlink --host "${HOST:-127.0.0.1}" --port "${PORT:-@PORT@}" @SECURITY@ \\
    --isolation process --superexec-auth-secret-file secret \\
    --database state.db --disable-runtime-dependency-installation
"""

SUPEREXEC = """\
#!/bin/sh
# Starts the server app of each run, in a process of its own: it survives a restart of the SuperLink.
set -eu
cd "$(dirname "$0")"
. ./environment
exec flower-superexec --runtime-api-address "${HOST:-127.0.0.1}:${PORT:-@PORT@}" @SECURITY@ \\
    --superexec-auth-secret-file secret
"""

REGISTER = """\
#!/bin/sh
# Let the nodes whose public keys are in nodes/ take part, under the names of their files. Once is enough.
set -eu
cd "$(dirname "$0")"
. ./environment
. ./connection
for key in nodes/*.pub; do
    name="$(basename "$key" .pub)"
    flwr supernode register "$key" fedkeep --name "$name"
done
"""

RUN = """\
#!/bin/sh
# Start the federation, or go on with it: a run that was stopped goes on from its last finished round.
# Options of the experiment can follow, e.g.  ./run.sh -c 'rounds=5'
set -eu
cd "$(dirname "$0")"
. ./environment
. ./connection
exec flwr run app fedkeep --stream "$@"
"""

SUPERNODE = """\
#!/bin/sh
# The node of @NAME@. What it keeps between rounds is in store/, its examples stay where they are.
set -eu
cd "$(dirname "$0")"
. ./environment
exec flower-supernode --superlink "${SUPERLINK:-@ADDRESS@}" @SECURITY@ \\
    --host 127.0.0.1 --port "${NODE_PORT:-@NODE_PORT@}" \\
    --node-config "name=\\"@NAME@\\" store=\\"${STORE:-$PWD/store}\\" ${NODE_CONFIG:-}"
"""

NGINX = """\
# Put this in front of the SuperLink: the outside reaches the fleet API and nothing else. Flower's control API
# (/v1/control/) starts runs, that is code on every node, and has no login; its runtime API (/v1/runtime/) feeds the
# server app. Both must stay on this machine.
server {
    listen @PUBLIC_PORT@ ssl;
    server_name @HOST@;

    ssl_certificate     /opt/fedkeep/superlink/certificates/server.pem;
    ssl_certificate_key /opt/fedkeep/superlink/certificates/server.key;
    ssl_protocols       TLSv1.2 TLSv1.3;

    # Flower sends tensors in pieces of 5 MB.
    client_max_body_size 16m;

    location /v1/fleet/ {
        proxy_pass https://127.0.0.1:@PORT@;
        proxy_http_version 1.1;
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate /opt/fedkeep/superlink/certificates/ca.crt;
        proxy_ssl_name localhost;
        proxy_read_timeout 120s;
    }

    location / {
        return 403;
    }
}
"""

UNIT = """\
# For this folder at /opt/fedkeep/@FOLDER@, owned by a user fedkeep, with FedKeep installed in /opt/fedkeep/venv.
# Copy this file to /etc/systemd/system, then:  systemctl enable --now @UNIT@
[Unit]
Description=@DESCRIPTION@
After=network-online.target @AFTER@
Wants=network-online.target

[Service]
User=fedkeep
WorkingDirectory=/opt/fedkeep/@FOLDER@
Environment=PATH=/opt/fedkeep/venv/bin:/usr/bin:/bin
ExecStart=/bin/sh /opt/fedkeep/@FOLDER@/@SCRIPT@
Restart=always
RestartSec=10
# A hostile reply can be large: Flower reads it before FedKeep can refuse it.
MemoryMax=@MEMORY@
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ProtectHome=true
ReadWritePaths=/opt/fedkeep/@FOLDER@ @WRITES@

[Install]
WantedBy=multi-user.target
"""

README = """\
# A federation with FedKeep and Flower

@METHOD@, @ROUNDS@ rounds, @COHORT@ of @CLIENTS@ clients in each.

What leaves a client:

@SENDS@

@SECRETS@

## The server

1. `pip install "fedkeep[flower]"` in a virtual environment that is active.
2. In the folder `superlink`: `./start-superlink.sh` and `./start-superexec.sh`, each in a terminal of its own. They
   listen on this machine only.
3. @PROXY@
4. @REGISTERED@

As services, instead of 1 and 2, as root: `useradd --system fedkeep`; make a virtual environment at /opt/fedkeep/venv
and install FedKeep in it; copy `superlink` to /opt/fedkeep/superlink; `chown -R fedkeep: /opt/fedkeep/superlink`; copy
the two `.service` files in it to /etc/systemd/system; `systemctl enable --now fedkeep-superlink fedkeep-superexec`. Run
the other scripts as that user: `sudo -u fedkeep env PATH=/opt/fedkeep/venv/bin:/usr/bin:/bin ./run.sh`.

## Each client

1. Copy `nodes/NAME` to the client's machine, by a way that keeps its key secret, and delete it here.
2. `pip install "fedkeep[flower]"`, the same version as on the server.
3. `./start-supernode.sh` in that folder, or as a service as on the server: the folder as /opt/fedkeep/NAME, with the
   `.service` file in it. @EXAMPLES@

## The run

`./run.sh` in the folder `superlink` starts it and shows its progress; the same command goes on with a run that was
stopped. Records and models are in @OUT@, as of any other run: `fedkeep report @OUT@`.
"""

SECRETS = "`superlink/certificates/server.key`, `superlink/secret` and each `nodes/NAME/node.key` are secrets."
NO_SECRETS = "There is no TLS and no authentication here: this deployment is for trials on one machine."
PROXY = """\
Put `nginx.conf` in front, so that nodes elsewhere reach the fleet API and nobody reaches the rest: copy it to
   /etc/nginx/conf.d/fedkeep.conf, then `nginx -t` and `systemctl reload nginx`. It looks for the certificates in
   /opt/fedkeep/superlink; change that if they are elsewhere. Nodes are told to connect to @ADDRESS@."""
NO_PROXY = "Nodes are told to connect to @ADDRESS@, on this machine: there is no need for a proxy."
REGISTERED = "`./register.sh` lets the nodes in whose public keys are in `superlink/nodes`. Once is enough."
NOT_REGISTERED = "There is nothing to register: without authentication every node is let in."
EXAMPLES = """\
Its examples come from `@LOAD@`, looked for in the folder the script is in; another
   place for this node: `NODE_CONFIG='load="/srv/data.py:load"' ./start-supernode.sh`."""

DATA = '''"""The examples of one client. Change this file on each client's machine; it is never sent anywhere."""

import numpy as np


def load(client_name):
    """Return (x, y): x of shape (n, @SHAPE@), y whole numbers from 0 to @LAST@."""
    data = np.load("examples.npz")
    return data["x"].astype("float32"), data["y"]
'''
