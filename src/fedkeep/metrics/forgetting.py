"""Forgetting as pure functions of arrays: who lost what, in local training or in the aggregation.

Axes: k is the client whose data is asked about, i the client whose model answers, n the examples. One sign everywhere:
positive is forgotten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkeep.errors import ConfigError, DataError, nearest
from fedkeep.metrics.events import CentralisedEvents as CentralisedEvents

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.integer[Any]]


def local_client_forgetting(before: np.ndarray, after: np.ndarray) -> Floats:
    """What each local training cost on each client's data: F[k, i], positive where it forgot.

    WSM paper, Eq. (5): F_ki = Acc_k(w_{t-1}) - Acc_k(w_t^i).
    before[k]: accuracy of the round's first global model on client k's data; after[i, k]: of client i's local model.
    The TCE paper writes the opposite sign. A client without held-out data has accuracy NaN, and a row of NaN.

    >>> local_client_forgetting(np.array([0.5, 0.75]), np.array([[1.0, 0.25], [0.5, 1.0]]))
    array([[-0.5 ,  0.  ],
           [ 0.5 , -0.25]])
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if before.ndim != 1 or after.ndim != 2 or after.shape[1] != len(before):
        raise DataError(f"shapes {before.shape}, {after.shape} do not match: give before[k] and after[i, k]")
    return before[:, None] - after.T


def average(F: np.ndarray, by: Literal["model", "data"] = "model", own: np.ndarray | None = None) -> Floats:
    """Average forgetting per client, its own model on its own data left out.

    WSM paper, Eq. (6): F_k = 1/(K-1) sum_{i != k} F_ki. The equation averages over models for each client's data
    (by="data"), the prose speaks of a client's model (by="model": for each i the mean over k != i).
    own[i]: the row k that holds model i's own data, -1 for none; without it F is square and own[i] = i.
    NaN entries are left out; where nothing is left (one client only) the average is NaN.

    >>> F = np.array([[0.0, 0.5], [0.25, 0.0]])
    >>> average(F), average(F, by="data")
    (array([0.25, 0.5 ]), array([0.5 , 0.25]))
    """
    F = np.asarray(F, np.float64)
    if by not in ("model", "data"):
        raise ConfigError(f'by="{by}" is no average: {nearest(by, ("model", "data"))}')
    counted = ~np.isnan(F) & _others(F.shape, own)
    axis = 0 if by == "model" else 1
    return _ratio(np.where(counted, F, 0.0).sum(axis), counted.sum(axis))


def forgettable(local_correct: np.ndarray, global_correct: np.ndarray) -> int:
    """How many examples the client's own last model got right and the global model gets wrong.

    FedWAvg paper, Sec. 3.1 and Algorithm 1, line 11.

    >>> forgettable(np.array([True, True, False]), np.array([True, False, False]))
    1
    """
    local_correct, global_correct = _alike(local_correct=local_correct, global_correct=global_correct)
    return int(np.count_nonzero(local_correct & ~global_correct))


def accuracy_by(correct: np.ndarray, groups: np.ndarray, count: int) -> Floats:
    """Accuracy per group of examples (client or class), NaN where a group is empty.

    correct[..., n]: right or wrong, any stack of models; groups[n]: 0 ... count-1. Gives [..., count].

    >>> accuracy_by(np.array([True, False, True]), np.array([0, 0, 2]), 3)
    array([0.5, nan, 1. ])
    """
    (correct,) = _alike(correct=correct)
    groups = _groups(groups, count, correct.shape[-1:])
    stack = correct.shape[:-1]
    models = math.prod(stack)
    model, example = np.nonzero(correct.reshape(models, len(groups)))
    right = np.bincount(model * count + groups[example], minlength=models * count)
    return _ratio(right.reshape(*stack, count), np.bincount(groups, minlength=count))


def per_class_forgetting(before: np.ndarray, after: np.ndarray, labels: np.ndarray, classes: int) -> Floats:
    """Accuracy lost per class from the global model to local ones: [..., classes], NaN for absent classes.

    Eq. (5) of the WSM paper with the examples of one class in place of one client's.
    before[n]: right or wrong under the global model; after[..., n]: under any stack of local models.
    """
    return accuracy_by(before, labels, classes) - accuracy_by(after, labels, classes)


@dataclass(frozen=True, eq=False)
class Decomposition:
    """What one round did to the same examples, first by local training, then by aggregation.

    counts[before, local, after] (1 right, 0 wrong; a last axis for groups where there are any) counts examples by the
    global model that opened the round, the client's own model, and the global model that closed it. The sums add up:

        right_after = right_before + learned_local - forgotten_local + regained_aggregation - forgotten_aggregation
        regained_aggregation = regained + taught_by_others
        forgotten_aggregation = forgotten_known + forgotten_new
    """

    counts: NDArray[np.int64]

    def to_dict(self) -> dict[str, Any]:
        """Every named sum as a plain number, or a list of one per group."""
        sums = [name for name, value in vars(type(self)).items() if isinstance(value, property)]
        return {name: getattr(self, name).tolist() for name in sums}

    @property
    def total(self) -> Any:
        return self.counts.sum((0, 1, 2))

    @property
    def right_before(self) -> Any:
        return self.counts[1].sum((0, 1))

    @property
    def right_local(self) -> Any:
        return self.counts[:, 1].sum((0, 1))

    @property
    def right_after(self) -> Any:
        return self.counts[:, :, 1].sum((0, 1))

    @property
    def learned_local(self) -> Any:
        """Wrong before, right after local training."""
        return self.counts[0, 1].sum(0)

    @property
    def forgotten_local(self) -> Any:
        """Right before, wrong after local training."""
        return self.counts[1, 0].sum(0)

    @property
    def forgotten_aggregation(self) -> Any:
        """Right locally, wrong after aggregation."""
        return self.counts[:, 1, 0].sum(0)

    @property
    def regained_aggregation(self) -> Any:
        """Wrong locally, right after aggregation."""
        return self.counts[:, 0, 1].sum(0)

    @property
    def regained(self) -> Any:
        """Known before, forgotten locally, right again after aggregation."""
        return self.counts[1, 0, 1]

    @property
    def taught_by_others(self) -> Any:
        """Never known here, right after aggregation."""
        return self.counts[0, 0, 1]

    @property
    def forgotten_known(self) -> Any:
        """Right before and locally, lost in the aggregation."""
        return self.counts[1, 1, 0]

    @property
    def forgotten_new(self) -> Any:
        """Just learned locally, lost in the aggregation."""
        return self.counts[0, 1, 0]


def decompose(before: np.ndarray, local: np.ndarray, after: np.ndarray) -> Decomposition:
    """Counts of the eight right/wrong patterns over the same examples; see `Decomposition`.

    >>> right, wrong = np.array([True]), np.array([False])
    >>> int(decompose(right, wrong, right).regained)
    1
    """
    before, local, after = _alike(before=before, local=local, after=after)
    return Decomposition(
        _patterns(before.ravel(), local.ravel(), after.ravel(), np.zeros(before.size, np.intp), 1)[..., 0]
    )


def decompose_by(
    before: np.ndarray, local: np.ndarray, after: np.ndarray, groups: np.ndarray, count: int
) -> Decomposition:
    """`decompose` for each group of examples (client or class): every field is an array [count]."""
    before, local, after = _alike(before=before, local=local, after=after)
    return Decomposition(_patterns(before, local, after, _groups(groups, count, before.shape), count))


class Steadiness(NamedTuple):
    change_std: float
    largest_drop: float


def steadiness(accuracy: np.ndarray) -> Steadiness:
    """How much a curve of accuracies swings: standard deviation (ddof 0) of the round-to-round change, largest drop.

    Puts a number on the FedWAgg paper's "steadier". A curve that never falls has drop 0; changes from or to a NaN are
    left out; without any change both are NaN.

    >>> steadiness(np.array([0.5, 1.0, 0.5]))
    Steadiness(change_std=0.5, largest_drop=0.5)
    """
    accuracy = np.asarray(accuracy, np.float64)
    if accuracy.ndim != 1:
        raise DataError(f"accuracy has shape {accuracy.shape}: give one number a round")
    change = np.diff(accuracy)
    change = change[~np.isnan(change)]
    if not change.size:
        return Steadiness(float("nan"), float("nan"))
    return Steadiness(float(change.std()), float(max(0.0, -change.min())))


def personalised(logits: np.ndarray, class_counts: np.ndarray) -> NDArray[np.intp]:
    """Predictions for one client from a global model: argmax_c f_c + log beta_c, beta the client's label shares.

    WSM paper, A.4. logits[..., c], class_counts[c] of the client's training labels. Classes it lacks have beta = 0 and
    are never predicted; equal counts give the plain argmax.

    >>> personalised(np.array([[2.0, 1.0, 9.0]]), np.array([1, 9, 0]))
    array([1])
    """
    logits, class_counts = np.asarray(logits), np.asarray(class_counts, np.float64)
    if class_counts.ndim != 1 or logits.shape[-1:] != class_counts.shape:
        raise DataError(
            f"shapes {logits.shape}, {class_counts.shape} do not match: give logits[..., c], class_counts[c]"
        )
    if not (class_counts >= 0).all() or not class_counts.any():
        raise DataError(f"class_counts={class_counts.tolist()}: they must be at least 0, and one of them more")
    present = np.flatnonzero(class_counts)
    return present[(logits[..., present] + np.log(class_counts[present])).argmax(-1)]


def _others(shape: tuple[int, ...], own: np.ndarray | None) -> Bools:
    """True where model i meets data that is not its own."""
    if len(shape) != 2 or (own is None and shape[0] != shape[1]):
        raise DataError(f"F has shape {shape}: give a square F[k, i], or own[i], the row of model i's own data")
    own = np.arange(shape[1]) if own is None else np.asarray(own)
    if own.shape != shape[1:] or own.dtype.kind not in "iu" or np.any((own < -1) | (own >= shape[0])):
        raise DataError(f"own={own.tolist()} does not fit F of shape {shape}: give a row per model, -1 for none")
    return np.arange(shape[0])[:, None] != own


def _alike(**arrays: np.ndarray) -> tuple[Bools, ...]:
    """Right/wrong arrays of one shape, with at least one axis, or an error that names them."""
    checked = tuple(np.asarray(array) for array in arrays.values())
    for name, array in zip(arrays, checked, strict=True):
        if array.dtype != np.bool_ or array.ndim == 0:
            raise DataError(f"{name} is {array.dtype} of shape {array.shape}: give right/wrong as a boolean array")
    if len({array.shape for array in checked}) > 1:
        raise DataError(f"{', '.join(arrays)} have shapes {[a.shape for a in checked]}: give the same examples to each")
    return checked


def _groups(groups: np.ndarray, count: int, shape: tuple[int, ...]) -> Integers:
    groups = np.asarray(groups)
    if groups.shape != shape or groups.ndim != 1:
        raise DataError(f"groups has shape {groups.shape}, the examples {shape}: give one group number per example")
    if not groups.size:
        return groups.astype(np.intp)
    if groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= count:
        raise DataError(f"groups holds {groups.dtype} from {groups.min()} to {groups.max()}: give 0 ... {count - 1}")
    return groups.astype(np.intp)


def _patterns(before: Bools, local: Bools, after: Bools, groups: Integers, count: int) -> NDArray[np.int64]:
    """counts[before, local, after, group]."""
    code = before * np.intp(4) + local * np.intp(2) + after
    return np.bincount(code * count + groups, minlength=8 * count).astype(np.int64).reshape(2, 2, 2, count)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> Floats:
    """numerator / denominator, NaN where there is nothing to divide by."""
    denominator = np.broadcast_to(denominator, numerator.shape)
    return np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator > 0)
