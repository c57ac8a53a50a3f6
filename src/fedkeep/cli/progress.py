"""The progress of a run: a bar in a terminal, a few plain lines in a log."""

from __future__ import annotations

import math
import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from fedkeep.cli.console import duration, errors, say
from fedkeep.simulate import RoundRecord

LINES = 10  # at most so many in a log
NARROW = 80


class Watcher:
    """Shows a run's rounds while they happen; `with Watcher(...) as watch: execute(..., listen=watch)`."""

    def __init__(self, title: str, rounds: int, quiet: bool = False) -> None:
        self.title, self.rounds, self.quiet = title, rounds, quiet
        self.last = 0  # the last round that was finished here
        self.begun: tuple[float, int] | None = None
        self.console = errors()
        self.bar = self._bar() if self.console.is_terminal and not quiet else None
        self.task: TaskID | None = None

    def _bar(self) -> Progress:
        numbers = [TextColumn("{task.fields[round]}"), BarColumn(bar_width=None), TextColumn("{task.fields[state]}")]
        columns = numbers if self.console.width < NARROW else [TextColumn("{task.description}", markup=False), *numbers]
        return Progress(*columns, console=self.console, expand=True)

    def __enter__(self) -> Watcher:
        self.begun = (time.monotonic(), 0)
        if self.bar:
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=self.rounds, round="", state="preparing")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def __call__(self, record: RoundRecord) -> None:
        assert self.begun is not None
        if not self.last and record.round > 1:  # a run that goes on: earlier rounds took no time here
            self.begun = (self.begun[0], record.round - 1)
        self.last = record.round
        if self.quiet:
            return
        if record.left_out:
            say(self.console, "note: ", "bold yellow", left_out(record))
        if self.bar and self.task is not None:
            where = f"round {record.round}/{self.rounds}"
            self.bar.update(self.task, completed=record.round, round=where, state=self._state(record))
        elif record.round % max(1, math.ceil(self.rounds / LINES)) == 0 or record.round == self.rounds:
            text = Text(f"{self.title}: round {record.round}/{self.rounds}, {self._state(record)}")
            self.console.print(text, soft_wrap=True)

    def _state(self, record: RoundRecord) -> str:
        parts = [] if math.isnan(record.accuracy) else [f"accuracy {record.accuracy:.3f}"]
        if record.measured and not math.isnan(record.measured.summary["forgetting"]):
            parts.append(f"forgetting {record.measured.summary['forgetting']:.3f}")
        if left := self._time_left():
            parts.append(f"{left} left")
        return "  ".join(parts) if self.bar else ", ".join(parts)

    def _time_left(self) -> str:
        assert self.begun is not None
        start, before = self.begun
        each = (time.monotonic() - start) / (self.last - before)
        return duration(each * (self.rounds - self.last)) if self.last < self.rounds else ""


def left_out(record: RoundRecord) -> str:
    """Which clients a round went without."""
    clients = ", ".join(str(client) for client in record.left_out)
    word = "client" if len(record.left_out) == 1 else "clients"
    return f"round {record.round}: {word} {clients} left out, the update was not finite"
