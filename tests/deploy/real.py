"""A real deployment on loopback for tests: Flower's programs, TLS, node authentication. Everything ends by its pid."""

from __future__ import annotations

import http.client
import http.server
import ssl
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedkeep.deploy.local import LocalFederation, started
from fedkeep.deploy.options import Options, from_run_config, to_run_config
from fedkeep.deploy.processes import descendants, environment
from fedkeep.deploy.project import Project
from fedkeep.experiment import Config, Run
from fedkeep.experiment.run import load_run
from fedkeep.experiment.rundir import RunDirectory

SMALL = {"clients": 3, "fraction": 1.0, "rounds": 2, "limit": 120, "local_epochs": 1, "forgetting": "off"}


class Real:
    """A running deployment on which one experiment after another can be run."""

    def __init__(self, federation: LocalFederation, folder: Path) -> None:
        self.federation, self.folder = federation, folder
        self.lines: list[str] = []

    def prepare(self, name: str, method: str, options: dict[str, Any] | None = None, **config: Any) -> Config:
        """Make this the experiment of the deployment's app."""
        chosen = Options(
            **{"out": str(self.folder / name), "time_limit": 300.0, "start_wait": 300.0, **(options or {})}
        )
        table = to_run_config(Config(method=method, **{**SMALL, **config}), chosen)
        config_of = from_run_config(table)[0]
        path = self.federation.superlink / "app" / "pyproject.toml"
        project = tomllib.loads(path.read_text())
        project["tool"]["flwr"]["app"]["config"] = to_run_config(config_of, chosen)
        path.write_text(tomli_w.dumps(project))
        return config_of

    def run(self, name: str, method: str, options: dict[str, Any] | None = None, **config: Any) -> tuple[Run, Config]:
        config_of = self.prepare(name, method, options, **config)
        failed = self.federation.run(self.lines.append, 800)
        assert not failed, failed
        return load_run(self.folder / name), config_of

    def begin(self) -> None:
        """Start the app without waiting for its end."""
        script = self.federation.superlink / "run.sh"
        command = ["sh", "-c", f"sed 's/ --stream//' '{script}' > '{script}.once' && sh '{script}.once'"]
        done = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"{what} did not happen; {self.words()}"
            self.federation.processes.look()
            time.sleep(0.3)

    def words(self) -> str:
        processes = self.federation.processes
        return "\n".join(f"--- {log.stem}\n{processes.tail(log.stem)}" for log in sorted(processes.logs.glob("*.log")))

    def log_of(self, name: str) -> str:
        path = self.folder / name / "log.txt"
        return path.read_text() if path.exists() else ""

    def finished(self, name: str) -> bool:
        directory = RunDirectory(self.folder / name)
        return directory.exists() and directory.outcome() is not None

    def server_apps(self) -> list[int]:
        """The processes of server apps that are running now."""
        superexec = self.federation.processes.running["superexec"].pid
        return [pid for pid, _ in descendants(superexec) if b"flwr-serverapp" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def real(folder: Path) -> Iterator[Real]:
    project = Project(Config(**SMALL), Options(out=str(folder / "unused")))
    with started(project, folder / "deployment") as federation:
        yield Real(federation, folder)


@dataclass
class Fence:
    """A proxy's port, and what it did not pass on."""

    port: int
    refused: list[str]


@contextmanager
def fence(superlink: Path, target: int) -> Iterator[Fence]:
    """What the proxy of the guide does: TLS in front, /v1/fleet/ and nothing else passed on."""
    refused: list[str] = []
    trusted = ssl.create_default_context(cafile=str(superlink / "certificates" / "ca.crt"))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith("/v1/fleet/"):
                refused.append(self.path)
                self.answer(403, {}, b"")
                return
            connection = http.client.HTTPSConnection("localhost", target, context=trusted, timeout=60)
            try:
                skipped = ("host", "content-length", "connection", "transfer-encoding")
                headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
                connection.request("POST", self.path, body, headers)
                response = connection.getresponse()
                data = response.read()
                passed = {k: v for k, v in response.getheaders() if k.lower() not in skipped}
                self.answer(response.status, passed, data)
            except OSError:
                self.answer(502, {}, b"")
            finally:
                connection.close()

        def do_GET(self) -> None:
            refused.append(self.path)
            self.answer(403, {}, b"")

        def answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(superlink / "certificates" / "server.pem", superlink / "certificates" / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Fence(server.server_address[1], refused)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
