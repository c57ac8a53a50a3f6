"""Partitions that leave the labels alone: iid, quantity skew, natural."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedkeep.data.partition_core import (
    Integers,
    Partition,
    checked_alpha,
    checked_clients,
    checked_count,
    checked_labels,
    dirichlet_shares,
    largest_remainder,
)
from fedkeep.errors import DataError
from fedkeep.rng import stream


def iid(labels: ArrayLike, clients: int, seed: int = 0) -> Partition:
    """Shuffle and cut: every sample is dealt, sizes differ by at most one."""
    number = len(checked_labels(labels))
    clients = checked_clients("iid", clients, number)
    sizes = np.full(clients, number // clients)
    sizes[: number % clients] += 1
    return _shuffled(sizes, stream(seed, "partition iid"))


def quantity_skew(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Partition:
    """Clients of unequal size, labels iid: sizes ~ Dir(alpha), at least one sample each, every sample dealt.

    One sample goes to each client and the others in proportion to the draw, rounded by largest remainder.
    Source: Li et al. 2022, "Federated Learning on Non-IID Data Silos", Sec. IV-D.
    """
    number = len(checked_labels(labels))
    clients = checked_clients("quantity_skew", clients, number)
    generator = stream(seed, "partition quantity_skew")
    shares = dirichlet_shares(generator, checked_alpha("quantity_skew", alpha), clients, 1)[0]
    return _shuffled(1 + largest_remainder(shares, number - clients), generator)


def natural(groups: ArrayLike, clients: int | None = None) -> Partition:
    """One client per distinct id in `groups` (one id per sample), in sorted order of the ids.

    `clients` keeps only that many, those with the most samples (ties: the lower id); the order stays.

    >>> natural(["b", "a", "b", "c"], clients=2).sizes.tolist()
    [1, 2]
    """
    names = np.asarray(groups)
    if names.ndim != 1 or not len(names):
        raise DataError(f"natural: groups have shape {names.shape}; give one client id per sample")
    _, inverse, sizes = np.unique(names, return_inverse=True, return_counts=True)
    kept = len(sizes) if clients is None else checked_count("natural", "clients", clients)
    if kept > len(sizes):
        raise DataError(f"natural: clients={kept}, but the data comes from {len(sizes)}; use at most that many")
    numbering = np.full(len(sizes), -1)
    numbering[np.sort(np.argsort(-sizes, kind="stable")[:kept])] = np.arange(kept)
    return Partition.from_owners(numbering[inverse], kept)


def _shuffled(sizes: Integers, generator: np.random.Generator) -> Partition:
    """Random samples for clients of the given sizes."""
    owners = np.empty(int(sizes.sum()), dtype=np.int64)
    owners[generator.permutation(len(owners))] = np.repeat(np.arange(len(sizes)), sizes)
    return Partition.from_owners(owners, len(sizes))
