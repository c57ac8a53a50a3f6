"""The files that `fedkeep deploy init` writes."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
import tomllib

import pytest

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from fedkeep.deploy.certificates import write_certificates
from fedkeep.deploy.options import Options, from_run_config
from fedkeep.deploy.project import Project, is_loopback, split_address, write_project
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment import Config

CONFIG = Config(method="importance(lam=10)+wsm", clients=2, rounds=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("project") / "new"
    options = Options(names="north,south", encode="importance=top(q=10)", probe=True)
    write_project(Project(CONFIG, options, "fl.example.org:443"), place)
    return place


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own, in building a bundle
def test_the_app_is_one_that_flower_takes(folder):
    config, warnings = load_and_validate(folder / "superlink" / "app" / "pyproject.toml")
    assert not warnings and config["project"]["dependencies"] == []
    assert len(build_fab_from_disk(folder / "superlink" / "app")) < 20_000
    table = tomllib.loads((folder / "superlink" / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "config"
    ]
    found, options = from_run_config(table)
    assert found.method == CONFIG.method and options.names == "north,south"
    assert options.out == "run"


def test_every_script_is_a_script(folder):
    scripts = sorted(folder.rglob("*.sh"))
    assert len(scripts) == 6
    for script in scripts:
        assert script.stat().st_mode & stat.S_IXUSR
        assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
        assert "@" not in script.read_text().replace('"$@"', "")


def test_tls_and_authentication_are_on(folder):
    superlink = (folder / "superlink" / "start-superlink.sh").read_text()
    node = (folder / "nodes" / "north" / "start-supernode.sh").read_text()
    assert "--enable-supernode-auth" in superlink and "--ssl-certfile" in superlink
    assert "--auth-supernode-private-key node.key" in node and "--root-certificates ca.crt" in node
    assert "fl.example.org:443" in node
    assert not any("--insecure" in path.read_text() for path in folder.rglob("*.sh"))
    assert "127.0.0.1" in superlink and "0.0.0.0" not in superlink


def test_private_keys_are_private_and_where_they_belong(folder):
    for secret in (folder / "superlink" / "certificates" / "server.key", folder / "superlink" / "secret"):
        assert secret.stat().st_mode & 0o077 == 0
    for name in ("north", "south"):
        private = folder / "nodes" / name / "node.key"
        assert private.stat().st_mode & 0o077 == 0
        public = load_ssh_public_key((folder / "superlink" / "nodes" / f"{name}.pub").read_bytes())
        assert load_ssh_private_key(private.read_bytes(), None).public_key() == public
    assert not list((folder / "superlink").rglob("node.key"))
    assert not list(folder.rglob("ca.key"))  # nobody can sign a second certificate


def handshake(folder, host, authority):
    """A TLS handshake in memory: does a client that trusts `authority` accept this server as `host`?"""
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=authority)
    server_side.load_cert_chain(folder / "server.pem", folder / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server, server_hostname=host)
    done = set()
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
        if len(done) == 2:
            return client.version()
    raise AssertionError("no handshake")


def test_the_certificate_is_good_for_the_address_and_for_this_machine(folder, tmp_path):
    place = folder / "superlink" / "certificates"
    for host in ("fl.example.org", "localhost", "127.0.0.1"):
        assert handshake(place, host, place / "ca.crt") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(place, "evil.example.org", place / "ca.crt")
    write_certificates(tmp_path, ["fl.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, "fl.example.org", place / "ca.crt")


def test_the_proxy_lets_only_the_fleet_api_through(folder):
    text = (folder / "superlink" / "nginx.conf").read_text()
    assert "location /v1/fleet/ {" in text and "server_name fl.example.org;" in text and "listen 443 ssl;" in text
    assert text.count("location") == 2 and "return 403" in text and "proxy_ssl_verify on" in text
    assert text.count("{") == text.count("}") and "@" not in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_the_units_are_units(folder):
    units = sorted(folder.rglob("*.service"))
    assert len(units) == 4
    for unit in units:
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True, timeout=60
        )
        assert unit.name not in done.stderr, done.stderr


def test_the_readme_says_what_leaves_a_client(folder):
    text = (folder / "README.md").read_text()
    assert "importance is sent only its largest 10 %" in text
    assert "passes each client's trained model on" in text and "diagonal Fisher" in text and "@" not in text


def test_an_existing_folder_is_never_overwritten(folder):
    before = (folder / "nodes" / "north" / "node.key").read_bytes()
    with pytest.raises(RunError, match="is there already"):
        write_project(Project(CONFIG, Options()), folder)
    assert (folder / "nodes" / "north" / "node.key").read_bytes() == before


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (CONFIG, Options(encode="nothing=int8")),
        (CONFIG, Options(dp_clip=1.0, dp_noise=1.0)),
        (Config(method="fedwagg(clusters=3)", clients=2), Options()),
        (Config(data="no-such-data", clients=2), Options()),
        (CONFIG, Options(names="a,b,c")),
        (CONFIG, Options(min_replies=3)),
    ],
)
def test_what_cannot_work_is_refused_before_a_file_is_written(tmp_path, config, options):
    with pytest.raises(ConfigError):
        write_project(Project(config, options), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_insecure_is_for_this_machine_only(tmp_path):
    for address in ("fl.example.org:8000", "10.0.0.1:8000", "0.0.0.0:8000"):
        with pytest.raises(ConfigError, match="this machine only"):
            Project(CONFIG, Options(), address, insecure=True)
    write_project(Project(CONFIG, Options(), "127.0.0.1:8000", insecure=True), tmp_path / "new")
    assert "--insecure" in (tmp_path / "new" / "superlink" / "start-superlink.sh").read_text()
    assert not list((tmp_path / "new").rglob("*.key"))


def test_own_data_comes_with_a_template(tmp_path):
    options = Options(load="data.py:load", shape="1,28,28", classes=10)
    write_project(Project(CONFIG, options), tmp_path / "new")
    template = (tmp_path / "new" / "nodes" / "client-0" / "data.py").read_text()
    assert "def load(client_name):" in template and "(n, 1, 28, 28)" in template
    compile(template, "data.py", "exec")


def test_addresses():
    assert split_address("[::1]:80") == ("::1", 80)
    for wrong in ("host", ":80", "host:", "host:0", "host:99999", "ho st:80", "h$(x):80", 'a"b:80'):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            split_address(wrong)
    assert [is_loopback(h) for h in ("localhost", "127.0.0.1", "::1", "10.0.0.1", "example.org")] == [True] * 3 + [
        False
    ] * 2
