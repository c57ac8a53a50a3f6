"""A whole federation on this machine: SuperLink, SuperNodes and server app as on many, with TLS and authentication."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedkeep.deploy.options import Options
from fedkeep.deploy.processes import (
    Processes,
    descendants,
    end,
    end_with_parent,
    environment,
    free_ports,
    wait_for_port,
)
from fedkeep.deploy.project import Project, write_project
from fedkeep.errors import RunError
from fedkeep.experiment.config import Config
from fedkeep.experiment.run import Run, load_run
from fedkeep.experiment.rundir import RunDirectory

MARK = "fedkeep | "
START = 120.0  # seconds that Flower's programs may take to listen
REGISTER = 60.0  # seconds for each node
Say = Callable[[str], None]


@dataclass
class LocalFederation:
    """Flower's programs of one deployment, running on this machine."""

    folder: Path
    project: Project
    processes: Processes
    ports: list[int]  # the SuperLink's, then one for each node
    stores: Path | None = None  # where clients keep their memory; by default in the deployment's folder

    @property
    def superlink(self) -> Path:
        return self.folder / "superlink"

    def start_superlink(self) -> None:
        self.processes.start("superlink", ["sh", str(self.superlink / "start-superlink.sh")])
        wait_for_port(self.ports[0], self.processes, "superlink", START)

    def start_superexec(self) -> None:
        self.processes.start("superexec", ["sh", str(self.superlink / "start-superexec.sh")], {"OMP_NUM_THREADS": "1"})

    def register(self) -> None:
        """Make the nodes' keys known to the SuperLink."""
        if self.project.insecure:
            return
        log = self.processes.logs / "register.log"
        with open(log, "ab") as handle:
            done = subprocess.run(
                ["sh", str(self.superlink / "register.sh")],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                timeout=REGISTER * len(self.project.names),
                check=False,
            )
        if done.returncode:
            raise RunError(f"the nodes could not be registered:\n{self.processes.tail('register')}")

    def start_node(self, number: int) -> None:
        name = self.project.names[number]
        script = self.folder / "nodes" / name / "start-supernode.sh"
        variables = {"NODE_PORT": str(self.ports[1 + number]), "NODE_CONFIG": "threads=1", "OMP_NUM_THREADS": "1"}
        if self.stores:
            variables["STORE"] = str(self.stores.absolute())
        self.processes.start(name, ["sh", str(script)], variables)

    def start(self) -> None:
        """Start everything, in order."""
        self.start_superlink()
        self.start_superexec()
        self.register()
        for number in range(len(self.project.names)):
            self.start_node(number)

    def run(self, say: Say, seconds: float | None = None) -> str:
        """Run the app to its end, passing its lines on; gives what it said it failed by, or nothing."""
        process = subprocess.Popen(
            ["sh", str(self.superlink / "run.sh")],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        failed, other = [""], []
        reader = threading.Thread(target=_read, args=(process, say, failed, other), daemon=True)
        reader.start()
        until = time.monotonic() + seconds if seconds else None
        try:
            self._watch(process, say, until)
        finally:
            if process.poll() is None:
                started = descendants(process.pid)
                process.terminate()
                process.wait()
                end(started, 1.0)
        reader.join(5)
        (self.processes.logs / "run.log").write_text("".join(other))
        return failed[0]

    def _watch(self, process: subprocess.Popen[bytes], say: Say, until: float | None) -> None:
        told: set[str] = set()
        while process.poll() is None:
            time.sleep(0.3)
            self.processes.look()
            for name, code in self.processes.dead().items():
                if name in ("superlink", "superexec"):
                    raise RunError(f"{name} ended with code {code}:\n{self.processes.tail(name)}")
                if name not in told:
                    told.add(name)
                    say(f"the node of {name} ended with code {code}; going on without it")
            if until and time.monotonic() > until:
                raise RunError("the federation took too long")


def _read(process: subprocess.Popen[bytes], say: Say, failed: list[str], other: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for raw in process.stdout:
            line = raw.decode(errors="replace")
            other.append(line)
            _, mark, text = line.partition(MARK)
            if text.startswith("error: "):
                failed[0] = text.removeprefix("error: ").strip()
            elif mark:
                say(text.rstrip())


@contextmanager
def started(project: Project, folder: Path, stores: Path | None = None) -> Iterator[LocalFederation]:
    """A deployment on this machine, written to `folder` and running; everything ends with the block."""
    ports = free_ports(1 + len(project.names))
    project = replace(project, address=f"127.0.0.1:{ports[0]}", port=ports[0])
    write_project(project, folder)
    with Processes(folder / "logs") as processes:
        federation = LocalFederation(folder, project, processes, ports, stores)
        federation.start()
        yield federation


def run_local(config: Config, options: Options, out: Path | None, say: Say, insecure: bool = False) -> Run:
    """Run a federation over loopback and return its run, kept in `out` if that is given.

    What the clients keep between rounds is beside `out`, so that an interrupted run goes on, until it is finished.
    """
    with tempfile.TemporaryDirectory(prefix="fedkeep-") as scratch:
        directory = RunDirectory((out or Path(scratch) / "run").absolute())
        stores = (directory.path if out else Path(scratch) / "run").with_name(f"{directory.path.name}-clients")
        project = Project(config, replace(options, out=str(directory.path)), insecure=insecure)
        if directory.exists() and directory.outcome():
            directory.same_experiment(directory.config(), project.config)
            say(f"{directory.path} is finished already; nothing was run")
            return load_run(directory.path)
        say(f"starting a SuperLink and {len(project.names)} SuperNodes on this machine")
        with _ended_by_signals(), started(project, Path(scratch) / "deployment", stores) as federation:
            failed = federation.run(lambda line: None if line.startswith("finished") else say(line))
            if not directory.exists() or not directory.outcome():
                words = federation.processes.tail("run")
                raise RunError(failed or f"the server app ended before the federation was finished:\n{words}")
        shutil.rmtree(stores, ignore_errors=True)
        run = load_run(directory.path)
        return run if out else replace(run, directory=None)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A polite request to end stops what was started, too."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
