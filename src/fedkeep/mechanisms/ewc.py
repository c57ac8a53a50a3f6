"""Elastic weight consolidation with a global Fisher."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeep.errors import ConfigError
from fedkeep.method import Finish, LocalContext, Mechanism
from fedkeep.tree import Params, Slots, add_scaled, map_, mul, scale, sub


def check_options(name: str, lam: float, gamma: float) -> None:
    """Refuse a negative strength and a memory outside [0, 1)."""
    if not lam >= 0:
        raise ConfigError(f"{name}(lam={lam}): lam is the strength of a penalty; choose it >= 0")
    if not 0 <= gamma < 1:
        raise ConfigError(f"{name}(gamma={gamma}): gamma is the share of the old importance; choose it in [0, 1)")


def penalty_rate(importance: Params, lam: float, lr: float, explicit: bool) -> Params:
    """The share of the way back to w_t in one step: lr lam F, or the semi-implicit lr lam F / (1 + lr lam F)."""
    rate = scale(importance, lr * lam)
    if not explicit:
        return map_(lambda r: r / (1 + r), rate)
    largest = max(float(r.max()) for r in rate.values())
    if largest >= 2:
        raise ConfigError(
            f"ewc(lam={lam:g}, explicit=true) with lr {lr:g}: lr*lam*max(F) = {largest:.3g} >= 2, so every step would "
            "overshoot and the model diverge; lower lam or lr, or leave explicit away (semi-implicit, always stable)"
        )
    return rate


@dataclass(frozen=True)
class EWC(Mechanism):
    """Hold weights that matter to all clients near the global model.

    Kim et al. 2020, "Overcoming Forgetting in Federated Learning via Importance From Agent", Eq. (1), (3), (4):

        penalty     (lam/2) sum_j F_t,j (w_j - w_t,j)^2
        client      F^k = mean_i (d log p(y_i | x_i) / dw)^2 at its new weights;  F^k <- gamma F_t + (1 - gamma) F^k
        server      F_{t+1} = mean_k F^k

    F_1 is absent: the first round has no penalty and F^k is used as it is. lam = 0 is FedAvg, with the Fisher still
    computed and sent (the Importance aggregation needs it).
    Differs from the paper: the gradient is taken semi-implicitly, lam F / (1 + lr lam F) (w - w_t), equal to
    Eq. (3)'s where lr lam F is small and stable where the paper's lam = 1e5 would diverge; explicit=true gives the
    plain form and refuses where it would diverge.
    Sends: the diagonal Fisher information of the client's data (as large as the model).
    """

    lam: float
    gamma: float = 0.9
    explicit: bool = False
    name = "ewc"
    uploads = ("importance",)

    def __post_init__(self):
        check_options(self.name, self.lam, self.gamma)

    def prepare(self, ctx: LocalContext) -> Slots:
        if not ctx.server or not self.lam:
            return {}
        return {"rate": penalty_rate(ctx.server["importance"], self.lam, ctx.lr, self.explicit)}

    def correction(self, w, ctx):
        if not ctx.constants:
            return None
        return scale(mul(ctx.constants["rate"], sub(w, ctx.start)), 1 / ctx.lr)

    def client_end(self, ctx, result):
        fisher = result.fisher()
        if ctx.server:  # Eq. (4)
            fisher = add_scaled(scale(fisher, 1 - self.gamma), ctx.server["importance"], self.gamma)
        return Finish(upload={"importance": fisher})

    def server_end(self, slots, mean_upload, fraction):
        return {"importance": mean_upload["importance"]}
