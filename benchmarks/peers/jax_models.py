"""The workloads' models in JAX: channels last, kernels [height, width, in, out], dense weights [in, out]."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def to_jax(params):
    """Weights in torch's layout -> ours."""
    axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
    return {name: jnp.asarray(value.transpose(axes[value.ndim])) for name, value in params.items()}


def to_torch(params):
    """Our weights -> torch's layout."""
    axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}
    return {n: np.ascontiguousarray(np.asarray(value).transpose(axes[value.ndim])) for n, value in params.items()}


def convolution(x, kernel, stride=1):
    sides = ((kernel.shape[0] // 2,) * 2, (kernel.shape[1] // 2,) * 2)
    return lax.conv_general_dilated(x, kernel, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pool(x):
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))


def dense(p, name, x):
    return x @ p[name + ".weight"] + p[name + ".bias"]


def mlp(p, x):
    return dense(p, "classifier", jax.nn.relu(dense(p, "hidden", x)))


def cnn(p, x):
    for name in ("conv1", "conv2"):
        x = pool(jax.nn.relu(convolution(x, p[name + ".weight"]) + p[name + ".bias"]))
    x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)  # flattened in torch's order
    return dense(p, "classifier", jax.nn.relu(dense(p, "dense", x)))


def group_norm(p, name, x):
    n, height, width, channels = x.shape
    y = x.reshape(n, height, width, 32, channels // 32)
    mean = y.mean((1, 2, 4), keepdims=True)
    variance = ((y - mean) ** 2).mean((1, 2, 4), keepdims=True)
    plain = ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return plain * p[name + ".weight"] + p[name + ".bias"]


def block(p, name, x, stride):
    inner = jax.nn.relu(group_norm(p, name + "norm1", convolution(x, p[name + "conv1.weight"], stride)))
    inner = group_norm(p, name + "norm2", convolution(inner, p[name + "conv2.weight"]))
    if name + "shortcut.0.weight" in p:
        x = group_norm(p, name + "shortcut.1", convolution(x, p[name + "shortcut.0.weight"], stride))
    return jax.nn.relu(inner + x)


def resnet18(p, x):
    x = jax.nn.relu(group_norm(p, "stem_norm", convolution(x, p["stem.weight"])))
    for stage in range(4):
        x = block(p, f"stages.{stage}.0.", x, 1 if stage == 0 else 2)
        x = block(p, f"stages.{stage}.1.", x, 1)
    return dense(p, "classifier", x.mean((1, 2)))


MODELS = {"mlp": mlp, "cnn": cnn, "resnet18": resnet18}
