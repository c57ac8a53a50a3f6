"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from fedkeep.method import Finish, Mechanism
from fedkeep.tree import add, add_scaled, sub, zeros_like


@dataclass(frozen=True)
class Scaffold(Mechanism):
    """Correct every local step by the difference of the global and the client's own drift.

    Karimireddy et al. 2020, "SCAFFOLD", Algorithm 1, option II:

        w   <- w - eta (g - c_k + c)
        c_k+ = c_k - c + (w_t - w_t^k) / (steps eta)
        c   <- c + |S|/K mean_k (c_k+ - c_k)

    c and c_k start at zero; only trainable weights have them, buffers never. The mean of c_k over all clients
    is c after every round.
    Differs from the paper: with momentum or Adam the control variate keeps this plain form.
    Sends: the change of the client's control variate (as large as the model).
    """

    name = "scaffold"
    uploads = ("dc",)

    def check(self, plan):
        if plan.optimizer.name != "sgd" or plan.optimizer.options().keys() != {"lr"}:
            warnings.warn(
                f"scaffold is derived for plain SGD; with {plan.optimizer.term()} its control variates are only an "
                "approximation",
                stacklevel=2,
            )

    def server_init(self, params):
        return {"c": zeros_like(params)}

    def client_init(self, params):
        return {"c": zeros_like(params)}

    def prepare(self, ctx):
        return {"drift": sub(ctx.server["c"], ctx.client["c"])}

    def correction(self, w, ctx):
        return ctx.constants["drift"]

    def client_end(self, ctx, result):
        moved = sub(ctx.start, result.params)
        change = add_scaled({k: -v for k, v in ctx.server["c"].items()}, moved, 1.0 / (result.steps * ctx.lr))
        return Finish(upload={"dc": change}, keep={"c": add(ctx.client["c"], change)})

    def server_end(self, slots, mean_upload, fraction):
        return {"c": add_scaled(slots["c"], mean_upload["dc"], fraction)}
