"""The files of a deployment: the Flower app, start scripts, certificates, keys, services, a proxy's config."""

from __future__ import annotations

import ipaddress
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w
import torch

from fedkeep.deploy import templates
from fedkeep.deploy.certificates import write_certificates, write_node_key, write_secret
from fedkeep.deploy.options import Options, deployed, to_run_config
from fedkeep.deploy.privacy import Privacy
from fedkeep.deploy.scene import server_scene
from fedkeep.deploy.sent import statement
from fedkeep.deploy.start import start_of
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.config import Config

PORT = 8000
NODE_PORT = 9094
RUN = "run"  # the run directory, seen from the superlink folder, so that the folder can be moved
SECURE = (
    "--ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.pem \\\n"
    "    --ssl-keyfile certificates/server.key --enable-supernode-auth"
)


@dataclass(frozen=True)
class Project:
    """A deployment about to be written; `address` is what nodes connect to, HOST:PORT."""

    config: Config
    options: Options
    address: str = f"127.0.0.1:{PORT}"
    port: int = PORT  # of the SuperLink on its own machine
    insecure: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", deployed(self.config, self.options))
        if self.insecure and not is_loopback(self.host):
            raise ConfigError(
                f"insecure with the address {self.address}: without TLS and node authentication anybody on the way can "
                "read and change models; it is allowed on this machine only (127.0.0.1)"
            )

    @property
    def host(self) -> str:
        return split_address(self.address)[0]

    @property
    def proxied(self) -> bool:
        """Whether nodes come from outside, and so through a proxy."""
        return not is_loopback(self.host)

    @property
    def names(self) -> tuple[str, ...]:
        return self.options.client_names(self.config.clients)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address.

    >>> split_address("fl.example.org:443")
    ('fl.example.org', 443)
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or any(c in host for c in " /\"'$`\\"):
        raise ConfigError(f'address "{address}": write HOST:PORT, e.g. fl.example.org:443')
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and reachable from nowhere else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def write_project(project: Project, folder: Path) -> list[str]:
    """Write everything into a new folder; every refusal comes before the first file. Gives what leaves a client."""
    scene = server_scene(project.config, replace(project.options, test=""))
    with torch.random.fork_rng(devices=[]):
        privacy = start_of(scene).privacy
    sends = statement(scene.method, project.options, project.config, privacy)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: is there already; choose a new folder, so that no key is overwritten")
    project = replace(project, options=replace(project.options, out=project.options.out or RUN))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write_superlink(project, folder / "superlink")
        for name in project.names:
            _write_node(project, folder, name)
        words = _readme_words(project, scene.cohort_size, sends, privacy)
        (folder / "README.md").write_text(_filled(templates.README, words), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from None
    return sends


def _write_superlink(project: Project, folder: Path) -> None:
    folder.mkdir(parents=True)
    app = folder / "app" / "fedkeep_app"
    app.mkdir(parents=True)
    table = to_run_config(project.config, project.options)
    words = {"METHOD": project.config.method, "CONFIG": tomli_w.dumps(table)}
    (folder / "app" / "pyproject.toml").write_text(_filled(templates.PYPROJECT, words), encoding="utf-8")
    (app / "__init__.py").write_text("")
    (app / "client.py").write_text(templates.CLIENT_APP)
    (app / "server.py").write_text(templates.SERVER_APP)
    root = "insecure = true" if project.insecure else 'root-certificates = "$PWD/certificates/ca.crt"'
    client = "--insecure" if project.insecure else "--root-certificates certificates/ca.crt"
    port = str(project.port)
    (folder / "environment").write_text(templates.ENVIRONMENT)
    (folder / "connection").write_text(_filled(templates.CONNECTION, {"PORT": port, "SECURITY": root}))
    server = "--insecure" if project.insecure else SECURE
    _script(folder / "start-superlink.sh", templates.SUPERLINK, {"PORT": port, "SECURITY": server})
    _script(folder / "start-superexec.sh", templates.SUPEREXEC, {"PORT": port, "SECURITY": client})
    _script(folder / "run.sh", templates.RUN, {})
    write_secret(folder / "secret", secrets.token_bytes(32))
    if not project.insecure:
        hosts = dict.fromkeys([project.host, "localhost", "127.0.0.1"])
        write_certificates(folder / "certificates", list(hosts))
        _script(folder / "register.sh", templates.REGISTER, {})
    if project.proxied:
        host, public = split_address(project.address)
        words = {"HOST": host, "PUBLIC_PORT": str(public), "PORT": port}
        (folder / "nginx.conf").write_text(_filled(templates.NGINX, words))
    elsewhere = "" if project.options.out == RUN else project.options.out
    _unit(folder, "fedkeep-superlink", "superlink", "start-superlink.sh", "FedKeep: Flower's SuperLink", "2G")
    _unit(folder, "fedkeep-superexec", "superlink", "start-superexec.sh", "FedKeep: server app", "8G", elsewhere)


def _write_node(project: Project, folder: Path, name: str) -> None:
    here = folder / "nodes" / name
    here.mkdir(parents=True)
    security = "--insecure"
    if not project.insecure:
        write_node_key(here / "node.key", folder / "superlink" / "nodes" / f"{name}.pub", name)
        shutil.copy(folder / "superlink" / "certificates" / "ca.crt", here / "ca.crt")
        security = "--root-certificates ca.crt --auth-supernode-private-key node.key"
    (here / "environment").write_text(templates.ENVIRONMENT)
    number = project.names.index(name)
    words = {"NAME": name, "ADDRESS": project.address, "SECURITY": security, "NODE_PORT": str(NODE_PORT + number)}
    _script(here / "start-supernode.sh", templates.SUPERNODE, words)
    _unit(here, f"fedkeep-{name}", name, "start-supernode.sh", f"FedKeep: client {name}", "8G")
    if project.options.load.startswith("data.py:"):
        shape = ", ".join(map(str, project.options.example_shape))
        text = _filled(templates.DATA, {"SHAPE": shape, "LAST": str(project.options.classes - 1)})
        (here / "data.py").write_text(text)


def _unit(folder: Path, unit: str, place: str, script: str, description: str, memory: str, writes: str = "") -> None:
    words = {
        "UNIT": unit,
        "FOLDER": place,
        "SCRIPT": script,
        "DESCRIPTION": description,
        "MEMORY": memory,
        "AFTER": "fedkeep-superlink.service" if unit == "fedkeep-superexec" else "",
        "WRITES": writes,
    }
    (folder / f"{unit}.service").write_text(_filled(templates.UNIT, words))


def _script(path: Path, template: str, words: Mapping[str, str]) -> None:
    path.write_text(_filled(template, words))
    os.chmod(path, 0o755)


def _filled(template: str, words: Mapping[str, str]) -> str:
    for word, text in words.items():
        template = template.replace(f"@{word}@", text)
    return template


def _readme_words(project: Project, cohort: int, sends: list[str], privacy: Privacy | None) -> dict[str, str]:
    lines = [f"- {line}" for line in sends]
    if privacy:
        lines.append(f"\n{privacy.describe(project.config.rounds)}.")
    return {
        "METHOD": project.config.method,
        "ROUNDS": str(project.config.rounds),
        "COHORT": str(cohort),
        "CLIENTS": str(project.config.clients),
        "SENDS": "\n".join(lines),
        "SECRETS": templates.NO_SECRETS if project.insecure else templates.SECRETS,
        "PROXY": templates.PROXY if project.proxied else templates.NO_PROXY,
        "REGISTERED": templates.NOT_REGISTERED if project.insecure else templates.REGISTERED,
        "EXAMPLES": templates.EXAMPLES if project.options.load else "",
        "LOAD": project.options.load,
        "ADDRESS": project.address,
        "OUT": f"superlink/{RUN}" if project.options.out == RUN else project.options.out,
    }
