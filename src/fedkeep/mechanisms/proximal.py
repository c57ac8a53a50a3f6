"""FedProx: a pull towards the global model."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeep.errors import ConfigError
from fedkeep.method import Mechanism
from fedkeep.tree import scale, sub


@dataclass(frozen=True)
class Proximal(Mechanism):
    """Pull local weights towards the global model they started from.

    Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Eq. (2).
    Adds the gradient of (mu/2) ||w - w_t||^2:

        mu (w - w_t)            w_t is ctx.start

    mu = 0 is exactly FedAvg. The Importance paper's "L2" is the same penalty.
    Sends: nothing.
    """

    mu: float
    name = "fedprox"

    def __post_init__(self):
        if not self.mu >= 0:
            raise ConfigError(f"fedprox(mu={self.mu}): mu is the strength of a pull; choose it >= 0")

    def check(self, plan):
        if plan.optimizer.lr * self.mu >= 2:
            raise ConfigError(
                f"fedprox(mu={self.mu:g}) with lr {plan.optimizer.lr:g}: lr*mu = {plan.optimizer.lr * self.mu:g} >= 2 "
                "overshoots at every step; lower mu or the learning rate"
            )

    def correction(self, w, ctx):
        return scale(sub(w, ctx.start), self.mu) if self.mu else None

    def pull(self):
        return self.mu
