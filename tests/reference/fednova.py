"""FedNova: Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization".

Client k's whole local change is a combination of its gradients:  w_{t-1} - w_t^k = eta sum_i a_{k,i} g_i.
FedNova divides the change by ||a_k||_1, averages, and multiplies back by one common effective number of steps.

    plain SGD      a = [1, ..., 1]
                   ||a||_1 = tau
    momentum rho   a = [1 - rho^tau, ..., 1 - rho] / (1 - rho)
                   ||a||_1 = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)
    proximal mu    a = [(1 - eta mu)^(tau-1), ..., 1 - eta mu, 1]
                   ||a||_1 = [1 - (1 - eta mu)^tau] / (eta mu)

    d_k = (w_{t-1} - w_t^k) / ||a_k||_1          tau_eff = sum_k p_k ||a_k||_1
    w_t = w_{t-1} - tau_eff sum_k p_k d_k

Equal ||a_k||_1 on all clients: FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Model = dict[str, np.ndarray]


def vector_plain(steps: int) -> list[float]:
    """Every gradient counts once."""
    return [1.0 for _ in range(steps)]


def vector_momentum(steps: int, momentum: float) -> list[float]:
    """The i-th gradient (i = 1..tau) keeps acting: 1 + rho + ... + rho^(tau-i)."""
    vector = []
    for i in range(1, steps + 1):
        coefficient = 0.0
        for power in range(steps - i + 1):
            coefficient += momentum**power
        vector.append(coefficient)
    return vector


def vector_proximal(steps: int, learning_rate: float, mu: float) -> list[float]:
    """The i-th gradient (i = 1..tau) is pulled back by every later step: (1 - eta mu)^(tau-i)."""
    return [(1.0 - learning_rate * mu) ** (steps - i) for i in range(1, steps + 1)]


def norm_plain(steps: int) -> float:
    """||a||_1 = tau."""
    return float(steps)


def norm_momentum(steps: int, momentum: float) -> float:
    """||a||_1 = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho), 0 <= rho < 1. rho = 0: tau."""
    return (steps - momentum * (1.0 - momentum**steps) / (1.0 - momentum)) / (1.0 - momentum)


def norm_proximal(steps: int, learning_rate: float, mu: float) -> float:
    """||a||_1 = [1 - (1 - eta mu)^tau] / (eta mu). mu = 0: tau."""
    shrink = learning_rate * mu
    if shrink == 0:
        return float(steps)
    return (1.0 - (1.0 - shrink) ** steps) / shrink


def vector_unrolled(steps: int, momentum: float = 0.0, learning_rate: float = 0.0, mu: float = 0.0) -> list[float]:
    """The vector a for SGD with momentum and proximal term together, by running the recursion on unit gradients.

    Gradient i is the i-th unit vector. Per step, with u = (w_{t-1} - w) / eta the change so far:
    v <- rho v + g + mu (w - w_{t-1}) = rho v + g - eta mu u;  u <- u + v.  The last u is a.
    """
    change = np.zeros(steps)
    velocity = np.zeros(steps)
    for i in range(steps):
        gradient = np.zeros(steps)
        gradient[i] = 1.0
        velocity = momentum * velocity + gradient - learning_rate * mu * change
        change = change + velocity
    return [float(coefficient) for coefficient in change]


def effective_steps(norms: Sequence[float], weights: Sequence[float]) -> float:
    """tau_eff = sum_k p_k ||a_k||_1."""
    total = 0.0
    for norm, weight in zip(norms, weights, strict=True):
        total += weight * norm
    return total


def aggregate(start: Model, models: Sequence[Model], weights: Sequence[float], norms: Sequence[float]) -> Model:
    """w_t = w_{t-1} - tau_eff sum_k p_k (w_{t-1} - w_t^k) / ||a_k||_1. The weights p_k sum to 1."""
    tau_eff = effective_steps(norms, weights)
    result = {}
    for name in start:
        direction = np.zeros(start[name].shape)
        for model, weight, norm in zip(models, weights, norms, strict=True):
            direction = direction + weight * (start[name] - model[name]) / norm
        result[name] = start[name] - tau_eff * direction
    return result
