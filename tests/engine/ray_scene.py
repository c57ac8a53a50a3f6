"""A Ray cluster for tests, in a network namespace of its own: loopback only, and all in it is ours to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import fedkeep

PORT = 6390
ADDRESS = f"127.0.0.1:{PORT}"
SOURCE = str(Path(fedkeep.__file__).parents[1])
HERE = str(Path(__file__).parent)


def why_not() -> str:
    """Why there can be no such cluster here; nothing where there can."""
    if find_spec("ray") is None:
        return "Ray is not installed (pip install fedkeep[ray])"
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"{program} is not installed (iproute2, util-linux); without a namespace Ray would be open to all"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    return f"network namespaces are not allowed here ({tried.stderr.strip()})" if tried.returncode else ""


def environment() -> dict[str, str]:
    more = {"PYTHONPATH": os.pathsep.join([SOURCE, HERE]), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **more}


class Scene:
    """A namespace and the nodes in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, subprocess.Popen] = {}
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 3000"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "up\n"
        self.namespace = os.readlink(f"/proc/{self.holder.pid}/ns/net")

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *command]

    def start(self, host: str, cores: int = 1) -> None:
        """Start a node; the first is the head."""
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", "--block", f"--node-ip-address={host}", f"--num-cpus={cores}", "--disable-usage-stats"]
        command += ["--object-store-memory=200000000"]
        if self.nodes:
            command += [f"--address={ADDRESS}"]
        else:
            command += ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        with open(self.folder / f"{host}.log", "w") as log:
            self.nodes[host] = subprocess.Popen(
                self.inside(*command), stdout=log, stderr=log, env=environment(), start_new_session=True
            )
        wait_until(lambda: "This command will now block" in (self.folder / f"{host}.log").read_text(), 90)

    def lose(self, host: str) -> None:
        """Every process of a node ends at once, as when its machine is switched off."""
        node = self.nodes.pop(host)
        for pid in [node.pid, *descendants(node.pid)]:
            kill(pid)
        node.wait(10)

    def begin(self, *words: str, **more) -> subprocess.Popen:
        """Start a Python program in the namespace."""
        return subprocess.Popen(self.inside(sys.executable, *words), env=environment(), text=True, **more)

    def run(self, *words: str, seconds: float = 120) -> subprocess.CompletedProcess:
        """Run a Python program in the namespace to its end."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.begin(*words, **pipes)
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            if process.poll() is None:
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def processes(self) -> list[int]:
        """All processes of the namespace."""
        return [pid for pid in pids() if pid != self.holder.pid and namespace_of(pid) == self.namespace]

    def workers(self) -> list[int]:
        """Ray's worker processes that hold one of our actors."""
        return [pid for pid in self.processes() if "Worker" in (name := title(pid)) and name.startswith("ray::")]

    def close(self) -> None:
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            try:
                node.wait(10)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait(10)
        for pid in self.processes():
            kill(pid)
        self.holder.kill()
        self.holder.wait(10)
        assert self.holder.stdout is not None
        self.holder.stdout.close()


@contextmanager
def scene(*hosts: str, cores: int = 1) -> Iterator[Scene]:
    """A namespace with a node for each of these addresses."""
    folder = Path(tempfile.mkdtemp(prefix="fk-", dir="/tmp"))  # a short path: Ray makes sockets there
    made = Scene(folder)
    try:
        for host in hosts:
            made.start(host, cores)
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition, seconds: float, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    try:
        children = [int(p) for t in os.listdir(f"/proc/{pid}/task") for p in read_children(pid, t)]
    except OSError:
        return []
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]


def read_children(pid: int, task: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    except OSError:
        return []


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
