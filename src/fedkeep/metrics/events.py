"""Forgetting events of centralised training, the yardstick of the FedWAvg paper's Table 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkeep.errors import DataError


class Events(NamedTuple):
    """A number of events under each of the two definitions."""

    accuracy: int
    margin: int


class CentralisedEvents:
    """Counts, per example, how often centralised training forgot it between two looks at it.

    FedWAvg paper, Sec. 3.1: a batch is fed forward, and again after the model was updated by another batch. Its text
    calls it forgotten when it was right and is now wrong, "or if the new margin error is larger than the previous".
    Two definitions, both counted:

        accuracy    right at the last look, wrong now
        margin      that, or a margin error larger than at the last look

    The paper does not define the margin error "between the target and prediction". Here it is 1 - p_y, the gap between
    the target's probability and one (`margin_error`): 0 is certain and right, and it grows with the cross-entropy.
    The first look at an example is never an event. The federated counterpart is `forgettable`.

    >>> events = CentralisedEvents(examples=3)
    >>> events.observe(np.array([0, 1]), np.array([True, True]), np.array([0.2, 0.1]))
    Events(accuracy=0, margin=0)
    >>> events.observe(np.array([0, 1, 2]), np.array([False, True, False]), np.array([0.7, 0.3, 0.9]))
    Events(accuracy=1, margin=2)
    """

    def __init__(self, examples: int) -> None:
        self.accuracy_events = np.zeros(examples, np.int64)
        self.margin_events = np.zeros(examples, np.int64)
        self._right = np.zeros(examples, np.bool_)  # unseen: not right, so it cannot be lost
        self._margin = np.full(examples, np.inf)  # unseen: no margin error is larger

    @property
    def total(self) -> Events:
        """All events so far."""
        return Events(int(self.accuracy_events.sum()), int(self.margin_events.sum()))

    def observe(self, indices: np.ndarray, correct: np.ndarray, margin: np.ndarray) -> Events:
        """Look at some examples (each at most once a call) and count what was forgotten since the last look."""
        indices, correct, margin = np.asarray(indices), np.asarray(correct), np.asarray(margin, np.float64)
        self._check(indices, correct, margin)
        indices = indices.astype(np.intp)
        lost = self._right[indices] & ~correct
        worse = lost | (margin > self._margin[indices])
        self.accuracy_events[indices] += lost
        self.margin_events[indices] += worse
        self._right[indices] = correct
        self._margin[indices] = margin
        return Events(int(np.count_nonzero(lost)), int(np.count_nonzero(worse)))

    def _check(self, indices: np.ndarray, correct: np.ndarray, margin: np.ndarray) -> None:
        count = len(self._right)
        if indices.ndim != 1 or not indices.shape == correct.shape == margin.shape:
            shapes = f"{indices.shape}, {correct.shape}, {margin.shape}"
            raise DataError(f"indices, correct, margin have shapes {shapes}: give one of each per example")
        if correct.dtype != np.bool_:
            raise DataError(f"correct is {correct.dtype}: give right/wrong as a boolean array")
        if not indices.size:
            return
        if indices.dtype.kind not in "iu" or indices.min() < 0 or indices.max() >= count:
            raise DataError(f"indices run from {indices.min()} to {indices.max()}: give integers, 0 ... {count - 1}")
        if len(np.unique(indices)) != len(indices):
            raise DataError("indices name an example twice in one call: observe it once per call")


def margin_error(logits: np.ndarray, labels: np.ndarray) -> NDArray[np.float64]:
    """1 - p_y for each example, p = softmax(logits), summed over the other classes so that small errors stay exact.

    >>> margin_error(np.zeros((1, 4)), np.array([2]))
    array([0.75])
    """
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise DataError(f"shapes {logits.shape}, {labels.shape} do not match: give logits[n, c] and labels[n]")
    weights = np.exp(logits - logits.max(1, keepdims=True))
    target = np.arange(logits.shape[1]) == labels[:, None]
    return np.where(target, 0.0, weights).sum(1) / weights.sum(1)
