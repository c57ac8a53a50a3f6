"""Importance: average each weight by how much it matters to each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedkeep.method import Aggregator, Update
from fedkeep.tree import Params, map_, same_keys


def importance_weights(fishers: Sequence[Params]) -> list[Params]:
    """Aggregation weights per client and element; they sum to one over the clients, element by element.

    Kim et al. 2020, Eq. (2): the Fisher "normalised over each layer from a client and then over all clients": each
    tensor of a client divided by its sum, then each element by its sum over clients. Where every client has zero,
    the weights are uniform. Equal Fishers give the uniform average.

    >>> a, b = importance_weights([{"w": torch.tensor([1.0, 0.0, 3.0])}, {"w": torch.tensor([1.0, 0.0, 1.0])}])
    >>> a["w"], b["w"]
    (tensor([0.3333, 0.5000, 0.6000]), tensor([0.6667, 0.5000, 0.4000]))
    """
    same_keys(*fishers)
    weights: list[Params] = [{} for _ in fishers]
    for name in fishers[0]:
        layers = torch.stack([fisher[name] / fisher[name].sum().clamp(min=1e-30) for fisher in fishers])
        total = layers.sum(0)
        shares = torch.where(total > 0, layers / total.clamp(min=1e-38), 1.0 / len(fishers))
        for client, share in enumerate(shares):
            weights[client][name] = share
    return weights


@dataclass(frozen=True)
class Importance(Aggregator):
    """The clients' models, averaged element by element by their Fisher information.

    Kim et al. 2020, Eq. (2):  w_t = sum_k Fbar^k * w_t^k.
    Buffers have no Fisher: they are averaged by number of examples.
    Differs from the paper: Algorithm 1 has a further 1/m, which would shrink the weights; Eq. (2) is right.
    Sends: the trained model and the importance of each weight (as large as the model).
    """

    name = "importance"
    streaming = False
    copies = 3
    needs = "importance"

    def combine(self, updates, weights):
        shares = importance_weights([_importance(update) for update in updates])
        parts = [map_(torch.mul, share, update.delta) for share, update in zip(shares, updates, strict=True)]
        return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}


def _importance(update: Update) -> Params:
    for slots in update.uploads.values():
        if "importance" in slots:
            return slots["importance"]
    raise KeyError(f"client {update.facts.client} sent no importance; combine with ewc or rwalk")
