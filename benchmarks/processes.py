"""Processes of a benchmark: started apart, measured as a tree, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

PROC = Path("/proc")
LOOPBACK = 'ip link set lo up && exec "$@"'


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children[int(after_name[1])].append(int(entry.name))
    found = [root]
    for pid in found:  # grows while it is walked
        found.extend(children[pid])
    return found


def processor_time(root: int) -> float:
    """Seconds that a process tree has computed so far; a busy machine disturbs it less than the clock on the wall."""
    ticks = 0
    for pid in tree(root):
        try:
            after_name = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in after_name[11:15])  # its own and its ended children's, user and system
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(root: int) -> int:
    """Bytes held by a process tree (PSS): a page that several processes share counts once in all."""
    total = 0
    for pid in tree(root):
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def start(command: list[str], environment: dict[str, str], folder: Path, log: Path) -> subprocess.Popen:
    """Start a command in a session of its own, its output in a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen, patience: float) -> None:
    """Let a process end by itself for a while, then end it and what it started."""
    pids = tree(process.pid)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        pids = tree(process.pid)
        _kill(process.pid)
        process.wait()
    mine = os.getpid()
    for pid in pids[1:]:  # whoever survived its parent
        if pid != mine and _session(pid) == process.pid:
            _kill(pid)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@cache
def isolation() -> tuple[str, ...] | None:
    """What to put before a command so that it runs in a network of its own, with loopback alone, and dies whole.

    None where the system does not allow it.
    """
    if not shutil.which("unshare") or not shutil.which("ip"):
        return None
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    prefix = ("unshare", *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", LOOPBACK, "sh")
    allowed = subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    return prefix if allowed else None
