"""Server optimisers on the pseudo-gradient (Reddi et al. 2020, "Adaptive Federated Optimization", Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedkeep.errors import ConfigError
from fedkeep.method import ServerOptimizer
from fedkeep.tree import Params, Slots, add_scaled, map_, zeros_like


def _positive(part, *names: str) -> None:
    for name in names:
        if not getattr(part, name) > 0:
            raise ConfigError(f"@{part.name}({name}={getattr(part, name)}): {name} must be above 0")


def _below_one(part, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(part, name) < 1:
            raise ConfigError(f"@{part.name}({name}={getattr(part, name)}): {name} must be in [0, 1)")


@dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    """w <- w + lr delta. lr = 1 is plain averaging.

    Sends: nothing.
    """

    lr: float = 1.0
    name = "sgd"

    def __post_init__(self):
        _positive(self, "lr")

    def step(self, w, delta, state):
        return add_scaled(w, delta, self.lr), state


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """v <- beta v + delta;  w <- w + lr v. beta = 0 is plain SGD.

    Sends: nothing.
    """

    lr: float = 1.0
    beta: float = 0.9
    name = "momentum"

    def __post_init__(self):
        _positive(self, "lr")
        _below_one(self, "beta")

    def init(self, params: Params) -> Slots:
        return {"v": zeros_like(params)}

    def step(self, w, delta, state):
        v = add_scaled(delta, state["v"], self.beta)
        return add_scaled(w, v, self.lr), {"v": v}


class _Adaptive(ServerOptimizer):
    """m <- beta1 m + (1 - beta1) delta;  w <- w + lr m / (sqrt(v) + tau);  v is the subclass's."""

    lr: float
    beta1: float
    tau: float

    def second_moment(self, v: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def init(self, params: Params) -> Slots:
        # Algorithm 2 asks for v_{-1} >= tau^2
        v = {name: torch.full_like(tensor, self.tau**2) for name, tensor in params.items()}
        return {"m": zeros_like(params), "v": v}

    def step(self, w, delta, state):
        m = map_(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, state["m"], delta)
        v = map_(self.second_moment, state["v"], delta)
        return map_(lambda w, m, v: w + self.lr * m / (v.sqrt() + self.tau), w, m, v), {"m": m, "v": v}


@dataclass(frozen=True)
class ServerAdam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) delta^2.

    Sends: nothing.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    name = "adam"

    def __post_init__(self):
        _positive(self, "lr", "tau")
        _below_one(self, "beta1", "beta2")

    def second_moment(self, v, delta):
        return self.beta2 * v + (1 - self.beta2) * delta * delta


@dataclass(frozen=True)
class ServerYogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) delta^2 sign(v - delta^2).

    Sends: nothing.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    name = "yogi"

    def __post_init__(self):
        _positive(self, "lr", "tau")
        _below_one(self, "beta1", "beta2")

    def second_moment(self, v, delta):
        square = delta * delta
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class ServerAdagrad(_Adaptive):
    """FedAdagrad: v <- v + delta^2.

    Sends: nothing.
    """

    lr: float
    beta1: float = 0.0
    tau: float = 1e-3
    name = "adagrad"

    def __post_init__(self):
        _positive(self, "lr", "tau")
        _below_one(self, "beta1")

    def second_moment(self, v, delta):
        return v + delta * delta
