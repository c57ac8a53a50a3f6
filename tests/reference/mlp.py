"""A ReLU network with explicit forward and backward passes, one sample and one unit at a time.

Layer l computes z = W a + b with W = w[name + ".weight"] of shape (out, in) and b = w[name + ".bias"]; every layer but
the last is followed by max(z, 0), whose derivative at 0 is taken as 0. `layers` are the names, first to last.
The gradient enters through d loss / d logits, so any loss of losses.py will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Model = dict[str, np.ndarray]
Labels = Sequence[int] | np.ndarray
LAYERS = ("hidden", "output")


def forward_sample(
    w: Model, x: np.ndarray, layers: Sequence[str] = LAYERS
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For one sample: what enters every layer, and what every layer computes before the ReLU (the last: logits)."""
    entering = []
    computed = []
    a = np.array(x, dtype=np.float64)
    for position, layer in enumerate(layers):
        weight, bias = w[f"{layer}.weight"], w[f"{layer}.bias"]
        z = np.zeros(len(bias))
        for unit in range(len(bias)):
            z[unit] = float(np.dot(weight[unit], a)) + float(bias[unit])
        entering.append(a)
        computed.append(z)
        if position < len(layers) - 1:
            a = np.array([max(float(value), 0.0) for value in z])
    return entering, computed


def logits(w: Model, inputs: np.ndarray, layers: Sequence[str] = LAYERS) -> np.ndarray:
    """The last layer's output for every sample, (sample, class)."""
    return np.array([forward_sample(w, x, layers)[1][-1] for x in inputs])


def predict(w: Model, inputs: np.ndarray, layers: Sequence[str] = LAYERS) -> np.ndarray:
    """The class with the largest logit; the first of equals wins."""
    return np.array([int(np.argmax(row)) for row in logits(w, inputs, layers)], dtype=int)


def backward_sample(w: Model, x: np.ndarray, logit_gradient: np.ndarray, layers: Sequence[str] = LAYERS) -> Model:
    """Gradient of one sample's share of the loss, from its d loss / d logits."""
    entering, computed = forward_sample(w, x, layers)
    gradient = {}
    error = np.array(logit_gradient, dtype=np.float64)
    for position in range(len(layers) - 1, -1, -1):
        layer = layers[position]
        weight = w[f"{layer}.weight"]
        d_weight = np.zeros(weight.shape)
        below = np.zeros(weight.shape[1])
        for unit in range(len(error)):
            d_weight[unit] = error[unit] * entering[position]
            below = below + error[unit] * weight[unit]
        gradient[f"{layer}.weight"] = d_weight
        gradient[f"{layer}.bias"] = error
        if position > 0:
            passed = np.zeros(len(below))
            for unit in range(len(below)):
                if computed[position - 1][unit] > 0:
                    passed[unit] = below[unit]
            error = passed
    return gradient


def gradient(
    w: Model,
    inputs: np.ndarray,
    labels: Labels,
    logit_gradient: Callable[[np.ndarray, Labels], np.ndarray],
    layers: Sequence[str] = LAYERS,
) -> Model:
    """Gradient of the mean loss. logit_gradient(logits, labels) is one of losses.*_grad, of the mean already."""
    errors = logit_gradient(logits(w, inputs, layers), labels)
    total = {name: np.zeros(w[name].shape) for name in w}
    for x, error in zip(inputs, errors, strict=True):
        share = backward_sample(w, x, error, layers)
        for name in share:
            total[name] = total[name] + share[name]
    return total
