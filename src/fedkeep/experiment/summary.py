"""A run in a few numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fedkeep.metrics.forgetting import steadiness

LAST = 10  # the papers report the mean of the last rounds, because single rounds swing


def summarise(rounds: pd.DataFrame, target: float = 0.0, last: int = LAST) -> dict[str, float]:
    """Final (mean of the last rounds), best, last, rounds to a target, forgetting, traffic, time."""
    column = {str(name): rounds[name].to_numpy(dtype=float) for name in rounds.columns}
    tail = {name: values[-last:] for name, values in column.items()}
    accuracy = column["accuracy"][~np.isnan(column["accuracy"])]
    reached = column["round"][column["accuracy"] >= target] if target else np.zeros(0)
    steady = steadiness(accuracy) if len(accuracy) > 1 else (math.nan, math.nan)
    return {
        "final": _mean(tail["accuracy"]),  # of the rounds that were judged
        "best": float(accuracy.max()) if len(accuracy) else math.nan,
        "last": float(accuracy[-1]) if len(accuracy) else math.nan,
        "mean": _mean(accuracy),
        "validation": _mean(tail["validation_accuracy"]),
        "rounds_to_target": float(reached[0]) if len(reached) else math.nan,
        "forgetting": _mean(tail.get("forgetting", np.zeros(0))),
        "forgettable": _mean(tail.get("forgettable", np.zeros(0))),
        "change_std": float(steady[0]),
        "largest_drop": float(steady[1]),
        "bytes_up": _mean(column["bytes_up"]),
        "bytes_down": _mean(column["bytes_down"]),
        "seconds": float(column["seconds"].sum()),
    }


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
