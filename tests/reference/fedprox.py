"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Eq. 2 and Algorithm 2.

Client k minimises its loss plus a pull towards the global model w_t that opened the round:

    h_k(w; w_t) = F_k(w) + (mu / 2) ||w - w_t||^2
    grad h_k    = grad F_k(w) + mu (w - w_t)

mu = 0 is FedAvg. 003's "L2" baseline is the same penalty with its own coefficient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Model = dict[str, np.ndarray]
Gradient = Callable[[Model, Any], Model]


def penalty(w: Model, start: Model, mu: float) -> float:
    """(mu / 2) times the sum over all elements of (w_j - start_j)^2."""
    total = 0.0
    for name in w:
        for index in np.ndindex(*w[name].shape):
            total += float(w[name][index] - start[name][index]) ** 2
    return mu / 2 * total


def penalty_gradient(w: Model, start: Model, mu: float) -> Model:
    """mu (w - start), the term added to the gradient of the local loss."""
    return {name: mu * (w[name] - start[name]) for name in w}


def local_training(start: Model, gradient: Gradient, batches: Sequence[Any], learning_rate: float, mu: float) -> Model:
    """One step w <- w - eta (grad(w, batch) + mu (w - start)) per batch."""
    w = {name: start[name].astype(np.float64) for name in start}
    for batch in batches:
        g = gradient(w, batch)
        pull = penalty_gradient(w, start, mu)
        for name in w:
            w[name] = w[name] - learning_rate * (g[name] + pull[name])
    return w


def simulate(
    start: Model,
    gradients: Sequence[Gradient],
    cohorts: Sequence[Sequence[int]],
    local_steps: Sequence[int],
    learning_rate: float,
    mu: float,
    examples: Sequence[float] | None = None,
    batches: Callable[[int, int, int], Any] | None = None,
) -> list[Model]:
    """Run one round per cohort; returns [w_0, ..., w_T]. Weights by examples, uniform when examples is None."""
    w = {name: start[name].astype(np.float64) for name in start}
    trajectory = [w]
    for t, cohort in enumerate(cohorts):
        total_examples = 0.0
        for k in cohort:
            total_examples += 1.0 if examples is None else examples[k]
        new = {name: np.zeros(w[name].shape) for name in w}
        for k in cohort:
            own = [None if batches is None else batches(t, k, step) for step in range(local_steps[k])]
            model = local_training(w, gradients[k], own, learning_rate, mu)
            share = (1.0 if examples is None else examples[k]) / total_examples
            for name in w:
                new[name] = new[name] + share * model[name]
        w = new
        trajectory.append(w)
    return trajectory
