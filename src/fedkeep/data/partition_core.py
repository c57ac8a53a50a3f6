"""What a partition is: which training samples each client holds, and how uneven that turned out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkeep.errors import ConfigError, DataError
from fedkeep.rng import stream

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Skew:
    """How uneven a partition turned out. Means run over the clients that hold at least one sample."""

    clients: int
    classes_per_client: float  # mean number of distinct labels
    distance: float  # mean total variation distance to the label share of all dealt samples, 0 ... 1
    effective_classes: float  # exp(mean entropy of the client's label share)
    smallest: int
    largest: int

    def describe(self) -> str:
        """One line for a log or a report.

        >>> Skew(4, 2.0, 0.5, 1.8, 10, 12).describe()
        '4 clients of 10 to 12 samples; 2.0 classes each (effective 1.8); label distance 0.50 from the global share'
        """
        size = f"{self.smallest}" if self.smallest == self.largest else f"{self.smallest} to {self.largest}"
        return (
            f"{self.clients} clients of {size} samples; {self.classes_per_client:.1f} classes each "
            f"(effective {self.effective_classes:.1f}); label distance {self.distance:.2f} from the global share"
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """The training samples of every client, back to back in one array.

    Client k holds index[offsets[k]:offsets[k + 1]]. The makers keep each client's indices ascending and
    never give a sample to two clients; a sample may belong to nobody.

    >>> partition = Partition.from_owners([1, 0, -1, 1], clients=2)
    >>> [partition.indices(k).tolist() for k in range(len(partition))]
    [[1], [0, 3]]
    """

    index: Integers
    offsets: Integers

    def __post_init__(self) -> None:
        index, offsets = (np.asarray(values, dtype=np.int64) for values in (self.index, self.offsets))
        fits = offsets.ndim == 1 and len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(index)
        if index.ndim != 1 or not fits or (np.diff(offsets) < 0).any():
            raise DataError(
                f"Partition: offsets of shape {offsets.shape} do not cut an index of shape {index.shape} into clients; "
                "offsets must be one-dimensional, begin with 0, never fall, and end with len(index)"
            )
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "offsets", offsets)

    @staticmethod
    def from_owners(owners: ArrayLike, clients: int) -> Partition:
        """The partition in which sample i belongs to client owners[i]; -1 means nobody."""
        owner = np.asarray(owners, dtype=np.int64)
        order = np.argsort(owner, kind="stable")
        dealt = order[np.searchsorted(owner, 0, sorter=order) :]
        sizes = np.bincount(owner[dealt], minlength=clients)
        return Partition(dealt, np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Integers:
        """Number of samples of each client."""
        return np.diff(self.offsets)

    def indices(self, client: int) -> Integers:
        """The sample indices of one client, a view."""
        if not 0 <= client < len(self):
            raise ConfigError(f"client {client} does not exist: this partition has clients 0 to {len(self) - 1}")
        return self.index[self.offsets[client] : self.offsets[client + 1]]

    def label_counts(self, labels: ArrayLike, classes: int | None = None) -> Integers:
        """Samples per client and class, [clients, classes]; classes defaults to the largest label + 1."""
        values = checked_labels(labels)
        width = int(values.max()) + 1 if classes is None else classes
        if width <= values.max():
            raise DataError(
                f"label_counts: label {values.max()} does not fit classes={width}; give at least the largest label + 1"
            )
        if len(self.index) and self.index.max() >= len(values):
            raise DataError(
                f"label_counts: the partition refers to sample {self.index.max()}, there are {len(values)} labels; "
                "pass the labels the partition was made from"
            )
        client = np.repeat(np.arange(len(self)), self.sizes)
        counts = np.bincount(client * width + values[self.index], minlength=len(self) * width)
        return counts.reshape(len(self), width)

    def skew(self, labels: ArrayLike) -> Skew:
        """What was achieved, whatever was asked for.

        With q_k the label share of client k and q that of all dealt samples:

            distance          = mean_k 1/2 sum_c |q_k(c) - q(c)|
            effective_classes = exp( mean_k - sum_c q_k(c) log q_k(c) )

        Equal shares everywhere: distance 0, and the effective number of classes is exp(entropy of q).
        """
        counts = self.label_counts(labels)
        sizes = self.sizes
        filled = counts[sizes > 0]
        if not len(filled):
            raise DataError("skew: no client of this partition holds a sample; nothing to describe")
        share = filled / filled.sum(axis=1, keepdims=True)
        everyone = filled.sum(axis=0) / filled.sum()
        entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1)
        return Skew(
            clients=len(self),
            classes_per_client=float((filled > 0).sum(axis=1).mean()),
            distance=float(0.5 * np.abs(share - everyone).sum(axis=1).mean()),
            effective_classes=float(np.exp(entropy.mean())),
            smallest=int(sizes.min()),
            largest=int(sizes.max()),
        )


def checked_labels(labels: ArrayLike) -> Integers:
    """Labels as int64, refused unless they are a non-empty row of integers that starts at 0 or above."""
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise DataError(
            f"labels have shape {values.shape}; a partition needs one label per sample, at least one sample"
        )
    if values.dtype.kind not in "iu":
        raise DataError(f"labels are {values.dtype}; a partition needs whole numbers 0, 1, ...: convert them to int64")
    if values.min() < 0:
        where = int(np.argmin(values))
        raise DataError(f"label {values[where]} at sample {where} is negative; number the classes from 0")
    return values.astype(np.int64, copy=False)


def checked_count(where: str, name: str, value: object, least: int = 1) -> int:
    """A whole number that is at least `least`, refused with its place otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{where}: {name}={value!r} is not a whole number of at least {least}")
    return int(value)


def checked_clients(where: str, clients: int, samples: int) -> int:
    """A number of clients that can have a sample each."""
    if checked_count(where, "clients", clients) > samples:
        raise DataError(f"{where}: {clients} clients but only {samples} samples; use at most clients={samples}")
    return int(clients)


def split_validation(partition: Partition, fraction: float, seed: int) -> tuple[Partition, Partition]:
    """Hold out a random part of each client's own samples: (training part, validation part).

    Client k with n samples gives floor(n * fraction) to validation, drawn from stream(seed, "validation",
    client=k), so that it does not depend on who else there is. Too few samples: its validation part is empty.
    The training part is never emptied.
    """
    chosen = np.zeros(len(partition.index), dtype=bool)
    held = np.zeros(len(partition), dtype=np.int64)
    for client, size in enumerate(partition.sizes.tolist()):
        mask = held_out(size, fraction, seed, client)
        if mask is not None:
            chosen[partition.offsets[client] : partition.offsets[client + 1]] = mask
            held[client] = mask.sum()
    kept = np.concatenate([[0], np.cumsum(partition.sizes - held)])
    return (
        Partition(partition.index[~chosen], kept),
        Partition(partition.index[chosen], np.concatenate([[0], np.cumsum(held)])),
    )


def held_out(size: int, fraction: float, seed: int, client: int) -> NDArray[np.bool_] | None:
    """Which of a client's `size` samples it holds out; None where that is none of them. See `split_validation`."""
    checked_fraction(fraction)
    # 1e-9: 0.29 * 100 is 28.999999999999996 in floating point and means 29
    held = min(math.floor(size * fraction + 1e-9), size - 1)
    if held <= 0:
        return None
    mask = np.zeros(size, dtype=bool)
    mask[stream(seed, "validation", client=client).choice(size, held, replace=False, shuffle=False)] = True
    return mask


def checked_fraction(fraction: float) -> float:
    """A share to hold out."""
    if not 0 <= fraction < 1:
        raise ConfigError(f"validation fraction {fraction!r} is outside [0, 1); 0.1 holds out a tenth of each client")
    return fraction


def largest_remainder(shares: ArrayLike, total: int) -> Integers:
    """Whole numbers proportional to `shares` (they sum to 1 along the last axis) that sum exactly to `total`.

    Each gets the floor of its quota; what is left goes to the largest fractional parts, ties to the first.

    >>> largest_remainder([0.5, 0.25, 0.25], 5).tolist()
    [3, 1, 1]
    """
    quota = np.asarray(shares, dtype=np.float64) * total
    whole = np.floor(quota + 1e-9).astype(np.int64)
    missing = total - whole.sum(axis=-1, keepdims=True)
    # rounding: equal shares must tie although their floating point remainders differ in the last bit
    order = np.argsort(-np.round(quota - whole, 9), axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1)
    return whole + (rank < missing)


def dirichlet_shares(generator: np.random.Generator, alpha: float, parts: int, size: int) -> NDArray[np.float64]:
    """Draws from the symmetric Dirichlet distribution, [size, parts]; every row is finite and sums to 1."""
    shares = generator.dirichlet(np.full(parts, alpha), size=size)
    # a concentration beyond what floats hold gives nan: its limit is the uniform share
    return np.where(np.isfinite(shares).all(axis=1, keepdims=True), shares, 1.0 / parts)


def checked_alpha(where: str, alpha: float) -> float:
    """A finite concentration above 0."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number) or not 0 < alpha < math.inf:
        raise ConfigError(
            f"{where}: alpha={alpha!r} is not a finite number above 0; try alpha=0.1 (strong skew) or 100"
        )
    return float(alpha)
