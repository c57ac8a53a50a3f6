"""RWalk: importance from the Fisher and from the path that training took."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkeep.mechanisms.ewc import EWC
from fedkeep.method import Finish
from fedkeep.tree import Params, add, add_scaled, map_, scale, sub, zeros_like


def per_tensor(tree: Params) -> Params:
    """Each tensor divided by its largest value; a tensor of zeros stays as it is."""
    return {name: tensor / tensor.max().clamp(min=1e-30) for name, tensor in tree.items()}


@dataclass(frozen=True)
class RWalk(EWC):
    """EWC whose importance also counts how much each weight lowered the loss on its way.

    Chaudhry et al. 2018, "Riemannian Walk for Incremental Learning", Eq. (8), (9); Importance paper, Table 4:

        s_j += (-g_j dw_j) / (F_j dw_j^2 / 2 + eps)   over local steps, clipped at 0 at the end
        importance = F / max F + s / max s            per tensor

    g is the gradient of the loss alone, dw the step taken; F_j inside the score is the running average of squared
    mini-batch gradients, as in the RWalk paper, F in the sum the per-sample Fisher of the client.
    Sends: the importance of each weight for the client's data (as large as the model).
    """

    eps: float = 1e-3
    name = "rwalk"

    def track_init(self, params):
        return {"score": zeros_like(params), "fisher": zeros_like(params)}

    def track(self, state, before, gradient, after, ctx):
        fisher = map_(lambda f, g: torch.addcmul(self.gamma * f, g, g, value=1 - self.gamma), state["fisher"], gradient)
        # (-g d) / (f d^2 / 2 + eps) = -2 g d / (f d^2 + 2 eps), in few passes over memory: it is done in every step
        score = map_(
            lambda s, g, d, f: torch.addcdiv(s, g * d, f * (d * d) + 2 * self.eps, value=-2.0),
            state["score"],
            gradient,
            sub(after, before),
            fisher,
        )
        return {"score": score, "fisher": fisher}

    def client_end(self, ctx, result):
        score = map_(lambda s: s.clamp(min=0), result.track["score"])
        importance = add(per_tensor(result.fisher()), per_tensor(score))
        if ctx.server:
            importance = add_scaled(scale(importance, 1 - self.gamma), ctx.server["importance"], self.gamma)
        return Finish(upload={"importance": importance})
