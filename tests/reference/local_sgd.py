"""Local optimisers, in torch's convention: SGD with momentum and weight decay, Adam (Kingma and Ba 2015, Alg. 1).

    SGD    g += wd w;  v = rho v + g;  w -= eta v                            v starts at 0
    Adam   g += wd w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
           w -= eta (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)          t = 1, 2, ...; m and v start at 0

Weight decay is L2 (added to the gradient before the moments), eps is added after the bias-corrected root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

Model = dict[str, np.ndarray]


def zeros(w: Model) -> Model:
    """A model of zeros with the names and shapes of w: the starting velocity or moment."""
    return {name: np.zeros(w[name].shape) for name in w}


def sgd_step(
    w: Model, gradient: Model, velocity: Model, learning_rate: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> tuple[Model, Model]:
    """One step; returns the new model and the new velocity. rho = 0 and wd = 0: w - eta g."""
    new_w, new_velocity = {}, {}
    for name in w:
        g = gradient[name] + weight_decay * w[name]
        new_velocity[name] = momentum * velocity[name] + g
        new_w[name] = w[name] - learning_rate * new_velocity[name]
    return new_w, new_velocity


def adam_step(
    w: Model,
    gradient: Model,
    first: Model,
    second: Model,
    step: int,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Model, Model, Model]:
    """The step-th step (counted from 1), element by element; returns new model, first moment, second moment."""
    new_w, new_first, new_second = zeros(w), zeros(w), zeros(w)
    for name in w:
        for j in np.ndindex(*w[name].shape):
            g = float(gradient[name][j]) + weight_decay * float(w[name][j])
            m = beta1 * float(first[name][j]) + (1.0 - beta1) * g
            v = beta2 * float(second[name][j]) + (1.0 - beta2) * g**2
            m_hat = m / (1.0 - beta1**step)
            v_hat = v / (1.0 - beta2**step)
            new_w[name][j] = float(w[name][j]) - learning_rate * m_hat / (sqrt(v_hat) + epsilon)
            new_first[name][j] = m
            new_second[name][j] = v
    return new_w, new_first, new_second


def train_sgd(
    w: Model,
    gradient: Callable[[Model, Any], Model],
    batches: Sequence[Any],
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> list[Model]:
    """The whole path [w_0, ..., w_steps], one step per batch, velocity starting at 0."""
    path = [{name: w[name].astype(np.float64) for name in w}]
    velocity = zeros(w)
    for batch in batches:
        g = gradient(path[-1], batch)
        new, velocity = sgd_step(path[-1], g, velocity, learning_rate, momentum, weight_decay)
        path.append(new)
    return path


def train_adam(
    w: Model,
    gradient: Callable[[Model, Any], Model],
    batches: Sequence[Any],
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[Model]:
    """The whole path [w_0, ..., w_steps], one step per batch, moments starting at 0."""
    path = [{name: w[name].astype(np.float64) for name in w}]
    first, second = zeros(w), zeros(w)
    for number, batch in enumerate(batches, start=1):
        g = gradient(path[-1], batch)
        new, first, second = adam_step(
            path[-1], g, first, second, number, learning_rate, beta1, beta2, epsilon, weight_decay
        )
        path.append(new)
    return path
