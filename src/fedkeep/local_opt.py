"""Local optimisers: what a client does with a gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedkeep.errors import ConfigError
from fedkeep.method import LocalOptimizer
from fedkeep.tree import Params, Slots, add_scaled, map_, zeros_like


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """Stochastic gradient descent with momentum and weight decay.

        g <- g + weight_decay w;  v <- momentum v + g;  w <- w - lr v

    Sends: nothing.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    name = "sgd"

    def __post_init__(self):
        _positive(self.name, "lr", self.lr)
        _in_unit(self.name, "momentum", self.momentum)
        _not_negative(self.name, "weight_decay", self.weight_decay)

    def init(self, params: Params) -> Slots:
        return {"v": zeros_like(params)} if self.momentum else {}

    def step(self, w, gradient, state):
        if self.weight_decay:
            gradient = add_scaled(gradient, w, self.weight_decay)
        if self.momentum:
            gradient = add_scaled(gradient, state["v"], self.momentum)
            state = {"v": gradient}
        return add_scaled(w, gradient, -self.lr), state

    def effort(self, steps: int, pull: float) -> float:
        return _sgd_effort(steps, self.lr, self.momentum, pull)


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """Adam (Kingma and Ba 2015) with bias correction and L2 weight decay.

    Sends: nothing.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    name = "adam"

    def __post_init__(self):
        _positive(self.name, "lr", self.lr)
        _in_unit(self.name, "beta1", self.beta1)
        _in_unit(self.name, "beta2", self.beta2)
        _not_negative(self.name, "weight_decay", self.weight_decay)

    def init(self, params: Params) -> Slots:
        one = torch.ones((), dtype=torch.float64)
        return {"m": zeros_like(params), "v": zeros_like(params), "decay": {"beta1": one, "beta2": one.clone()}}

    def step(self, w, gradient, state):
        if self.weight_decay:
            gradient = add_scaled(gradient, w, self.weight_decay)
        # powers beta^t, kept as tensors so that a traced step counts too
        decay = {"beta1": state["decay"]["beta1"] * self.beta1, "beta2": state["decay"]["beta2"] * self.beta2}
        m = map_(lambda m, g: m * self.beta1 + g * (1 - self.beta1), state["m"], gradient)
        v = map_(lambda v, g: v * self.beta2 + g * g * (1 - self.beta2), state["v"], gradient)
        step_size = self.lr / (1 - decay["beta1"])
        correction = (1 - decay["beta2"]).sqrt()

        def moved(w: Tensor, m: Tensor, v: Tensor) -> Tensor:
            return w - step_size.to(w.dtype) * m / (v.sqrt() / correction.to(w.dtype) + self.eps)

        return map_(moved, w, m, v), {"m": m, "v": v, "decay": decay}

    def effort(self, steps: int, pull: float) -> float:
        return float(steps)  # FedNova has no closed form for Adam: the number of steps stands for it


@lru_cache(maxsize=4096)
def _sgd_effort(steps: int, lr: float, momentum: float, pull: float) -> float:
    """The displacement, in units of lr, of a weight under a constant unit gradient.

    Wang et al. 2020, Sec. 4: ||a_k||_1. Plain SGD: steps; momentum rho:
    [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho); proximal: (1 - (1 - lr mu)^tau) / (lr mu).

    >>> _sgd_effort(3, 0.1, 0.0, 0.0)
    3.0
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * lr * moved
        moved += velocity
    return moved


def _positive(where: str, name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{where}({name}={value}): {name} must be above 0 and finite")


def _not_negative(where: str, name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ConfigError(f"{where}({name}={value}): {name} must be at least 0 and finite")


def _in_unit(where: str, name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{where}({name}={value}): {name} must be in [0, 1)")
