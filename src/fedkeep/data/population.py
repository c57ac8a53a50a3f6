"""The clients of a federation: who holds which examples, and what each holds back for judging models.

Who holds what is an index array (`Partition`) or a function of the client (`Drawn`); either may have a million clients,
because nothing here goes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedkeep.data.partition_core import Integers, Partition, checked_fraction, held_out, split_validation
from fedkeep.errors import ConfigError
from fedkeep.rng import stream

LISTED = 4096  # of so many clients all may be looked at beforehand; of more, so many


class Holding(Protocol):
    """Which rows of the data each client holds."""

    def __len__(self) -> int: ...

    def indices(self, client: int) -> Integers:
        """The rows of one client."""
        ...


@dataclass(frozen=True, eq=False)
class Drawn:
    """A partition that is a function: a client's rows are computed when they are asked for, and never kept.

    The function must be pure: equal clients, equal rows. Clients may share rows.

    >>> Drawn(10**12, lambda client: np.array([client % 7])).indices(10**11)
    array([5])
    """

    clients: int
    rows: Callable[[int], Integers]

    def __len__(self) -> int:
        return self.clients

    def indices(self, client: int) -> Integers:
        if not 0 <= client < self.clients:
            raise ConfigError(f"client {client} does not exist: this population has clients 0 to {self.clients - 1}")
        return self.rows(client)


def split(whole: Holding, fraction: float, seed: int) -> tuple[Holding, Holding]:
    """The training and the held-out part of each client's rows, drawn when asked for, as `split_validation` does."""
    checked_fraction(fraction)
    if isinstance(whole, Partition) and len(whole) <= LISTED:
        return split_validation(whole, fraction, seed)

    def part(client: int, wanted: bool) -> Integers:
        rows = whole.indices(client)
        mask = held_out(len(rows), fraction, seed, client)
        if mask is None:
            return rows[:0] if wanted else rows
        return rows[mask if wanted else ~mask]

    return Drawn(len(whole), lambda client: part(client, False)), Drawn(len(whole), lambda client: part(client, True))


@dataclass(frozen=True, eq=False)
class Population:
    """Training examples of all clients, each client's split into a training and a held-out part.

    Where a client holds nothing back, its training examples stand in for judging models.
    """

    x: Tensor
    y: Tensor
    train: Holding
    held_out: Holding
    classes: int

    @staticmethod
    def of(x: Tensor, y: Tensor, whole: Holding, classes: int, validation: float, seed: int) -> Population:
        return Population(x, y, *split(whole, validation, seed), classes)

    def __len__(self) -> int:
        return len(self.train)

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's training examples."""
        rows = torch.from_numpy(self.train.indices(client)).to(self.x.device)
        return self.x.index_select(0, rows), self.y.index_select(0, rows)

    def class_counts(self, y: Tensor) -> Tensor:
        """How often each label occurs."""
        return torch.bincount(y, minlength=self.classes)

    @cached_property
    def some_sizes(self) -> list[int]:
        """The numbers of training examples of all clients, or of evenly spread ones where they are many."""
        everyone = len(self)
        chosen = range(everyone) if everyone <= LISTED else (everyone * place // LISTED for place in range(LISTED))
        return [len(self.train.indices(client)) for client in chosen]

    def panel(self, size: int, seed: int) -> np.ndarray:
        """The clients on whose examples every global model is judged: all, or a fixed draw of `size` (0: all)."""
        if not size or len(self) <= size:
            return np.arange(len(self))
        return np.sort(stream(seed, "panel").choice(len(self), size, replace=False, shuffle=False))

    def holds_out(self, clients: np.ndarray) -> bool:
        """Whether any of these clients holds something back."""
        return any(len(self.held_out.indices(int(client))) for client in clients)

    def judging_rows(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows on which models are judged for these clients, and the client that owns each row."""
        parts = [self._judging(int(client)) for client in clients]
        owners = np.repeat(np.asarray(clients), [len(part) for part in parts])
        return (np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)), owners

    def _judging(self, client: int) -> np.ndarray:
        held = self.held_out.indices(client)
        return held if len(held) else self.train.indices(client)

    def label_counts(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How often each label occurs among these clients' training and held-out examples, [clients, classes]."""
        labels = self.y.numpy()

        def counts(part: Holding) -> np.ndarray:
            found = [np.bincount(labels[part.indices(int(k))], minlength=self.classes) for k in clients]
            return np.stack(found) if found else np.zeros((0, self.classes), dtype=np.int64)

        return counts(self.train), counts(self.held_out)
