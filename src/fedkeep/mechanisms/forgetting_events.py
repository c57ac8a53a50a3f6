"""Counting forgettable examples (FedWAvg paper)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedkeep.errors import ConfigError
from fedkeep.method import Finish, Mechanism
from fedkeep.metrics.forgetting import forgettable


def pack(correct: np.ndarray) -> torch.Tensor:
    """One bit per example."""
    return torch.from_numpy(np.packbits(correct))


def unpack(bits: torch.Tensor, examples: int) -> np.ndarray:
    """The booleans that `pack` packed."""
    return np.unpackbits(bits.cpu().numpy(), count=examples).astype(bool)


@dataclass(frozen=True)
class ForgettingEvents(Mechanism):
    """Count the examples that the client's own model knew and the global model it then receives does not.

    Hong et al. 2022, "Weighted Averaging Federated Learning Based on Example Forgetting Events", Sec. 3.1 and
    Algorithm 1: an example is forgettable in round t when the client's model at the end of its previous training
    classified it correctly and the global model of round t does not.

    The client keeps one bit per example, never a second model. Counted in every `event_period`-th round; in between
    the last count stands. A client that never trained before has none.
    Sends: one number, how many of its examples the global model forgot.
    """

    event_period: int = 1
    name = "events"
    uploads = ("forgettable",)
    sends_numbers = True

    def __post_init__(self):
        if self.event_period < 1:
            raise ConfigError(f"event_period={self.event_period}: count every n-th round, n >= 1")

    def client_end(self, ctx, result):
        keep = {"right": {"bits": pack(result.correct_after())}}
        known = ctx.client.get("count")
        count = float(known["value"]) if known else None
        if ctx.client and ctx.round % self.event_period == 0:
            was_right = unpack(ctx.client["right"]["bits"], ctx.examples)
            count = float(forgettable(was_right, result.correct_before()))
        if count is None:
            return Finish(keep=keep)
        keep["count"] = {"value": torch.tensor(count)}
        return Finish(keep=keep, numbers={"forgettable": count})
