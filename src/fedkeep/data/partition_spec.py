"""Partitions by name: "dirichlet(alpha=0.1)", the same text in Python, on the command line and in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedkeep.calls import format_call, parse_call
from fedkeep.data.partition_by_label import PRESETS, cluster_sizes, dirichlet, label_clusters, label_ratios, shards
from fedkeep.data.partition_by_size import iid, natural, quantity_skew
from fedkeep.data.partition_core import Partition, checked_alpha, checked_count
from fedkeep.errors import ConfigError, DataError, nearest

Value = int | float | str


def _alpha(where: str, key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = value
    return checked_alpha(where, number)


def _count(where: str, key: str, value: Any) -> int:
    return checked_count(where, key, value)


def _sizes(where: str, key: str, value: Any) -> str:
    return ":".join(str(size) for size in cluster_sizes(value))


def _preset(where: str, key: str, value: Any) -> str:
    if value not in PRESETS:
        raise ConfigError(f'{where}: unknown {key} "{value}": {nearest(str(value), PRESETS)}')
    return value


@dataclass(frozen=True)
class _Kind:
    """What one partition name takes: its options with how each is read, those it must have, and its defaults."""

    make: Callable[..., Partition]
    options: Mapping[str, Callable[[str, str, Any], Value]]
    required: str | None = None
    example: str = ""
    defaults: tuple[tuple[str, Value], ...] = ()


KINDS = {
    "dirichlet": _Kind(dirichlet, {"alpha": _alpha}, "alpha", "dirichlet(alpha=0.1)"),
    "shards": _Kind(shards, {"shards_per_client": _count}, defaults=(("shards_per_client", 2),)),
    "label_clusters": _Kind(
        label_clusters,
        {"sizes": _sizes, "classes_per_cluster": _count, "samples": _count},
        "sizes",
        "label_clusters(sizes=2:7)",
    ),
    "label_ratios": _Kind(
        label_ratios, {"ratios": _preset, "samples": _count}, "ratios", "label_ratios(ratios=two-majors, samples=166)"
    ),
    "iid": _Kind(iid, {}),
    "quantity_skew": _Kind(quantity_skew, {"alpha": _alpha}, "alpha", "quantity_skew(alpha=0.5)"),
    "natural": _Kind(natural, {}),
}


@dataclass(frozen=True)
class PartitionSpec:
    """A partition by name and options, checked when it is made.

    >>> spec = parse("dirichlet( alpha = 0.10 )")
    >>> str(spec)
    'dirichlet(alpha=0.1)'
    >>> str(spec.with_option("alpha", 1))
    'dirichlet(alpha=1)'
    >>> parse("shards") == parse("shards(shards_per_client=2)")
    True
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise ConfigError(f'unknown partition "{self.name}": {nearest(self.name, KINDS)}')
        kind = KINDS[self.name]
        values = dict(kind.defaults)
        for key, value in self.options:
            if key not in kind.options:
                hint = nearest(key, kind.options) if kind.options else f'write just "{self.name}"'
                raise ConfigError(f'partition {self.name}: unknown option "{key}": {hint}')
            values[key] = kind.options[key](f"partition {self.name}", key, value)
        if kind.required is not None and kind.required not in values:
            raise ConfigError(f"partition {self.name}: {kind.required} is missing; write {kind.example}")
        object.__setattr__(self, "options", tuple(sorted(values.items())))

    def __str__(self) -> str:
        return format_call(self.name, dict(self.options))

    def with_option(self, key: str, value: Value) -> PartitionSpec:
        """The same partition with one option set or changed."""
        return PartitionSpec(self.name, tuple((dict(self.options) | {key: value}).items()))

    def build(self, labels: ArrayLike, clients: int | None, seed: int, groups: np.ndarray | None = None) -> Partition:
        """Make the partition. `clients` None lets label_clusters and natural decide; the others need a number."""
        options: dict[str, Any] = dict(self.options)
        if self.name == "natural":
            if groups is None:
                raise DataError(
                    "partition natural: this data set does not say which client a sample came from; "
                    "use qmnist, femnist or a .npz file with groups, or another partition"
                )
            return natural(groups, clients)
        if self.name == "label_clusters":
            total = sum(cluster_sizes(options["sizes"]))
            if clients not in (None, total):
                raise ConfigError(
                    f"partition {self}: sizes sum to {total} clients, but clients={clients}; "
                    f"set clients={total} or change sizes"
                )
        elif clients is None:
            raise ConfigError(f"partition {self}: the number of clients is missing; set clients")
        else:
            options["clients"] = clients
        return KINDS[self.name].make(labels, seed=seed, **options)


def parse(spec: str) -> PartitionSpec:
    """Read "name" or "name(key=value, key=value)".

    >>> parse("label_clusters(sizes=2:7, classes_per_cluster=2)").options
    (('classes_per_cluster', 2), ('sizes', '2:7'))
    """
    name, options = parse_call(spec, "partition")
    return PartitionSpec(name, tuple(options.items()))
