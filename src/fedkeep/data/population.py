"""The clients of a federation: who holds which examples, and what each holds back for judging models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedkeep.data.partition_core import Partition, split_validation


@dataclass(frozen=True, eq=False)
class Population:
    """Training examples of all clients, each client's split into a training and a held-out part.

    Where a client holds nothing back, its training examples stand in for judging models (`judged_on` says so).
    """

    x: Tensor
    y: Tensor
    train: Partition
    held_out: Partition
    classes: int

    @staticmethod
    def of(x: Tensor, y: Tensor, partition: Partition, classes: int, validation: float, seed: int) -> Population:
        train, held_out = split_validation(partition, validation, seed)
        return Population(x, y, train, held_out, classes)

    def __len__(self) -> int:
        return len(self.train)

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's training examples."""
        rows = torch.from_numpy(self.train.indices(client)).to(self.x.device)
        return self.x.index_select(0, rows), self.y.index_select(0, rows)

    def class_counts(self, y: Tensor) -> Tensor:
        """How often each label occurs."""
        return torch.bincount(y, minlength=self.classes)

    def judging_rows(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows on which models are judged for these clients, and the client that owns each row."""
        parts = [self._judging(int(client)) for client in clients]
        owners = np.repeat(np.asarray(clients), [len(part) for part in parts])
        return (np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)), owners

    def _judging(self, client: int) -> np.ndarray:
        held = self.held_out.indices(client)
        return held if len(held) else self.train.indices(client)

    @cached_property
    def judged_on(self) -> str:
        """What models are judged on, in words for the report."""
        without = int((self.held_out.sizes == 0).sum())
        if without == 0:
            return "each client's own held-out examples"
        if without == len(self):
            return "each client's own training examples (nothing is held out)"
        return (
            f"each client's own held-out examples; {without} clients hold nothing out, their training examples stand in"
        )
