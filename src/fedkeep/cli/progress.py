"""The progress of a run: a bar in a terminal, a few plain lines in a log."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedkeep.cli.console import duration, errors, note, on_screen, say
from fedkeep.experiment.jobs import Event
from fedkeep.simulate import RoundRecord

LINES = 10  # at most so many in a log
NARROW = 80
RECENT = 20  # rounds that the time left is estimated from
PATIENCE = 1.0  # seconds before the time left of several runs is estimated


def bar_with(*fields: str) -> Progress:
    """A bar between texts: the title (where there is room) and the first field on the left, the others on the right."""
    console = errors()
    texts = [TextColumn(f"{{task.fields[{field}]}}", markup=False) for field in fields]
    title = [TextColumn("{task.description}", markup=False)] if console.width >= NARROW else []
    return Progress(*title, texts[0], BarColumn(bar_width=None), *texts[1:], console=console, expand=True)


class Watcher:
    """Shows a run's rounds while they happen; `with Watcher(...) as watch: execute(..., listen=watch)`."""

    def __init__(self, title: str, rounds: int, quiet: bool = False, headline: str = "") -> None:
        self.title, self.rounds, self.quiet = title, rounds, quiet
        self.headline = headline  # said once the first round is done: what is refused is refused before
        self.last = 0  # the last round that was finished here
        self.spent: list[float] = []  # seconds of each round
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Watcher:
        if errors().is_terminal and not self.quiet:
            self.bar = self._stack.enter_context(on_screen(bar_with("round", "state")))
            self.task = self.bar.add_task(self.title, total=self.rounds, round="", state="preparing")
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.close()

    def __call__(self, record: RoundRecord) -> None:
        self.last = record.round
        self.spent.append(record.seconds)
        if record.left_out:
            note(left_out(record))
        if self.quiet:
            return
        if self.headline and len(self.spent) == 1:
            say(errors(), self.headline, "dim", "")
        where = f"round {record.round}/{self.rounds}"
        if self.bar and self.task is not None:
            self.bar.update(self.task, completed=record.round, round=where, state="  ".join(self._state(record)))
        elif record.round % max(1, math.ceil(self.rounds / LINES)) == 0 or record.round == self.rounds:
            say(errors(), f"{self.title}: ", "", ", ".join([where, *self._state(record)]))

    def _state(self, record: RoundRecord) -> list[str]:
        parts = [] if math.isnan(record.accuracy) else [f"accuracy {record.accuracy:.3f}"]
        if record.measured and not math.isnan(record.measured.summary["forgetting"]):
            parts.append(f"forgetting {record.measured.summary['forgetting']:.3f}")
        if self.last < self.rounds:
            recent = self.spent[-RECENT:]
            parts.append(f"{duration(sum(recent) / len(recent) * (self.rounds - self.last))} left")
        return parts


def left_out(record: RoundRecord) -> str:
    """Which clients a round went without."""
    clients = ", ".join(str(client) for client in record.left_out)
    word = "client" if len(record.left_out) == 1 else "clients"
    return f"round {record.round}: {word} {clients} left out, the update was not finite"


class Runs:
    """Shows several runs at once; `with Runs(...) as listen: compare(..., listen=listen)`."""

    def __init__(self, runs: int, rounds: int, quiet: bool = False) -> None:
        self.runs, self.rounds, self.quiet = runs, rounds, quiet
        self.ended = 0
        self.reached: dict[str, int] = {}  # the last round of each run
        self.begun: tuple[float, int] | None = None  # when the first round ended, and how many there were then
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Runs:
        if errors().is_terminal and not self.quiet:
            self.bar = self._stack.enter_context(on_screen(bar_with("runs", "state")))
            self.task = self.bar.add_task("", total=self.runs * self.rounds, runs=self._count(), state="preparing")
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.close()

    def __call__(self, event: Event) -> None:
        name = event.job.name
        if event.kind == "round":
            self.reached[name] = event.round
        elif event.kind in ("done", "failed"):
            self.reached[name] = self.rounds
            self.ended += 1
        if event.kind == "failed":
            note(f"{name} failed: {event.text}")
        if self.quiet:
            return
        if self.bar and self.task is not None:
            state = f"{name} {event.accuracy:.3f}" if event.kind == "round" else name
            done = sum(self.reached.values())
            self.bar.update(self.task, completed=done, runs=self._count(), state=f"{state}  {self._left(done)}".strip())
        elif event.kind == "done":
            say(errors(), f"{self._count()}: ", "", name)

    def _count(self) -> str:
        return f"run {self.ended}/{self.runs}"

    def _left(self, done: int) -> str:
        now = time.monotonic()
        if self.begun is None:
            self.begun = (now, done)
        start, before = self.begun
        if done <= before or now - start < PATIENCE:
            return ""
        return f"{duration((now - start) / (done - before) * (self.runs * self.rounds - done))} left"
