"""Server optimisers: Reddi et al. 2020, "Adaptive Federated Optimization", Alg. 1 and 2; FedAvgM: Hsu et al. 2019.

The averaged change of the clients is the pseudo-gradient (it already points downhill, so it is added):

    Delta_t = sum_k p_k (w_t^k - w_{t-1})

    SGD         w += eta Delta_t                                             eta = 1: plain averaging
    FedAvgM     v = beta v + Delta_t;  w += eta v
    Algorithm 2 m = beta1 m + (1 - beta1) Delta_t
      Adagrad     v = v + Delta_t^2
      Yogi        v = v - (1 - beta2) Delta_t^2 sign(v - Delta_t^2)
      Adam        v = beta2 v + (1 - beta2) Delta_t^2
                w += eta m / (sqrt(v) + tau)

No bias correction. m starts at 0, v at tau^2 (the paper asks v >= tau^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

Model = dict[str, np.ndarray]


def pseudo_gradient(start: Model, models: Sequence[Model], weights: Sequence[float]) -> Model:
    """Delta = sum_k p_k (w^k - start)."""
    result = {}
    for name in start:
        total = np.zeros(start[name].shape)
        for model, weight in zip(models, weights, strict=True):
            total = total + weight * (model[name] - start[name])
        result[name] = total
    return result


def sgd(w: Model, deltas: Sequence[Model], learning_rate: float) -> list[Model]:
    """The models after every server step, beginning with w."""
    trajectory = [{name: w[name].astype(np.float64) for name in w}]
    for delta in deltas:
        last = trajectory[-1]
        trajectory.append({name: last[name] + learning_rate * delta[name] for name in last})
    return trajectory


def fedavgm(w: Model, deltas: Sequence[Model], learning_rate: float, momentum: float) -> list[Model]:
    """v = beta v + Delta; w += eta v. The models after every server step, beginning with w."""
    trajectory = [{name: w[name].astype(np.float64) for name in w}]
    velocity = {name: np.zeros(w[name].shape) for name in w}
    for delta in deltas:
        last = trajectory[-1]
        new = {}
        for name in last:
            velocity[name] = momentum * velocity[name] + delta[name]
            new[name] = last[name] + learning_rate * velocity[name]
        trajectory.append(new)
    return trajectory


def second_moment_adagrad(v: float, delta: float, beta2: float) -> float:
    """v + Delta^2; beta2 has no part in it."""
    return v + delta**2


def second_moment_yogi(v: float, delta: float, beta2: float) -> float:
    """v - (1 - beta2) Delta^2 sign(v - Delta^2), with sign(0) = 0."""
    if v > delta**2:
        sign = 1.0
    elif v < delta**2:
        sign = -1.0
    else:
        sign = 0.0
    return v - (1.0 - beta2) * delta**2 * sign


def second_moment_adam(v: float, delta: float, beta2: float) -> float:
    """beta2 v + (1 - beta2) Delta^2."""
    return beta2 * v + (1.0 - beta2) * delta**2


SECOND_MOMENTS = {
    "adagrad": second_moment_adagrad,
    "yogi": second_moment_yogi,
    "adam": second_moment_adam,
}


def adaptive(
    kind: str,
    w: Model,
    deltas: Sequence[Model],
    learning_rate: float,
    beta1: float,
    beta2: float,
    tau: float,
) -> list[Model]:
    """Algorithm 2, element by element. kind is adagrad, yogi or adam. The models after every step, beginning with w."""
    second_moment = SECOND_MOMENTS[kind]
    trajectory = [{name: w[name].astype(np.float64) for name in w}]
    m = {name: np.zeros(w[name].shape) for name in w}
    v = {name: np.full(w[name].shape, float(tau) ** 2) for name in w}
    for delta in deltas:
        last = trajectory[-1]
        new = {}
        for name in last:
            new[name] = np.zeros(last[name].shape)
            for j in np.ndindex(*last[name].shape):
                change = float(delta[name][j])
                m[name][j] = beta1 * m[name][j] + (1.0 - beta1) * change
                v[name][j] = second_moment(float(v[name][j]), change, beta2)
                new[name][j] = last[name][j] + learning_rate * m[name][j] / (sqrt(v[name][j]) + tau)
        trajectory.append(new)
    return trajectory


def fedadagrad(w: Model, deltas: Sequence[Model], learning_rate: float, tau: float, beta1: float = 0.0) -> list[Model]:
    """Algorithm 2 with v = v + Delta^2. The paper's experiments use beta1 = 0."""
    return adaptive("adagrad", w, deltas, learning_rate, beta1, 0.0, tau)


def fedyogi(
    w: Model, deltas: Sequence[Model], learning_rate: float, tau: float, beta1: float = 0.9, beta2: float = 0.99
) -> list[Model]:
    """Algorithm 2 with Yogi's second moment."""
    return adaptive("yogi", w, deltas, learning_rate, beta1, beta2, tau)


def fedadam(
    w: Model, deltas: Sequence[Model], learning_rate: float, tau: float, beta1: float = 0.9, beta2: float = 0.99
) -> list[Model]:
    """Algorithm 2 with Adam's second moment, without bias correction."""
    return adaptive("adam", w, deltas, learning_rate, beta1, beta2, tau)
