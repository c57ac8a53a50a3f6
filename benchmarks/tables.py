"""Tables of measurements, and how thoroughly to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from race import Contender, Outcome, race
from tasks import Sources
from workloads import WORKLOADS, Workload

MEGABYTE = 2**20
TIMES = ("best s/round", "median", "CPU s/round")


@dataclass(frozen=True)
class Settings:
    """How thoroughly to measure."""

    sources: Sources
    peers: tuple[str, ...]
    all_peers: bool = False  # also where they are left out to save time
    repeat: int = 1
    rounds: int = 0  # timed rounds of each contender; 0: as the workload says
    quick: bool = False

    def shape(self, name: str) -> Workload:
        workload = WORKLOADS[name]
        rounds = self.rounds or (1 if self.quick else 0)
        if not rounds:
            return workload
        each = min(rounds, workload.rounds_a_turn)
        return replace(workload, turns=-(-rounds // each), rounds_a_turn=each)


@dataclass(frozen=True)
class Table:
    """A title, what it shows, and rows of text."""

    title: str
    words: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.words, ""]
        if self.rows:
            lines += ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
            lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        lines += ["", *[f"- {note}" for note in self.notes]]
        return "\n".join(lines).rstrip() + "\n"


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def times(outcome: Outcome) -> tuple[str, str, str]:
    """Best and median round, and the processor time of all cores in the best turn."""
    return seconds(outcome.best), seconds(outcome.median), seconds(min(outcome.processor))


def megabytes(value: int) -> str:
    return f"{value / MEGABYTE:.0f} MB"


def held(settings: Settings, contenders: Sequence[Contender], shape: Workload, keep: bool = False) -> list[Outcome]:
    """A race, held as often as the settings say; the rounds of all times together."""
    outcomes = race(contenders, shape.turns, shape.rounds_a_turn, keep)
    for _ in range(settings.repeat - 1):
        for outcome, again in zip(outcomes, race(contenders, shape.turns, shape.rounds_a_turn), strict=True):
            outcome.seconds += again.seconds
            outcome.processor += again.processor
            outcome.memory = max(outcome.memory, again.memory)
            outcome.problem = outcome.problem or again.problem
    return outcomes


def problems(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"{outcome.name} failed: {outcome.problem}" for outcome in outcomes if outcome.problem]
