"""A race: contenders do the same rounds in turns, each in processes of its own."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import processes
from turns import SOCKET, STARTED

HERE = Path(__file__).resolve().parent
START_LIMIT, ROUND_LIMIT = 300.0, 240.0  # seconds


@dataclass(frozen=True)
class Contender:
    """A name and a command that follows `turns.py`."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    quiet_start: bool = False  # measures something while it starts, so it starts alone


@dataclass
class Outcome:
    """What a contender did."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)  # what it said of itself when it was ready
    seconds: list[float] = field(default_factory=list)  # of each round, without the first
    processor: list[float] = field(default_factory=list)  # seconds of all cores a round, one number a turn
    first: float = 0.0  # seconds of the first round
    memory: int = 0  # bytes over all its processes: the most that was seen in the first round and at the end
    params: dict[str, np.ndarray] = field(default_factory=dict)
    problem: str = ""

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class _Failed(Exception):
    """A contender said nothing, or nothing sensible."""


class _Runner:
    """One contender under way."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        self.outcome = Outcome(contender.name)
        self._folder = folder
        self._log = folder / "output.txt"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "line"))
        self._listener.listen(1)
        self._listener.settimeout(0.5)
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            SOCKET: str(folder / "line"),
            STARTED: str(time.time()),
            **contender.environment,
        }
        self._process = processes.start(list(contender.command), environment, HERE, self._log)
        self._line: Connection | None = None

    def await_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        while self._line is None:
            try:
                self._line = Connection(self._listener.accept()[0].detach())
            except TimeoutError:
                self._alive(deadline)
        self.outcome.facts = self._hear("ready", deadline)

    def run(self, rounds: int, watch_memory: bool = False) -> list[float]:
        for _ in range(rounds):
            self._say("round")
        deadline = time.monotonic() + ROUND_LIMIT * rounds
        return [self._hear("seconds", deadline, watch_memory) for _ in range(rounds)]

    def turn(self, rounds: int) -> None:
        before = processes.processor_time(self._process.pid)
        self.outcome.seconds += self.run(rounds)
        self.outcome.processor.append((processes.processor_time(self._process.pid) - before) / rounds)

    def finish(self, keep: bool) -> None:
        self.see_memory()
        path = self._folder / "final.npz"
        self._say({"save": str(path)})
        self._hear("saved", time.monotonic() + ROUND_LIMIT)
        if keep:
            with np.load(path) as saved:
                self.outcome.params = {name: saved[name] for name in saved.files}

    def see_memory(self) -> None:
        self.outcome.memory = max(self.outcome.memory, processes.memory(self._process.pid))

    def fail(self, why: object) -> None:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        self.outcome.problem = f"{why}; its last words: {' | '.join(lines[-3:])[-300:]}"

    def close(self) -> None:
        if self._line:
            self._line.close()  # whoever still waits for its turn ends by itself
        self._listener.close()
        processes.end(self._process, patience=0.0 if self.outcome.problem else 10.0)

    def _say(self, what: Any) -> None:
        assert self._line is not None
        try:
            self._line.send_bytes(json.dumps(what).encode())
        except OSError as error:
            raise _Failed(f"gone ({error})") from None

    def _hear(self, key: str, deadline: float, watch_memory: bool = False) -> Any:
        assert self._line is not None
        while not self._line.poll(1.0):
            if watch_memory:
                self.see_memory()
            self._alive(deadline)
        try:
            return json.loads(self._line.recv_bytes())[key]
        except (EOFError, OSError, KeyError, ValueError) as error:
            raise _Failed(f"no answer ({type(error).__name__})") from None

    def _alive(self, deadline: float) -> None:
        if self._process.poll() is not None:
            raise _Failed(f"ended with exit code {self._process.returncode}")
        if time.monotonic() > deadline:
            raise _Failed("took too long")


def race(contenders: Sequence[Contender], turns: int, rounds_a_turn: int, keep: bool = False) -> list[Outcome]:
    """One round each to warm up, then `turns` times: each contender in its turn runs some rounds.

    keep: also hand back the final weights. A contender that fails leaves the race; its outcome says why.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        runners: list[_Runner] = []
        try:
            _start(contenders, Path(folder), runners)
            for runner in _running(runners):
                _try(runner, _warm_up)
            for turn in range(turns):
                going = _running(runners)
                for runner in going if turn % 2 == 0 else reversed(going):
                    _try(runner, lambda r: r.turn(rounds_a_turn))
            for runner in _running(runners):
                _try(runner, lambda r: r.finish(keep))
        finally:
            for runner in runners:
                runner.close()
        by_name = {runner.outcome.name: runner.outcome for runner in runners}
        return [by_name[contender.name] for contender in contenders]


def _start(contenders: Sequence[Contender], folder: Path, runners: list[_Runner]) -> None:
    together = [contender for contender in contenders if not contender.quiet_start]
    waves = [together, *([contender] for contender in contenders if contender.quiet_start)]
    for wave in waves:
        begun = len(runners)
        for contender in wave:
            place = folder / str(len(runners))
            place.mkdir()
            runners.append(_Runner(contender, place))
        for runner in runners[begun:]:
            _try(runner, _Runner.await_ready)


def _warm_up(runner: _Runner) -> None:
    runner.see_memory()
    runner.outcome.first = runner.run(1, watch_memory=True)[0]


def _running(runners: Sequence[_Runner]) -> list[_Runner]:
    return [runner for runner in runners if not runner.outcome.problem]


def _try(runner: _Runner, what: Any) -> None:
    try:
        what(runner)
    except (_Failed, subprocess.SubprocessError) as error:
        runner.fail(error)
