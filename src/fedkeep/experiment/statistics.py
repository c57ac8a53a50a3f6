"""Means with intervals, paired differences and corrected p-values: pure functions of arrays.

One number per seed. Methods that ran with the same seed had the same partition, initial weights and cohorts, so their
numbers are compared seed by seed; what the seed does to both cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its interval; the interval is nan where one value alone cannot give one."""

    mean: float
    low: float
    high: float
    count: int  # values that are not nan
    missing: int = 0  # values that are nan, e.g. a target that was never reached

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, its interval, and how likely one as large is if there is none."""

    mean: float
    low: float
    high: float
    p: float
    count: int  # pairs


def mean_interval(values: ArrayLike, level: float = LEVEL) -> Estimate:
    """Mean with Student's t-interval: m +- t(n - 1) s / sqrt(n).

    What is nan is counted and left out. One value has no interval, none has no mean.

    >>> mean_interval([0.5, 0.5, float("nan")])
    Estimate(mean=0.5, low=0.5, high=0.5, count=2, missing=1)
    >>> mean_interval([0.5])
    Estimate(mean=0.5, low=nan, high=nan, count=1, missing=0)
    """
    given = np.asarray(values, dtype=float)
    known = given[~np.isnan(given)]
    count, missing = len(known), int(np.isnan(given).sum())
    if count == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, missing)
    mean = float(known.mean())
    if count == 1:
        return Estimate(mean, math.nan, math.nan, 1, missing)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * _spread(known) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, missing)


def paired_difference(values: ArrayLike, reference: ArrayLike, level: float = LEVEL) -> Difference:
    """Mean of values - reference, pair by pair, with t-interval and the p-value of the paired t-test.

    Pairs with a nan are left out. Where all differences are exactly zero, p = 1 and the interval is [0, 0]. Where all
    are equal but not zero there is no spread to judge by, and the exact sign-flip test takes the place of the t-test:
    p = 2 / 2^n. It is not used otherwise, because with n seeds it never goes below that: 0.0625 with five.

    >>> paired_difference([0.8, 0.7], [0.8, 0.7])
    Difference(mean=0.0, low=0.0, high=0.0, p=1.0, count=2)
    """
    left, right = np.asarray(values, dtype=float), np.asarray(reference, dtype=float)
    if left.shape != right.shape:
        raise ValueError(f"{left.size} values and {right.size} references cannot be paired; give one of each per seed")
    differences = left - right
    differences = differences[~np.isnan(differences)]
    estimate = mean_interval(differences, level)
    return Difference(estimate.mean, estimate.low, estimate.high, _p_value(differences), estimate.count)


def _p_value(differences: np.ndarray) -> float:
    count = len(differences)
    if count < 2:
        return math.nan
    if not differences.any():
        return 1.0
    spread = _spread(differences)
    if spread == 0:
        return 2.0 ** (1 - count)
    t = float(differences.mean()) / (spread / math.sqrt(count))
    return float(2 * stdtr(count - 1, -abs(t)))


def _spread(values: np.ndarray) -> float:
    """Standard deviation (n - 1); zero where the values differ by no more than rounding."""
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        return 0.0
    return float(values.std(ddof=1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for the number of comparisons (Holm 1979).

    The i-th smallest of m is multiplied by m - i + 1, and none is smaller than one before it.

    What is nan is no comparison and stays nan.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    corrected = [math.nan] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[index] = largest
    return corrected
