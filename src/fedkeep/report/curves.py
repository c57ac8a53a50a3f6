"""Numbers per round: a band over the seeds, and one number for the end of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from fedkeep.experiment.summary import LAST
from fedkeep.report.load import RunData
from fedkeep.report.series import Series

Unit = Literal["percent", "points", "count", "plain"]


@dataclass(frozen=True)
class Metric:
    """A column of the table `rounds`, and how to speak of it."""

    column: str
    title: str
    unit: Unit
    meaning: str
    better: int = 0  # 1: more is better, -1: less is better


METRICS = {
    metric.column: metric
    for metric in (
        Metric("accuracy", "Test accuracy", "percent", "share of the test examples the global model gets right", 1),
        Metric(
            "validation_accuracy",
            "Accuracy on the clients' judged data",
            "percent",
            "share of what all clients judge models on that the global model gets right",
            1,
        ),
        Metric("loss", "Test loss", "plain", "mean cross-entropy of the global model on the test examples", -1),
        Metric(
            "forgetting",
            "Forgetting F",
            "points",
            "accuracy that local training costs on the data of the round's other clients (WSM paper, Eq. 5 and 6)",
            -1,
        ),
        Metric(
            "forgetting_outside",
            "Forgetting outside the cohort",
            "points",
            "the same on the data of clients that did not take part in the round",
            -1,
        ),
        Metric(
            "forgettable",
            "Forgettable examples",
            "count",
            "training examples that their client's last model knew and the global model it receives does not "
            "(FedWAvg paper), summed over the round's clients; few clients have a last model in the first rounds",
            -1,
        ),
        Metric(
            "forgotten_local",
            "Forgotten by local training",
            "count",
            "judged examples of the round's clients: right before, wrong after the client's own training",
            -1,
        ),
        Metric(
            "forgotten_aggregation",
            "Forgotten by aggregation",
            "count",
            "judged examples of the round's clients: right after the client's own training, wrong after aggregation",
            -1,
        ),
        Metric(
            "regained",
            "Regained by aggregation",
            "count",
            "judged examples of the round's clients: forgotten by local training, right again after aggregation",
            1,
        ),
    )
}
WELL = ("accuracy", "validation_accuracy", "loss")
FORGETS = tuple(name for name in METRICS if name not in WELL)


@dataclass(frozen=True, eq=False)
class Band:
    """A metric over rounds: the mean over the seeds, the least and the greatest."""

    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.mean).any())


def band(series: Series, column: str) -> Band:
    """A metric of a series over rounds; nan where it was not recorded."""
    curves = [_curve(run, column) for run in series.runs]
    return over_seeds([pd.Series(values, index=rounds) for rounds, values in curves])


def over_seeds(curves: list[pd.Series]) -> Band:
    """Curves by round, one per seed, as a band; rounds that no seed knows are left out."""
    table = pd.concat(curves, axis=1).sort_index()
    table = known if len(known := table.dropna(how="all")) else table
    values = (table.index.to_numpy(), table.mean(axis=1), table.min(axis=1), table.max(axis=1))
    return Band(*(np.asarray(value) for value in values), seeds=len(curves))


def _curve(run: RunData, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds of a run, and a metric in each; nan where it was not recorded or is not finite."""
    rounds, first = np.unique(np.asarray(run.rounds["round"]), return_index=True)
    if column not in run.rounds:
        return rounds, np.full(len(rounds), np.nan)
    values = np.asarray(run.rounds[column], dtype=float)[first]
    return rounds, np.where(np.isfinite(values), values, np.nan)


@dataclass(frozen=True)
class PerSeed:
    """One number per seed."""

    by_seed: dict[int, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_seed.values()))) if self.by_seed else math.nan

    @property
    def low(self) -> float:
        return min(self.by_seed.values(), default=math.nan)

    @property
    def high(self) -> float:
        return max(self.by_seed.values(), default=math.nan)

    @property
    def known(self) -> bool:
        return bool(self.by_seed)


def at_end(series: Series, column: str, until: int | None = None) -> PerSeed:
    """The mean of a metric over the last ten rounds (up to `until`), per seed; single rounds swing."""
    found = {}
    for run in series.complete:
        rounds, values = _curve(run, column)
        values = values if until is None else values[rounds <= until]
        late, known = values[-LAST:], values[~np.isnan(values)]
        late = late[~np.isnan(late)]
        late = late if len(late) else known[-1:]  # judged less often than that
        if len(late):
            found[run.seed] = float(late.mean())
    return PerSeed(found)


def gain(series: Series, base: Series, column: str) -> PerSeed:
    """`at_end` of a series minus that of another, seed by seed where both have a seed, at the same round."""
    until = min(series.last_round, base.last_round)
    ours, theirs = at_end(series, column, until).by_seed, at_end(base, column, until).by_seed
    both = [seed for seed in ours if seed in theirs]
    return PerSeed({seed: ours[seed] - theirs[seed] for seed in both})
