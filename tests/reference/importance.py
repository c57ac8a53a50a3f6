"""Importance (003): Fisher-weighted aggregation and the EWC penalty, Eq. 1 to 4, Algorithm 1.

    F^k_jj = (1/N_k) sum_i (d log p(y_i | x_i) / d theta_j)^2              Eq. 1, per sample, true labels
    F^k <- gamma F_t + (1 - gamma) F^k                                     Eq. 4; first round: F^k as it is
    w_{t+1} = sum_k Fbar^k w^k         F_{t+1} = (1/m) sum_k F^k           Eq. 2
    loss + (lambda / 2) sum_j F_t,j (w_j - w_t,j)^2                        Eq. 3

Fbar: each tensor of one client divided by its sum, then each element divided by the sum over clients; uniform where
every client has zero. The weights of an element sum to 1 (Algorithm 1's 1/m would shrink them: Eq. 2 has none).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

Model = dict[str, np.ndarray]


def log_likelihood_gradient(
    w: Model, x: np.ndarray, label: int, hidden: str = "hidden", output: str = "output"
) -> Model:
    """d log p(label | x) / d w for one sample of a one-hidden-layer ReLU network with softmax output.

    z = W1 x + b1, a = max(z, 0), f = W2 a + b2, p = softmax f. Weights are (out, in): W1 = w[hidden + ".weight"] ...
    The derivative of max(z, 0) at z = 0 is taken as 0.
    """
    weight_1, bias_1 = w[f"{hidden}.weight"], w[f"{hidden}.bias"]
    weight_2, bias_2 = w[f"{output}.weight"], w[f"{output}.bias"]
    units, classes = len(bias_1), len(bias_2)
    z = [float(np.dot(weight_1[h], x)) + float(bias_1[h]) for h in range(units)]
    a = np.array([max(z[h], 0.0) for h in range(units)])
    f = [float(np.dot(weight_2[c], a)) + float(bias_2[c]) for c in range(classes)]
    largest = max(f)
    total = 0.0
    for c in range(classes):
        total += exp(f[c] - largest)
    # d log p(label) / d f_c = [c = label] - p_c
    d_f = [(1.0 if c == label else 0.0) - exp(f[c] - largest) / total for c in range(classes)]
    d_weight_2 = np.zeros(weight_2.shape)
    d_a = np.zeros(units)
    for c in range(classes):
        d_weight_2[c] = d_f[c] * a
        d_a = d_a + d_f[c] * weight_2[c]
    d_weight_1 = np.zeros(weight_1.shape)
    d_z = np.zeros(units)
    for h in range(units):
        d_z[h] = d_a[h] if z[h] > 0 else 0.0
        d_weight_1[h] = d_z[h] * x
    return {
        f"{hidden}.weight": d_weight_1,
        f"{hidden}.bias": d_z,
        f"{output}.weight": d_weight_2,
        f"{output}.bias": np.array(d_f),
    }


def fisher(
    w: Model, inputs: np.ndarray, labels: Sequence[int] | np.ndarray, hidden: str = "hidden", output: str = "output"
) -> Model:
    """Eq. 1, diagonal: the mean over samples of the *squared per-sample* gradient."""
    result = {name: np.zeros(w[name].shape) for name in w}
    for x, label in zip(inputs, labels, strict=True):
        gradient = log_likelihood_gradient(w, x, int(label), hidden, output)
        for name in w:
            result[name] = result[name] + gradient[name] ** 2 / len(labels)
    return result


def blend(own: Model, received: Model | None, gamma: float) -> Model:
    """Eq. 4: gamma F_t + (1 - gamma) F^k; F^k as it is when no F_t has been received yet."""
    if received is None:
        return {name: own[name] for name in own}
    return {name: gamma * received[name] + (1.0 - gamma) * own[name] for name in own}


def normalise_per_tensor(own: Model) -> Model:
    """First stage: every tensor of one client divided by its sum; a tensor of zeros stays zero."""
    result = {}
    for name in own:
        total = float(own[name].sum())
        result[name] = own[name] / total if total > 0 else np.zeros(own[name].shape)
    return result


def aggregation_weights(fishers: Sequence[Model]) -> list[Model]:
    """Both stages: Fbar^k, one model-shaped dict per client; over clients they sum to 1 in every element."""
    clients = len(fishers)
    first_stage = [normalise_per_tensor(own) for own in fishers]
    result = [{name: np.zeros(fishers[0][name].shape) for name in fishers[0]} for _ in range(clients)]
    for name in fishers[0]:
        for j in np.ndindex(*fishers[0][name].shape):
            total = 0.0
            for k in range(clients):
                total += float(first_stage[k][name][j])
            for k in range(clients):
                result[k][name][j] = first_stage[k][name][j] / total if total > 0 else 1.0 / clients
    return result


def aggregate(models: Sequence[Model], fishers: Sequence[Model]) -> Model:
    """Eq. 2, right: sum_k Fbar^k w^k, element by element."""
    weights = aggregation_weights(fishers)
    result = {}
    for name in models[0]:
        total = np.zeros(models[0][name].shape)
        for k in range(len(models)):
            total = total + weights[k][name] * models[k][name]
        result[name] = total
    return result


def mean_fisher(fishers: Sequence[Model]) -> Model:
    """Eq. 2, left: F_{t+1} = (1/m) sum_k F^k, of the blended and *not* normalised Fishers."""
    result = {}
    for name in fishers[0]:
        total = np.zeros(fishers[0][name].shape)
        for own in fishers:
            total = total + own[name]
        result[name] = total / len(fishers)
    return result


def buffer_mean(buffers: Sequence[Model], examples: Sequence[float]) -> Model:
    """Batch-norm statistics have no Fisher: the mean weighted by examples."""
    total_examples = sum(examples)
    result = {}
    for name in buffers[0]:
        total = np.zeros(buffers[0][name].shape)
        for buffer, count in zip(buffers, examples, strict=True):
            total = total + count / total_examples * buffer[name]
        result[name] = total
    return result


def ewc_penalty(w: Model, start: Model, received: Model, strength: float) -> float:
    """Eq. 3: (lambda / 2) sum_j F_j (w_j - start_j)^2."""
    total = 0.0
    for name in w:
        for j in np.ndindex(*w[name].shape):
            total += float(received[name][j]) * float(w[name][j] - start[name][j]) ** 2
    return strength / 2 * total


def ewc_explicit_gradient(w: Model, start: Model, received: Model, strength: float) -> Model:
    """The plain gradient of Eq. 3's penalty: lambda F (w - start)."""
    return {name: strength * received[name] * (w[name] - start[name]) for name in w}


def ewc_explicit_is_stable(received: Model, strength: float, learning_rate: float) -> bool:
    """The explicit term overshoots for ever once eta lambda max F reaches 2."""
    largest = 0.0
    for name in received:
        for value in received[name].reshape(-1):
            largest = max(largest, float(value))
    return learning_rate * strength * largest < 2


def ewc_semi_implicit_correction(
    w: Model, start: Model, received: Model, strength: float, learning_rate: float
) -> Model:
    """lambda F / (1 + eta lambda F) (w - start), element by element.

    A step of size eta along it lands where the implicit step of the penalty lands: (w - start) / (1 + eta lambda F).
    """
    result = {}
    for name in w:
        result[name] = np.zeros(w[name].shape)
        for j in np.ndindex(*w[name].shape):
            stiffness = strength * float(received[name][j])
            result[name][j] = stiffness / (1.0 + learning_rate * stiffness) * (w[name][j] - start[name][j])
    return result
