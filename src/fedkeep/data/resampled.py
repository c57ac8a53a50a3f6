"""A population of any size over one data set: every client draws a handful of examples by its own key.

No client is stored: its examples are a function of (seed, client). Two clients may hold the same example, one client
never holds it twice. A thousand clients or a hundred million cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedkeep.data.partition_core import Integers, checked_count, checked_labels, dirichlet_shares
from fedkeep.data.partition_spec import PartitionSpec
from fedkeep.data.population import Drawn
from fedkeep.errors import ConfigError, DataError
from fedkeep.rng import stream

KINDS = ("dirichlet", "shards", "iid")


@dataclass(frozen=True, eq=False)
class Resampled:
    """client -> rows. Which labels a client has is drawn as the partition of the same name deals them out:

    dirichlet(alpha)            shares of the labels from a symmetric Dirichlet distribution
    shards(shards_per_client)   so many labels, equally likely
    iid                         the labels' shares in the data set

    samples: how many examples a client has; fewer only where the data set has too few of its labels.
    """

    labels: Integers
    spec: PartitionSpec
    samples: int
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", checked_labels(self.labels))
        checked_count("population", "samples", self.samples)
        if self.spec.name not in KINDS:
            raise ConfigError(
                f"partition {self.spec}: clients of a --population draw their examples one by one, which works with "
                f"{', '.join(KINDS)}; choose one of these, or --clients in place of --population"
            )
        if self.spec.name == "shards" and self._option("shards_per_client") > len(self._rows):
            raise DataError(
                f"partition {self.spec}: more labels than the {len(self._rows)} of the data; choose at most that many"
            )

    def __call__(self, client: int) -> Integers:
        generator = stream(self.seed, "population", client=client)
        counts = generator.multinomial(self.samples, self._shares(generator))
        drawn = [
            rows[generator.choice(len(rows), min(int(count), len(rows)), replace=False, shuffle=False)]
            for rows, count in zip(self._rows, counts, strict=True)
            if count
        ]
        return np.sort(np.concatenate(drawn))

    def population(self, clients: int) -> Drawn:
        """So many clients."""
        return Drawn(checked_count("population", "clients", clients), self)

    def _shares(self, generator: np.random.Generator) -> np.ndarray:
        classes = len(self._rows)
        if self.spec.name == "dirichlet":
            return dirichlet_shares(generator, self._option("alpha"), classes, 1)[0]
        if self.spec.name == "shards":
            several = int(self._option("shards_per_client"))
            shares = np.zeros(classes)
            shares[generator.choice(classes, several, replace=False, shuffle=False)] = 1 / several
            return shares
        return np.array([len(rows) for rows in self._rows]) / len(self.labels)

    def _option(self, name: str) -> float:
        return float(dict(self.spec.options)[name])

    @cached_property
    def _rows(self) -> list[Integers]:
        """The rows of each label that occurs."""
        order = np.argsort(self.labels, kind="stable")
        starts = np.flatnonzero(np.diff(self.labels[order])) + 1
        return np.split(order, starts)
