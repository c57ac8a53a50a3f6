"""Partitions that skew the labels: Dirichlet, shards, label clusters, label ratios."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from fedkeep.errors import ConfigError, DataError, nearest
from fedkeep.rng import stream

# share of the (first, second, third, any other) label of a client; written for ten classes, where they sum to 1
PRESETS = {"two-majors": (0.45, 0.45, 0.03, 0.01), "one-major": (0.9, 0.02, 0.01, 0.01)}


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Partition:
    """Clients of equal size whose class mix is drawn from a symmetric Dirichlet distribution.

    Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", Sec. 3: client after client draws q_k ~ Dir(alpha, ..., alpha) and then samples without
    replacement, each sample's class from q_k; when a class runs out, q_k is renormalised over what is left.
    Every client ends with n = floor(N / clients) samples; N mod clients samples belong to nobody.

    alpha -> infinity: every client draws from all classes alike; alpha -> 0: one class each, while it lasts.
    Differs from the paper: where q_k has no mass at all on what is left, the classes left are drawn uniformly.
    """
    values = checked_labels(labels)
    each = len(values) // checked_clients("dirichlet", clients, len(values))
    alpha = checked_alpha("dirichlet", alpha)
    generator = stream(seed, "partition dirichlet")
    left = np.bincount(values)
    mixes = dirichlet_shares(generator, alpha, len(left), clients)
    counts = np.zeros((clients, len(left)), dtype=np.int64)
    for client in range(clients):
        counts[client] = _draw_without_replacement(generator, mixes[client], left, each)
        left -= counts[client]
    return _deal(values, counts, generator)


def _draw_without_replacement(generator: np.random.Generator, mix: ArrayLike, left: Integers, size: int) -> Integers:
    """How many of each class `size` draws take from `left`, class by class from `mix` over what is left.

    Draws that fall on a class beyond its last sample are drawn again from the renormalised mix, which has the
    distribution of one draw after the other. Each pass but the last empties a class, so it ends.
    """
    taken = np.zeros_like(left)
    while missing := size - int(taken.sum()):
        open_classes = taken < left
        mass = np.where(open_classes, mix, 0.0)
        cumulated = np.cumsum(mass if mass.any() else open_classes.astype(np.float64))
        # inverse transform: a class without mass has no width and is never hit, even at the ends
        hits = np.searchsorted(cumulated / cumulated[-1], generator.random(missing), side="right")
        taken = np.minimum(taken + np.bincount(hits, minlength=len(left)), left)
    return taken


def shards(labels: ArrayLike, clients: int, shards_per_client: int = 2, seed: int = 0) -> Partition:
    """Sort by label, cut into clients * shards_per_client shards, deal them out at random.

    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Sec. 3.
    Where the samples do not divide evenly, shard sizes differ by one and no sample is lost.
    """
    values = checked_labels(labels)
    clients = checked_count("shards", "clients", clients)
    number = clients * checked_count("shards", "shards_per_client", shards_per_client)
    if number > len(values):
        raise DataError(
            f"shards: {clients} clients x {shards_per_client} shards_per_client = {number} shards, but there are only "
            f"{len(values)} samples; use at most {len(values) // shards_per_client} clients or fewer shards each"
        )
    holder = stream(seed, "partition shards").permutation(number) // shards_per_client
    shard = np.searchsorted(np.arange(1, number) * len(values) // number, np.arange(len(values)), side="right")
    owners = np.empty(len(values), dtype=np.int64)
    owners[np.argsort(values, kind="stable")] = holder[shard]
    return Partition.from_owners(owners, clients)


def label_clusters(
    labels: ArrayLike,
    sizes: Sequence[int] | str,
    classes_per_cluster: int | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Partition:
    """Groups of clients; every group owns classes of its own, every client holds equally many samples.

    Hong et al. 2022 (FedWAvg), Sec. 3.2 and 3.3: clients of a cluster share the same randomly chosen classes,
    no class is shared between clusters, and a client's samples are drawn uniformly from its cluster's.
    `sizes` = "2:7" makes clients 0-1 the first cluster and 2-8 the second. `classes_per_cluster` None deals all
    classes out evenly, a remainder to the largest clusters. `samples` None takes as many as all clients can have.
    """
    values = checked_labels(labels)
    groups = cluster_sizes(sizes)
    generator = stream(seed, "partition label_clusters")
    owned = _cluster_classes(np.unique(values), groups, classes_per_cluster, generator)
    pools = [np.flatnonzero(np.isin(values, classes)) for classes in owned]
    most = min(len(pool) // size for pool, size in zip(pools, groups, strict=True))
    each = most if samples is None else checked_count("label_clusters", "samples", samples)
    if not 0 < each <= most:
        raise DataError(
            f"label_clusters: {each or 1} samples for each client of clusters {':'.join(map(str, groups))} do not fit: "
            f"the scarcest cluster has enough for {most} each; lower samples, use fewer clients or more classes"
        )
    owners = np.full(len(values), -1)
    first = 0
    for pool, size in zip(pools, groups, strict=True):
        drawn = generator.permutation(pool)[: each * size]
        owners[drawn] = first + np.arange(len(drawn)) // each
        first += size
    return Partition.from_owners(owners, first)


def cluster_sizes(sizes: Sequence[int] | str) -> tuple[int, ...]:
    """Cluster sizes from "2:3:4" or from numbers.

    >>> cluster_sizes("2:3:4")
    (2, 3, 4)
    """
    parts = sizes.split(":") if isinstance(sizes, str) else list(sizes)
    try:
        numbers = tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"label_clusters: sizes={sizes!r} are not client numbers of at least 1; write sizes=2:7")
    return numbers


def _cluster_classes(
    present: Integers, groups: tuple[int, ...], each: int | None, generator: np.random.Generator
) -> list[Integers]:
    """The classes each cluster owns, drawn at random."""
    if each is None:
        share, extra = divmod(len(present), len(groups))
        numbers = np.full(len(groups), share)
        numbers[np.argsort(-np.asarray(groups), kind="stable")[:extra]] += 1
    else:
        numbers = np.full(len(groups), checked_count("label_clusters", "classes_per_cluster", each))
    if numbers.min() < 1 or numbers.sum() > len(present):
        raise DataError(
            f"label_clusters: {len(groups)} clusters of {each or 1} classes need {len(groups) * (each or 1)} classes, "
            f"the data has {len(present)}; use fewer clusters or a smaller classes_per_cluster"
        )
    return np.split(generator.permutation(present)[: numbers.sum()], np.cumsum(numbers)[:-1])


def label_ratios(
    labels: ArrayLike,
    ratios: ArrayLike | str,
    clients: int | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Partition:
    """Every client's label shares given outright.

    Song et al. 2023 (FedWAgg), Figures 1a and 2a (there 9 clients of samples=166). `ratios` is an array
    [clients, classes] or, for ten classes, the name of one of the paper's settings, in which client k has

        two-majors   0.45 of labels k and k + 1, 0.03 of label k + 2, 0.01 of the others
        one-major    0.90 of label k, 0.02 of label k + 1, 0.01 of the others

    modulo ten, so that neighbours share a major label under two-majors and none under one-major. (The
    figures' own order of labels is not printed.) Counts are rounded by largest remainder to sum to `samples`;
    `samples` None takes as many as the scarcest label allows.
    """
    values = checked_labels(labels)
    available = np.bincount(values)
    table = ratio_preset(ratios, clients) if isinstance(ratios, str) else _ratio_table(ratios, clients)
    if table.shape[1] < len(available):
        raise DataError(
            f"label_ratios: ratios cover {table.shape[1]} classes, the labels go up to {len(available) - 1}; "
            f"give {len(available)} ratios a client (0 where it has none)"
        )
    available = np.bincount(values, minlength=table.shape[1])
    most = _most_samples(table, available)
    each = most if samples is None else checked_count("label_ratios", "samples", samples)
    counts = largest_remainder(table, each)
    short = np.flatnonzero(counts.sum(axis=0) > available)
    if each < 1 or len(short):
        label = int(short[0]) if len(short) else int(np.argmin(available / np.maximum(table.sum(axis=0), 1e-12)))
        raise DataError(
            f"label_ratios: {len(table)} clients of {max(each, 1)} samples need label {label} more often than the "
            f"{available[label]} times it occurs; use at most samples={most} or fewer clients"
        )
    return _deal(values, counts, stream(seed, "partition label_ratios"))


def ratio_preset(name: str, clients: int | None) -> NDArray[np.float64]:
    """The table [clients, 10] of a named setting of label_ratios."""
    if name not in PRESETS:
        raise ConfigError(f'label_ratios: unknown ratios "{name}": {nearest(name, PRESETS)}')
    if clients is None:
        raise ConfigError(f'label_ratios: ratios="{name}" needs the number of clients; the paper has clients=9')
    first, second, third, other = PRESETS[name]
    row = np.array([first, second, third] + [other] * 7)
    return np.stack([np.roll(row, client) for client in range(checked_count("label_ratios", "clients", clients))])


def _ratio_table(ratios: ArrayLike, clients: int | None) -> NDArray[np.float64]:
    table = np.asarray(ratios, dtype=np.float64)
    if table.ndim != 2 or not table.size or (clients is not None and clients != len(table)):
        wanted = "clients" if clients is None else clients
        raise ConfigError(f"label_ratios: ratios have shape {table.shape}; give an array [{wanted}, classes]")
    wrong = np.flatnonzero(~((table >= 0).all(axis=1) & (np.abs(table.sum(axis=1) - 1) < 1e-6)))
    if len(wrong):
        client = int(wrong[0])
        raise ConfigError(
            f"label_ratios: the ratios of client {client}, {table[client].tolist()}, sum to {table[client].sum():g}; "
            "give shares of 0 or more that sum to 1"
        )
    return table


def _most_samples(table: NDArray[np.float64], available: Integers) -> int:
    """How many samples per client the scarcest label allows."""
    wanted = table.sum(axis=0)
    used = wanted > 0
    most = int(np.floor((available[used] / wanted[used]).min() + 1e-9))
    while (
        most > 0 and (largest_remainder(table, most).sum(axis=0) > available).any()
    ):  # rounding up may cost a few more
        most -= 1
    return most


def _deal(labels: Integers, counts: Integers, generator: np.random.Generator) -> Partition:
    """Give client k counts[k, c] randomly drawn samples of class c."""
    owners = np.full(len(labels), -1)
    for label in np.flatnonzero(counts.sum(axis=0)):
        members = generator.permutation(np.flatnonzero(labels == label))
        holders = np.repeat(np.arange(len(counts)), counts[:, label])
        owners[members[: len(holders)]] = holders
    return Partition.from_owners(owners, len(counts))
