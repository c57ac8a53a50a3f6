"""What a round does to the clients' examples, per class and in total: learned, forgotten, regained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedkeep.experiment.summary import LAST
from fedkeep.report.curves import at_end
from fedkeep.report.load import RunData
from fedkeep.report.series import Series

# Right before + the first two - the third + the next two - the last two = right after.
LEDGER = (
    ("right_before", "", "right before the round"),
    ("learned_local", "+", "learned by local training"),
    ("forgotten_local", "\N{MINUS SIGN}", "forgotten by local training"),
    ("regained", "+", "regained by aggregation"),
    ("taught_by_others", "+", "taught by others through aggregation"),
    ("forgotten_known", "\N{MINUS SIGN}", "forgotten by aggregation, known before"),
    ("forgotten_new", "\N{MINUS SIGN}", "forgotten by aggregation, just learned"),
    ("right_after", "=", "right after the round"),
)
FLOWS = tuple(name for name, _, _ in LEDGER)


@dataclass(frozen=True, eq=False)
class Classes:
    """Per class, means over the seeds: forgetting and accuracy at the end, flows per round over the whole run."""

    labels: np.ndarray
    forgetting: np.ndarray  # accuracy that local models lose on the class, last ten rounds
    accuracy: np.ndarray  # of the global model on the class, last ten rounds
    learned: np.ndarray  # examples a round, whole run
    forgotten_local: np.ndarray
    forgotten_aggregation: np.ndarray
    regained: np.ndarray


def ledger(series: Series) -> dict[str, float] | None:
    """Examples a round by what happened to them, mean of the last ten rounds; None where it was not recorded."""
    found = {name: at_end(series, name) for name in FLOWS}
    return {name: value.mean for name, value in found.items()} if all(v.known for v in found.values()) else None


def classes(series: Series) -> Classes | None:
    """The series per class; None where it was not recorded."""
    tables = [run_classes(run) for run in series.complete]
    known = [table for table in tables if table is not None]
    if not known:
        return None
    mean: Any = pd.concat(known).groupby(level=0).mean()
    return Classes(labels=mean.index.to_numpy(), **{name: mean[name].to_numpy() for name in mean.columns})


def run_classes(run: RunData) -> pd.DataFrame | None:
    """The columns of `Classes` of one run, a row per class."""
    table = run.classes
    needed = {"class", "forgetting", "accuracy_after", "learned_local", "taught_by_others", "regained"}
    if table is None or table.empty or not needed <= set(table.columns):
        return None
    late = table[table["round"] > run.last_round - LAST].groupby("class")
    whole = table.groupby("class")
    learned = table.assign(learned=table["learned_local"] + table["taught_by_others"]).groupby("class")["learned"]
    return pd.DataFrame(
        {
            "forgetting": late["forgetting"].mean(),
            "accuracy": late["accuracy_after"].mean(),
            "learned": learned.mean(),
            "forgotten_local": whole["forgotten_local"].mean(),
            "forgotten_aggregation": whole["forgotten_aggregation"].mean(),
            "regained": whole["regained"].mean(),
        }
    )


def most_forgotten_data(run: RunData) -> tuple[int, float] | None:
    """The client whose data other clients' models forget most in the last ten rounds, and how much."""
    column = "forgetting_by_data"
    if run.clients is None or column not in run.clients:
        return None
    late = run.clients[run.clients["round"] > run.last_round - LAST]
    means: Any = late.groupby("client")[column].mean()
    means = means.dropna()
    return (int(means.idxmax()), float(means.max())) if len(means) else None


def known_classes(many: Sequence[Series]) -> dict[Series, Classes]:
    """The series that recorded classes."""
    return {series: found for series in many if (found := classes(series)) is not None}


def class_rows(known: Mapping[Series, Classes], column: str) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """All labels, and a column of `Classes` per series over them; nan where a series lacks a label."""
    labels = np.unique(np.concatenate([found.labels for found in known.values()]))
    rows = []
    for series, found in known.items():
        values = np.full(len(labels), np.nan)
        values[np.searchsorted(labels, found.labels)] = getattr(found, column)
        rows.append((series.label, values))
    return labels, rows
