"""Diagonal Fisher of one convolution layer (003, Eq. 1), one sample and one output position at a time.

Shapes as in torch: inputs (sample, channel, row, column), weight (filter, channel, row, column), bias (filter).
Symmetric zero padding, square stride, cross-correlation (no flipped kernel):

    out[o, p, q] = bias[o] + sum_{c,i,j} weight[o, c, i, j] x[c, p s + i - pad, q s + j - pad]

With e = d log p(y|x) / d out of one sample:

    d weight[o, c, i, j] = sum_{p,q} e[o, p, q] x[c, p s + i - pad, q s + j - pad]
    d bias[o] = sum_{p,q} e[o, p, q]
    F = mean over samples of the squares of these sums (the square comes after the sum over positions)
"""

from __future__ import annotations

import numpy as np


def output_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Number of output positions along one axis."""
    return (size + 2 * padding - kernel) // stride + 1


def pixel(x: np.ndarray, channel: int, row: int, column: int) -> float:
    """x[channel, row, column], 0 outside the image."""
    if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
        return float(x[channel, row, column])
    return 0.0


def conv2d(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int = 1, padding: int = 0) -> np.ndarray:
    """The layer's output for one sample x (channel, row, column)."""
    filters, channels, kernel_rows, kernel_columns = weight.shape
    rows = output_size(x.shape[1], kernel_rows, stride, padding)
    columns = output_size(x.shape[2], kernel_columns, stride, padding)
    out = np.zeros((filters, rows, columns))
    for o in range(filters):
        for p in range(rows):
            for q in range(columns):
                total = float(bias[o])
                for c in range(channels):
                    for i in range(kernel_rows):
                        for j in range(kernel_columns):
                            row, column = p * stride + i - padding, q * stride + j - padding
                            total += float(weight[o, c, i, j]) * pixel(x, c, row, column)
                out[o, p, q] = total
    return out


def sample_gradient(
    x: np.ndarray, out_gradient: np.ndarray, kernel: tuple[int, int], stride: int = 1, padding: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of one sample with respect to weight and bias, from x and the gradient at the layer's output."""
    filters, rows, columns = out_gradient.shape
    channels = x.shape[0]
    d_weight = np.zeros((filters, channels, kernel[0], kernel[1]))
    d_bias = np.zeros(filters)
    for o in range(filters):
        for p in range(rows):
            for q in range(columns):
                error = float(out_gradient[o, p, q])
                d_bias[o] += error
                for c in range(channels):
                    for i in range(kernel[0]):
                        for j in range(kernel[1]):
                            row, column = p * stride + i - padding, q * stride + j - padding
                            d_weight[o, c, i, j] += error * pixel(x, c, row, column)
    return d_weight, d_bias


def per_sample_gradients(
    inputs: np.ndarray, out_gradients: np.ndarray, kernel: tuple[int, int], stride: int = 1, padding: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of every sample: (sample, *weight shape) and (sample, *bias shape)."""
    weights, biases = [], []
    for x, out_gradient in zip(inputs, out_gradients, strict=True):
        d_weight, d_bias = sample_gradient(x, out_gradient, kernel, stride, padding)
        weights.append(d_weight)
        biases.append(d_bias)
    return np.array(weights), np.array(biases)


def fisher(
    inputs: np.ndarray, out_gradients: np.ndarray, kernel: tuple[int, int], stride: int = 1, padding: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Mean over samples of the squared gradients of weight and bias.

    out_gradients[i] must be the gradient of sample i's own log-likelihood, not of the mean over the batch.
    """
    d_weights, d_biases = per_sample_gradients(inputs, out_gradients, kernel, stride, padding)
    fisher_weight = np.zeros(d_weights[0].shape)
    fisher_bias = np.zeros(d_biases[0].shape)
    for d_weight, d_bias in zip(d_weights, d_biases, strict=True):
        fisher_weight += d_weight**2 / len(inputs)
        fisher_bias += d_bias**2 / len(inputs)
    return fisher_weight, fisher_bias
