"""Small runs, ways to kill them, and a bitwise comparison of what they leave."""

from __future__ import annotations

import os
import signal
import stat
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedkeep import packing
from fedkeep.experiment.config import Config
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.tables import TABLES
from fedkeep.memories import Memories

METHODS = ("scaffold+wsm", "fedwavg(alpha=0.3)", "importance(lam=10)@adam(lr=0.01)", "fednova@momentum")


def small(method: str = "scaffold+wsm", **options: Any) -> Config:
    """A config that takes a moment."""
    known: dict[str, Any] = {
        "rounds": 3,
        "clients": 5,
        "limit": 120,
        "local_epochs": 1,
        "step": "eager",
        "workers": 1,
        "checkpoint_every": 1,
    }
    return Config(method=method, **{**known, **options})


def keep_last_state(monkeypatch) -> None:
    """Save the last checkpoint of a run beside it: it holds memories and optimiser states, and goes when a run ends."""
    finish = RunDirectory.finish

    def finish_and_keep(self: RunDirectory, *arguments: Any) -> None:
        last = self.segments.folders()[-1] / "state.safetensors"
        state, meta = packing.from_bytes(last.read_bytes(), "state")
        memories = Memories(0, self.memories)
        memories.load(state["remembered"], meta["round"])
        state["memories"] = {str(client): memory for client, memory in memories.items()}
        side(self.path).write_bytes(packing.to_bytes(state, meta))
        finish(self, *arguments)

    monkeypatch.setattr(RunDirectory, "finish", finish_and_keep)


def side(path: Path) -> Path:
    return path.with_name(f"{path.name}.last-state")


def assert_same_run(left: Path, right: Path, states: bool = True) -> None:
    """Two finished runs are equal to the last bit, apart from how long they took."""
    a, b = RunDirectory(left), RunDirectory(right)
    assert a.outcome() == b.outcome()
    for name in TABLES:
        ours, theirs = a.table(name), b.table(name)
        assert ours is not None and theirs is not None
        keep = [column for column in ours.column_names if column != "seconds"]
        assert ours.column_names == theirs.column_names
        assert ours.select(keep).to_pydict().__repr__() == theirs.select(keep).to_pydict().__repr__(), name
    for which in ("final", "best"):
        assert_same_tree(a.model(which), b.model(which))
    assert a.partition().equals(b.partition())
    assert not a.notes and not b.notes
    if states:
        ours, theirs = (packing.from_bytes(side(path).read_bytes(), "state") for path in (left, right))
        assert_same_tree(ours[0], theirs[0])
        assert ours[1] == theirs[1]


def assert_same_tree(left: Any, right: Any) -> None:
    if isinstance(left, Mapping):
        assert left.keys() == right.keys()
        for key in left:
            assert_same_tree(left[key], right[key])
    else:
        assert left.dtype == right.dtype and torch.equal(left, right)


def in_child(work: Callable[[], Any], kill_after: float | None = None) -> int:
    """Do something in a forked process, killed with -9 after some seconds; the exit code, negative for a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons dislike a fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(monkeypatch, calls: tuple[str, ...], number: int, mutilate: bool = False) -> None:
    """Let this process vanish, as by kill -9, instead of its n-th call of the named functions of `os`."""
    seen = [0]

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            seen[0] += 1
            if seen[0] == number:
                if mutilate and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                os._exit(99)
            return original(*arguments, **more)

        return call

    for name in calls:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
