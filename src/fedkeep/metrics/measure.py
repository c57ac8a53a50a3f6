"""One round's forgetting as tables, from who was right on which example.

All arrays run over the same judged examples n: `labels[n]`, `owners[n]` (the client that holds the example),
`before[n]` (the global model that opened the round was right), `local[i][n]` (client i's model after local training),
`after[n]` (the global model that closed the round).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkeep.metrics.forgetting import (
    accuracy_by,
    average,
    decompose_by,
    local_client_forgetting,
    per_class_forgetting,
)

Table = dict[str, np.ndarray]
"""Columns by name, all of one length."""

FLOWS = (
    "right_before",
    "learned_local",
    "forgotten_local",
    "right_local",
    "forgotten_aggregation",
    "forgotten_known",
    "forgotten_new",
    "regained_aggregation",
    "regained",
    "taught_by_others",
    "right_after",
)


@dataclass(frozen=True)
class Measured:
    """A round's forgetting: a row per client, per class, per (model, data) pair, and the summary of all."""

    clients: Table
    classes: Table
    forgetting: Table
    summary: dict[str, float] = field(default_factory=dict)


def measure(
    round: int,
    labels: np.ndarray,
    owners: np.ndarray,
    classes: int,
    before: np.ndarray,
    local: Mapping[int, np.ndarray],
    after: np.ndarray,
    forgettable: Mapping[int, float] | None = None,
    probed: np.ndarray | None = None,
) -> Measured:
    """Measure one round. `local` holds the models of the cohort, `owners` may name clients outside it.

    `probed`: the positions n on which the local models were tried, where not on all; `local[i]` runs over these.
    """
    if probed is None:
        probed = np.arange(len(labels))
    holders, place = np.unique(owners, return_inverse=True)
    models = np.array(sorted(local), dtype=np.int64)
    stack = np.stack([local[int(i)] for i in models]) if len(models) else np.zeros((0, len(probed)), dtype=bool)
    accuracy_before = accuracy_by(before, place, len(holders))
    accuracy_local = accuracy_by(stack, place[probed], len(holders))  # nan for clients that were not probed
    F = local_client_forgetting(accuracy_before, accuracy_local)
    spot = {int(k): position for position, k in enumerate(holders)}
    own = np.array([spot.get(int(i), -1) for i in models], dtype=np.int64)

    own_local = np.zeros(len(labels), dtype=bool)  # each cohort client's own model on its own examples
    mine = np.zeros(len(labels), dtype=bool)
    for row in range(len(models)):
        here = place[probed] == own[row]
        own_local[probed[here]], mine[probed[here]] = stack[row, here], True

    clients = _clients(round, holders, place, before, own_local, after, mine, models, own, F, forgettable or {})
    by_class = _classes(round, classes, labels, before, own_local, after, mine)
    lost = per_class_forgetting(before[probed], stack, labels[probed], classes)
    by_class["forgetting"] = _nanmean(lost)
    pairs = _pairs(round, holders, models, F, accuracy_local, accuracy_before)
    return Measured(clients, by_class, pairs, _summary(clients, F, own, holders, models))


def _clients(round, holders, place, before, own_local, after, mine, models, own, F, forgettable) -> Table:
    count = len(holders)
    cohort = np.isin(holders, models)
    flows = decompose_by(before[mine], own_local[mine], after[mine], place[mine], count)
    by_model = np.full(count, np.nan)
    by_model[own[own >= 0]] = average(F, "model", own)[own >= 0] if len(models) else np.nan
    table: Table = {
        "round": np.full(count, round),
        "client": holders.astype(np.int64),
        "in_cohort": cohort,
        "judged": np.bincount(place, minlength=count),
        "accuracy_before": accuracy_by(before, place, count),
        "accuracy_local": np.where(cohort, accuracy_by(own_local, place, count), np.nan),
        "accuracy_after": accuracy_by(after, place, count),
        "forgetting_by_model": by_model,
        "forgetting_by_data": average(F, "data", own) if len(models) else np.full(count, np.nan),
        "forgettable": np.array([forgettable.get(int(k), np.nan) for k in holders], dtype=float),
    }
    return table | {name: np.where(cohort, getattr(flows, name), 0) for name in FLOWS}


def _classes(round, classes, labels, before, own_local, after, mine) -> Table:
    flows = decompose_by(before[mine], own_local[mine], after[mine], labels[mine], classes)
    table: Table = {
        "round": np.full(classes, round),
        "class": np.arange(classes),
        "judged": np.bincount(labels, minlength=classes),
        "accuracy_before": accuracy_by(before, labels, classes),
        "accuracy_after": accuracy_by(after, labels, classes),
    }
    return table | {name: np.asarray(getattr(flows, name)) for name in FLOWS}


def _pairs(round, holders, models, F, accuracy_local, accuracy_before) -> Table:
    data, model = np.nonzero(~np.isnan(F))
    return {
        "round": np.full(len(data), round),
        "model": models[model],
        "data": holders[data].astype(np.int64),
        "forgetting": F[data, model],
        "accuracy_before": accuracy_before[data],
        "accuracy_local": accuracy_local[model, data],
        "data_in_cohort": np.isin(holders[data], models),
    }


def _summary(clients: Table, F: np.ndarray, own: np.ndarray, holders: np.ndarray, models: np.ndarray) -> dict[str, Any]:
    inside = np.isin(holders, models)
    # positions of each model's own data among the rows that are inside the cohort
    shifted = np.where(own >= 0, np.cumsum(inside)[own] - 1, -1)
    summary = {
        "forgetting": _mean(average(F[inside], "model", shifted)) if len(models) else np.nan,
        "forgetting_outside": _mean(F[~inside]) if len(models) else np.nan,
        "forgettable": float(np.nansum(clients["forgettable"])),
    }
    return summary | {name: float(clients[name].sum()) for name in FLOWS}


def _mean(values: np.ndarray) -> float:
    return float(_nanmean(values.ravel()))


def _nanmean(values: np.ndarray) -> np.ndarray:
    """The mean over the first axis without what is nan; nan where nothing is left, silently."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)
