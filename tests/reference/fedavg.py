"""FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Alg. 1.

Every client of the cohort starts from the global model, takes local SGD steps, and the server takes the weighted mean.

    w <- w - eta grad_k(w)                     on the client
    w_t = sum_k p_k w_t^k                      on the server,  p_k = n_k / sum n  or  1 / |S|
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Model = dict[str, np.ndarray]
Gradient = Callable[[Model, Any], Model]


def weights_by_examples(examples: Sequence[float]) -> list[float]:
    """p_k = n_k / sum_j n_j over the cohort."""
    total = 0.0
    for count in examples:
        total += count
    return [count / total for count in examples]


def uniform_weights(clients: int) -> list[float]:
    """p_k = 1 / |S|."""
    return [1.0 / clients for _ in range(clients)]


def aggregate(models: Sequence[Model], weights: Sequence[float]) -> Model:
    """sum_k p_k w^k, by name."""
    result = {}
    for name in models[0]:
        total = np.zeros(models[0][name].shape)
        for model, weight in zip(models, weights, strict=True):
            total = total + weight * model[name]
        result[name] = total
    return result


def local_training(start: Model, gradient: Gradient, batches: Sequence[Any], learning_rate: float) -> Model:
    """One SGD step w <- w - eta grad(w, batch) per batch, in order."""
    w = {name: start[name].astype(np.float64) for name in start}
    for batch in batches:
        g = gradient(w, batch)
        for name in w:
            w[name] = w[name] - learning_rate * g[name]
    return w


def simulate(
    start: Model,
    gradients: Sequence[Gradient],
    cohorts: Sequence[Sequence[int]],
    local_steps: Sequence[int],
    learning_rate: float,
    examples: Sequence[float] | None = None,
    batches: Callable[[int, int, int], Any] | None = None,
) -> list[Model]:
    """Run one round per cohort; returns [w_0, w_1, ..., w_T].

    gradients[k] is client k's oracle, local_steps[k] its number of steps a round, cohorts[t] the clients of round t.
    examples None gives uniform weights. batches(round, client, step) gives the oracle's batch, None without it.
    """
    w = {name: start[name].astype(np.float64) for name in start}
    trajectory = [w]
    for t, cohort in enumerate(cohorts):
        models = []
        for k in cohort:
            own = [None if batches is None else batches(t, k, step) for step in range(local_steps[k])]
            models.append(local_training(w, gradients[k], own, learning_rate))
        if examples is None:
            weights = uniform_weights(len(cohort))
        else:
            weights = weights_by_examples([examples[k] for k in cohort])
        w = aggregate(models, weights)
        trajectory.append(w)
    return trajectory
