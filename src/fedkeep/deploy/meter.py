"""Forgetting from counts: the same tables as a simulation's, although no example's outcome leaves its client.

The tables of `fedkeep.metrics.measure` depend on the examples only through counts per client and class. So a set of
stand-in examples with the same counts gives the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedkeep.deploy.answers import Counts
from fedkeep.metrics.measure import Measured, measure


def measure_counts(
    round: int,
    classes: int,
    counts: Mapping[int, Counts],
    models: Sequence[int],
    forgettable: Mapping[int, float],
    probed: Sequence[int] = (),
) -> Measured:
    """Measure a round from what clients counted.

    counts: of every client that answered and knows what the model before the round had right.
    models: the clients whose models were aggregated. probed: the clients that tried all these models (--probe);
    without any, only each client's own model on its own data is known, and F_ki is not.
    """
    holders = sorted(k for k, found in counts.items() if found.before is not None)
    labels, owners, before, after, own = [], [], [], [], []
    for k in holders:
        label, bits = stand_ins(counts[k], classes)
        labels.append(label)
        owners.append(np.full(len(label), k))
        before.append(bits[0])
        own.append(bits[1])
        after.append(bits[2])
    owner = _joined(owners, np.int64)
    asked = list(probed) if probed else [k for k in models if k in holders and counts[k].patterns is not None]
    rows = np.flatnonzero(np.isin(owner, asked))
    local = {i: _local(i, models, counts, owner, own, holders, rows) for i in (models if probed else asked)}
    found = measure(
        round,
        _joined(labels, np.int64),
        owner,
        classes,
        _joined(before, bool),
        local,
        _joined(after, bool),
        forgettable,
        rows,
    )
    return found if probed else without_pairs(found)


def stand_ins(found: Counts, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples with these counts: their labels, and right or wrong [before, local, after]."""
    patterns = found.patterns
    if patterns is None:  # did not train: before and after are only known by themselves
        assert found.before is not None
        label = np.repeat(np.arange(classes), found.judged)
        within = np.concatenate([np.arange(n) for n in found.judged]) if len(found.judged) else np.zeros(0)
        right = [within < np.repeat(n, found.judged) for n in (found.before, found.after)]
        return label, np.stack([right[0], np.zeros(len(label), bool), right[1]])
    before, local, after, label = np.indices(patterns.shape).reshape(4, -1)
    times = patterns.ravel()
    right = [np.repeat(axis, times).astype(bool) for axis in (before, local, after)]
    return np.repeat(label, times), np.stack(right)


def _local(
    model: int,
    models: Sequence[int],
    counts: Mapping[int, Counts],
    owner: np.ndarray,
    own: Sequence[np.ndarray],
    holders: Sequence[int],
    rows: np.ndarray,
) -> np.ndarray:
    """Right or wrong of one client's model on the stand-ins of the probed clients."""
    whole = np.zeros(len(owner), bool)
    place = list(models).index(model)
    for position, k in enumerate(holders):
        here = owner == k
        found = counts[k]
        if k == model and found.patterns is not None:
            whole[here] = own[position]
        elif found.models is not None:
            label, _ = stand_ins(found, len(found.judged))
            whole[here] = _first(label, found.models[place])
    return whole[rows]


def _first(labels: np.ndarray, right: np.ndarray) -> np.ndarray:
    """True for the first right[c] examples of each class c."""
    seen = np.zeros(len(right), np.int64)
    correct = np.zeros(len(labels), bool)
    for n, label in enumerate(labels):
        correct[n] = seen[label] < right[label]
        seen[label] += 1
    return correct


def without_pairs(found: Measured) -> Measured:
    """The measurement without F_ki between different clients, which nobody measured."""
    unknown = {
        name: np.full(len(found.clients[name]), np.nan) for name in ("forgetting_by_model", "forgetting_by_data")
    }
    same = found.forgetting["model"] == found.forgetting["data"]
    return replace(
        found,
        clients={**found.clients, **unknown},
        classes={**found.classes, "forgetting": np.full(len(found.classes["class"]), np.nan)},
        forgetting={name: column[same] for name, column in found.forgetting.items()},
        summary={**found.summary, "forgetting": float("nan"), "forgetting_outside": float("nan")},
    )


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)
