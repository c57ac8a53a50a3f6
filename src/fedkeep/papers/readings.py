"""One number of a run.

final        mean of the last rounds that were judged (`last` of them; single rounds swing)
last         the last round
top, mean    the best round; the mean over all rounds
at, until    accuracy at a chosen round; the mean of the rounds up to it
rounds       rounds until the target accuracy is first reached; nan where it never is
stays        the first round from which on every round has the target accuracy; nan where there is none
loss         mean loss of the last rounds
forgetting   mean forgetting of the last rounds (WSM paper, Eq. 5 and 6)
change, drop standard deviation of the round-to-round change of accuracy, and the largest drop
loss_change  standard deviation of the round-to-round change of the loss
validation   mean accuracy of the last rounds on what clients hold out
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedkeep.errors import ConfigError, nearest
from fedkeep.metrics.forgetting import steadiness


@dataclass(frozen=True)
class Asked:
    """What a reading may need to know."""

    last: int = 10
    at: int = 0  # a round of this run
    target: float = 0.0
    held: float = 1.0  # share of the test examples that count


def _judged(rounds: pd.DataFrame, column: str = "accuracy") -> tuple[np.ndarray, np.ndarray]:
    """The rounds in which a column is known, and its values there."""
    numbers, values = rounds["round"].to_numpy(dtype=float), rounds[column].to_numpy(dtype=float)
    known = ~np.isnan(values)
    return numbers[known], values[known]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _tail(rounds: pd.DataFrame, column: str, last: int) -> float:
    """The mean of what is known of the last rounds; where nothing is, the last that is known."""
    numbers, values = _judged(rounds, column)
    recent = values[numbers > rounds["round"].to_numpy(dtype=float).max() - last]
    return _mean(recent if len(recent) else values[-1:])


def _at(rounds: pd.DataFrame, asked: Asked) -> float:
    """The accuracy at a round, or at the first one after it that was judged."""
    numbers, values = _judged(rounds)
    return _mean(values[numbers >= asked.at][:1]) / asked.held


def _until(rounds: pd.DataFrame, asked: Asked) -> float:
    numbers, values = _judged(rounds)
    return _mean(values[numbers <= asked.at]) / asked.held


def _rounds(rounds: pd.DataFrame, asked: Asked) -> float:
    numbers, values = _judged(rounds)
    return _mean(numbers[values / asked.held >= asked.target][:1])


def _stays(rounds: pd.DataFrame, asked: Asked) -> float:
    numbers, values = _judged(rounds)
    below = np.flatnonzero(values / asked.held < asked.target)
    return _mean(numbers[below[-1] + 1 if len(below) else 0 :][:1])


READINGS: dict[str, Callable[[pd.DataFrame, Asked], float]] = {
    "final": lambda rounds, asked: _tail(rounds, "accuracy", asked.last) / asked.held,
    "last": lambda rounds, asked: _mean(_judged(rounds)[1][-1:]) / asked.held,
    "top": lambda rounds, asked: float(_judged(rounds)[1].max(initial=0.0)) / asked.held,
    "mean": lambda rounds, asked: _mean(_judged(rounds)[1]) / asked.held,
    "at": _at,
    "until": _until,
    "rounds": _rounds,
    "stays": _stays,
    "loss": lambda rounds, asked: _tail(rounds, "loss", asked.last),
    "forgetting": lambda rounds, asked: _tail(rounds, "forgetting", asked.last),
    "change": lambda rounds, asked: float(steadiness(_judged(rounds)[1]).change_std) / asked.held,
    "drop": lambda rounds, asked: float(steadiness(_judged(rounds)[1]).largest_drop) / asked.held,
    "loss_change": lambda rounds, asked: float(steadiness(_judged(rounds, "loss")[1]).change_std),
    "validation": lambda rounds, asked: _tail(rounds, "validation_accuracy", asked.last),
}

IN_WORDS = {
    "final": "mean of the last {last} rounds",
    "last": "last round",
    "top": "best round",
    "mean": "mean over all rounds",
    "at": "accuracy at that round",
    "until": "mean of the rounds up to that one",
    "rounds": "rounds to the target accuracy",
    "stays": "round from which on the target accuracy is never lost again",
    "loss": "test loss, mean of the last {last} rounds",
    "forgetting": "forgetting, mean of the last {last} rounds",
    "change": "standard deviation of the change from round to round",
    "drop": "largest drop from one round to the next",
    "loss_change": "standard deviation of the change of the loss",
    "validation": "accuracy on what clients hold out, mean of the last {last} rounds",
}


def read(name: str, rounds: pd.DataFrame, asked: Asked) -> float:
    """One reading of the rounds of a run.

    >>> table = pd.DataFrame({"round": [1, 2, 3], "accuracy": [0.2, 0.6, 0.5]})
    >>> read("final", table, Asked(last=2)), read("rounds", table, Asked(target=0.6)), read("at", table, Asked(at=2))
    (0.55, 2.0, 0.6)
    """
    if name not in READINGS:
        raise ConfigError(f'reading "{name}" is unknown: {nearest(name, READINGS)}')
    return READINGS[name](rounds, asked)
