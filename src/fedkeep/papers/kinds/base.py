"""What all kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pandas as pd
import plotly.graph_objects as go

from fedkeep.papers.cells import FACTORS, Cell, Table
from fedkeep.papers.expand import Arm, Place, Plan, Row
from fedkeep.papers.recipe import Number
from fedkeep.papers.store import Finished, Store

NOT_RUN = "not run"
KEPT = (
    "round",
    "accuracy",
    "loss",
    "validation_accuracy",
    "forgetting",
    "forgetting_outside",
    "forgettable",
    "bytes_up",
    "bytes_down",
    "seconds",
)


@dataclass
class Outcome:
    """What came out: tables (the paper's first), a figure, what the reader should know, and raw records."""

    tables: list[Table]
    figure: go.Figure | None = None
    remarks: list[str] = field(default_factory=list)
    records: dict[str, pd.DataFrame] = field(default_factory=dict)


@dataclass(eq=False)
class Context:
    """A plan and the runs that were made of it."""

    plan: Plan
    store: Store
    jobs: int = 0
    run: bool = True  # may what is missing be trained

    @property
    def recipe(self):
        return self.plan.recipe

    @cached_property
    def _runs(self) -> dict[tuple[str, str], dict[int, Finished]]:
        found: dict[tuple[str, str], dict[int, Finished]] = {}
        seen: dict[str, Finished | None] = {}
        for arm in self.plan.arms:
            runs = {}
            for seed in self.plan.seeds:
                config = replace(arm.config, seed=seed)
                name = self.store.name(config)
                if name not in seen:
                    seen[name] = self.store.finished(config)
                if (run := seen[name]) is not None:
                    runs[seed] = run
            found[arm.row.name, arm.place.name] = runs
        return found

    def runs(self, row: Row, place: Place) -> dict[int, Finished]:
        """The finished runs of a cell by seed."""
        return self._runs.get((row.name, place.name), {})

    @property
    def all_runs(self) -> dict[str, Finished]:
        """Every finished run once, by its name."""
        everything = [run for runs in self._runs.values() for run in runs.values()]
        return {str(run.path.relative_to(self.store.folder)): run for run in everything}

    def number(self, row: str, column: str) -> Number:
        """What the paper has there."""
        return self.recipe.numbers.get((row, column), Number())

    def arm_at(self, place: Place) -> Arm:
        """Any arm of a column."""
        return next(arm for arm in self.plan.arms if arm.place == place)

    def cell(self, row: Row, column: str, values: Mapping[int, float], unit: str, never: float | None = None) -> Cell:
        """A cell with the paper's number beside ours; shares become percent where these are the unit."""
        factor = FACTORS.get(unit, 1.0)
        scaled = {seed: factor * value for seed, value in values.items()}
        paper = self.number(row.name, column)
        return Cell(row.name, column, scaled, paper, unit, never, row.label, row.at)

    def missing(self, row: Row, column: str, unit: str) -> Cell:
        """A cell that could not be run."""
        paper = self.number(row.name, column)
        return Cell(row.name, column, {}, paper, unit, label=row.label, at=row.at, text=NOT_RUN)

    def grid(
        self,
        title: str,
        columns: Sequence[str],
        value: Callable[[Finished, Row, str], float],
        at: Callable[[str], Place],
        unit: str = "share",
    ) -> Table:
        """A table with a number of a run in each cell; `at` says which of the recipe's columns a column belongs to."""
        cells = {}
        for row in self.plan.rows:
            for column in columns:
                values = {seed: value(run, row, column) for seed, run in self.runs(row, at(column)).items()}
                cells[row.name, column] = self.cell(row, column, values, unit)
        return Table(title, [row.name for row in self.plan.rows], list(columns), cells)

    def records(self) -> pd.DataFrame:
        """The rounds of all runs, one under the other."""
        frames = []
        for name, run in self.all_runs.items():
            kept = [column for column in KEPT if column in run.rounds]
            frame = run.rounds[kept].astype({column: "float32" for column in kept if column != "round"})
            frames.append(frame.assign(run=name.rpartition("/")[0], seed=run.config.seed))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def chosen_rounds(arm: Arm, rounds: Sequence[int]) -> list[str]:
    """Which of our rounds stand for the chosen rounds of the paper, where they are not the same."""
    here = [arm.here(number) for number in rounds]
    if here == list(rounds):
        return []
    stand = ", ".join(map(str, here))
    return [f"rounds {', '.join(map(str, rounds))} of {arm.paper_rounds} stand as {stand} of {arm.config.rounds}"]
