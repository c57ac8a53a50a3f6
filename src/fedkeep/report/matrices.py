"""F_ki of one round as a matrix, and many of them packed for the page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedkeep.report.holders import majority_of
from fedkeep.report.load import RunData, spread
from fedkeep.report.series import Report, Series

SIDE = 100  # models or clients on one side of a matrix; more are thinned out evenly
STEP = 1e-4  # values are packed in steps of this
MISSING = 65535
BUDGET = 1_500_000  # cells on the page, about 4 MB


@dataclass(frozen=True, eq=False)
class Matrix:
    """Accuracies of one round's local models. Rows i are models, columns k the data of clients.

    before[k]: the global model that opened the round on client k's data; local[i, k]: client i's model on it.
    The first len(models) columns are the models' own clients in the same order, so own data is the diagonal;
    clients outside the cohort follow. Clients with the same majority label stand side by side.
    """

    round: int
    models: np.ndarray
    data: np.ndarray
    before: np.ndarray
    local: np.ndarray
    left_out: int = 0  # clients on a side that were thinned out

    @property
    def forgetting(self) -> np.ndarray:
        """F_ki = before_k - local_ik; positive is forgotten (WSM paper, Eq. 5)."""
        return self.before[None, :] - self.local


def matrix(run: RunData, round: int, side: int = SIDE, majority: Mapping[int, int] | None = None) -> Matrix | None:
    """The matrix of a round; None where it was not recorded. `majority`: the label each client has most of."""
    if run.pairs is None:
        return None
    rows = run.pairs[run.pairs["round"] == round]
    if rows.empty:
        return None
    majority = majority_of(run) if majority is None else majority
    models = _sorted(np.unique(rows["model"]), majority)
    outside = _sorted(np.unique(rows.loc[~rows["data_in_cohort"], "data"]), majority)
    thin = spread(models, side)
    data = np.concatenate([thin, spread(outside, side - len(thin))])
    row, column = _places(np.asarray(rows["model"]), thin), _places(np.asarray(rows["data"]), data)
    shown = (row >= 0) & (column >= 0)
    local, before = np.full((len(thin), len(data)), np.nan), np.full(len(data), np.nan)
    local[row[shown], column[shown]] = np.asarray(rows["accuracy_local"], float)[shown]
    before[column[shown]] = np.asarray(rows["accuracy_before"], float)[shown]
    return Matrix(round, thin, data, before, local, len(models) + len(outside) - len(data))


def matrices(run: RunData, rounds: Sequence[int], side: int = SIDE) -> list[Matrix]:
    """The matrices of those rounds that have one."""
    majority = majority_of(run)
    found = (matrix(run, round, side, majority) for round in rounds)
    return [one for one in found if one is not None]


def _places(clients: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The position of each client in `among`, -1 for none."""
    return pd.Index(among).get_indexer(pd.Index(clients))


def _sorted(clients: np.ndarray, majority: Mapping[int, int]) -> np.ndarray:
    return np.array(sorted(clients.tolist(), key=lambda k: (majority.get(k, -1), k)), dtype=np.int64)


def shown_rounds(runs: tuple[RunData, ...]) -> list[int]:
    """The rounds with F_ki in any of the runs."""
    frames = [run.pairs["round"] for run in runs if run.pairs is not None]
    return sorted(int(r) for r in pd.concat(frames).unique()) if frames else []


def pack(values: np.ndarray) -> str:
    """Numbers from 0 to 1 in steps of 1e-4, two bytes each, nan as 65535; base64 of little-endian.

    >>> unpack(pack(np.array([0.0, 0.25, np.nan, 1.0]))).tolist()
    [0.0, 0.25, nan, 1.0]
    """
    whole = np.where(np.isnan(values), MISSING, np.rint(np.nan_to_num(values) / STEP))
    return base64.b64encode(whole.astype("<u2").tobytes()).decode("ascii")


def unpack(text: str) -> np.ndarray:
    """What `pack` packed, flat."""
    whole = np.frombuffer(base64.b64decode(text), dtype="<u2")
    return np.where(whole == MISSING, np.nan, np.round(whole * STEP, 4))


def packed(found: Matrix) -> dict[str, Any]:
    """A matrix for the page's script."""
    return {
        "models": found.models.tolist(),
        "data": found.data.tolist(),
        "before": pack(found.before),
        "local": pack(found.local),
    }


def slider(report: Report, budget: int = BUDGET) -> dict[str, Any]:
    """The matrices of all series for the page's slider: every seed if that fits the budget, else the first.

    What is left out is said in "notes".
    """
    rounds = shown_rounds(report.runs)
    every = {run.seed for series in report.series for run in series.runs if run.pairs is not None}
    seeds, notes = sorted(every), []
    size = sum(0 if run.pairs is None else len(run.pairs) for run in report.runs)
    if size > budget and len(seeds) > 1:
        notes.append(f"Only seed {seeds[0]} is here, to keep the page small.")
        size = size // len(seeds)
        seeds = seeds[:1]
    if size > budget:
        rounds = spread(np.array(rounds), max(2, len(rounds) * budget // size)).tolist()
        notes.append(f"Only {len(rounds)} rounds are here, to keep the page small.")
    panels = [_panel(series, seeds, rounds) for series in report.series]
    left_out = max((run.pop("left_out") for panel in panels for run in panel["runs"].values()), default=0)
    if left_out:
        notes.append(f"{left_out} clients are left out of a matrix, evenly, so that cells stay visible.")
    return {"rounds": rounds, "seeds": seeds, "panels": panels, "notes": notes}


def _panel(series: Series, seeds: Sequence[int], rounds: Sequence[int]) -> dict[str, Any]:
    runs = {}
    for run in series.runs:
        found = matrices(run, rounds) if run.seed in seeds else []
        if found:
            frames = {str(one.round): packed(one) for one in found}
            majority = {str(client): label for client, label in majority_of(run).items()}
            left_out = max(one.left_out for one in found)
            runs[str(run.seed)] = {"frames": frames, "majority": majority, "left_out": left_out}
    return {"label": series.label, "runs": runs}
