"""Programs started here, and ended here: by their process id, with everything they started themselves."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from fedkeep.errors import RunError

GRACE = 8.0  # seconds to end by itself

Identity = tuple[int, str]
"""A process id and the moment the process began: a number that is used again is another process."""


@dataclass
class Processes:
    """Programs that run until the end of a `with` block. Their output goes to files."""

    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    seen: set[Identity] = field(default_factory=set)  # what they have started in turn

    def __enter__(self) -> Processes:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
        """Start a program in a session of its own, so that a Ctrl-C comes here first."""
        with open(self.logs / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                list(command),
                env=environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.running[name] = process
        return process.pid

    def look(self) -> None:
        """Remember what the programs have started by now, so that it can be ended even if they die first."""
        for process in self.running.values():
            self.seen |= descendants(process.pid)

    def dead(self) -> dict[str, int]:
        """The programs that have ended, with their exit codes."""
        return {name: code for name, process in self.running.items() if (code := process.poll()) is not None}

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines that a program wrote."""
        text = (self.logs / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def kill(self, name: str) -> None:
        """End one program at once, as a power cut would; what it has started is ended with it."""
        process = self.running.pop(name)
        started = descendants(process.pid)
        process.kill()
        process.wait()
        end(started, 0.0)

    def stop(self) -> None:
        """End everything: ask first, then insist."""
        self.look()
        for process in reversed(self.running.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        until = time.monotonic() + GRACE
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
        for process in self.running.values():
            if process.poll() is None:
                self.seen |= descendants(process.pid)
                process.kill()
                process.wait()
        self.running.clear()
        end(self.seen, 2.0)
        self.seen.clear()


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a child: programs beside this Python are found, and tensors use one thread each."""
    here = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {**os.environ, "PATH": f"{here}:{path}", **(variables or {})}


_LIBC = ctypes.CDLL(None)
_PDEATHSIG = 1  # Linux: what a process is sent when the one that started it dies


def end_with_parent() -> None:
    """Called in a child before it becomes another program: end it when this program is killed."""
    _LIBC.prctl(_PDEATHSIG, signal.SIGTERM)


def descendants(pid: int) -> set[Identity]:
    """All processes that a process has started, and those these have started."""
    parents: dict[int, list[Identity]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _status(int(entry))):
            parents.setdefault(found[0], []).append((int(entry), found[1]))
    known: set[Identity] = set()
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            if child not in known:
                known.add(child)
                waiting.append(child[0])
    return known


def end(processes: set[Identity], grace: float) -> None:
    """End processes by their ids, those that are still the same."""
    until = time.monotonic() + grace
    while time.monotonic() < until and any(_same(process) for process in processes):
        time.sleep(0.1)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        left = [process for process in processes if _same(process)]
        for pid, _ in left:
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        if left:
            time.sleep(0.5)


def _same(process: Identity) -> bool:
    found = _status(process[0])
    return found is not None and found[1] == process[1]


def _status(pid: int) -> tuple[int, str] | None:
    """Parent and moment of beginning of a process; None where it is gone or only waits to be collected."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a name in brackets may hold anything
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def wait_for_port(port: int, processes: Processes, name: str, seconds: float) -> None:
    """Wait until a program listens; RunError with its last words where it ends or takes too long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if name in processes.dead():
            raise RunError(f"{name} ended at its start; its last words:\n{processes.tail(name)}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise RunError(f"{name} did not listen on port {port} within {seconds:g} s:\n{processes.tail(name)}")
