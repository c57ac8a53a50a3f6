"""SCAFFOLD: Karimireddy et al. 2020, "Stochastic Controlled Averaging for Federated Learning", Algorithm 1, option II.

Server and every client hold a control variate, c and c_k, all zero at the start.

    client   w <- w - eta (g_k(w) - c_k + c)                    K_k times, from w_{t-1}
             c_k+ = c_k - c + (w_{t-1} - w_t^k) / (K_k eta)
             sends  dw_k = w_t^k - w_{t-1}  and  dc_k = c_k+ - c_k
    server   w <- w + eta_g (1/|S|) sum_k dw_k
             c <- c + (|S|/N) (1/|S|) sum_k dc_k = c + (1/N) sum_k dc_k

All clients of one round use the c that opened the round. The means are uniform, not by examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Model = dict[str, np.ndarray]
Gradient = Callable[[Model, Any], Model]


@dataclass(frozen=True)
class Trajectory:
    """State after every round; entry 0 is the start. `client_controls[t][k]` is c_k of client k after t rounds."""

    models: list[Model]
    server_controls: list[Model]
    client_controls: list[list[Model]]


def client_update(
    start: Model,
    server_control: Model,
    client_control: Model,
    gradient: Gradient,
    batches: Sequence[Any],
    learning_rate: float,
) -> tuple[Model, Model]:
    """The client's model after its steps (one per batch) and its new control variate c_k+."""
    w = {name: start[name].astype(np.float64) for name in start}
    for batch in batches:
        g = gradient(w, batch)
        for name in w:
            w[name] = w[name] - learning_rate * (g[name] - client_control[name] + server_control[name])
    new_control = {}
    for name in w:
        drift = (start[name] - w[name]) / (len(batches) * learning_rate)
        new_control[name] = client_control[name] - server_control[name] + drift
    return w, new_control


def server_update(
    w: Model,
    server_control: Model,
    model_changes: Sequence[Model],
    control_changes: Sequence[Model],
    population: int,
    server_learning_rate: float,
) -> tuple[Model, Model]:
    """The new global model and the new c, from the cohort's dw_k and dc_k; population is N, all clients."""
    cohort_size = len(model_changes)
    new_w = {}
    new_control = {}
    for name in w:
        mean_model_change = np.zeros(w[name].shape)
        mean_control_change = np.zeros(w[name].shape)
        for model_change, control_change in zip(model_changes, control_changes, strict=True):
            mean_model_change = mean_model_change + model_change[name] / cohort_size
            mean_control_change = mean_control_change + control_change[name] / cohort_size
        new_w[name] = w[name] + server_learning_rate * mean_model_change
        new_control[name] = server_control[name] + cohort_size / population * mean_control_change
    return new_w, new_control


def simulate(
    start: Model,
    gradients: Sequence[Gradient],
    cohorts: Sequence[Sequence[int]],
    local_steps: Sequence[int],
    learning_rate: float,
    server_learning_rate: float = 1.0,
    batches: Callable[[int, int, int], Any] | None = None,
) -> Trajectory:
    """Run one round per cohort.

    gradients[k] is client k's oracle, local_steps[k] its number of steps a round, cohorts[t] the clients of round t.
    batches(round, client, step) gives the oracle's batch, None without it. N = len(gradients).
    """
    population = len(gradients)
    w = {name: start[name].astype(np.float64) for name in start}
    c = {name: np.zeros(start[name].shape) for name in start}
    client_controls = [{name: np.zeros(start[name].shape) for name in start} for _ in range(population)]
    models = [w]
    server_controls = [c]
    all_client_controls = [list(client_controls)]
    for t, cohort in enumerate(cohorts):
        model_changes = []
        control_changes = []
        for k in cohort:
            own = [None if batches is None else batches(t, k, step) for step in range(local_steps[k])]
            old_control = client_controls[k]
            local, new_control = client_update(w, c, old_control, gradients[k], own, learning_rate)
            model_changes.append({name: local[name] - w[name] for name in w})
            control_changes.append({name: new_control[name] - old_control[name] for name in w})
            client_controls[k] = new_control
        w, c = server_update(w, c, model_changes, control_changes, population, server_learning_rate)
        models.append(w)
        server_controls.append(c)
        all_client_controls.append(list(client_controls))
    return Trajectory(models, server_controls, all_client_controls)
