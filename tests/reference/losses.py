"""Losses on logits, with their gradients written by hand.

CE, TCE (004, Eq. 2), WSM (002, Eq. 4), FedRS (Li and Zhan 2021), FedLC (Zhang et al. 2022).

Notation: f_c is the logit of class c, y the label, n_c the number of training samples of class c on the client
(`class_counts`). A class is present when n_c > 0. Every loss is the mean over the samples of the batch, and every
`*_grad` is the derivative of that mean with respect to the logits, an array of the shape of `logits`.

TCE, WSM and FedLC are defined for labels that the client has. A label with n_y = 0 contradicts the counts and is
refused with ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log

import numpy as np


def log_sum_exp(terms: list[float]) -> float:
    """log of the sum of exp(term); the largest term is taken out first so that exp cannot overflow."""
    largest = max(terms)
    total = 0.0
    for term in terms:
        total += exp(term - largest)
    return largest + log(total)


def refuse_absent_labels(labels: Sequence[int] | np.ndarray, class_counts: Sequence[int] | np.ndarray) -> None:
    """Labels must be among the classes that the counts call present."""
    for label in labels:
        if class_counts[label] <= 0:
            raise ValueError(f"label {label} occurs in the batch but class_counts[{label}] is {class_counts[label]}")


def ce(logits: np.ndarray, labels: Sequence[int] | np.ndarray) -> float:
    """Cross-entropy (002, Eq. 3): mean of  log sum_c exp f_c - f_y."""
    samples, classes = logits.shape
    total = 0.0
    for i in range(samples):
        total += log_sum_exp([float(logits[i, c]) for c in range(classes)]) - float(logits[i, labels[i]])
    return total / samples


def ce_grad(logits: np.ndarray, labels: Sequence[int] | np.ndarray) -> np.ndarray:
    """d CE / d f_c = (p_c - [c = y]) / samples, with p_c = exp f_c / sum_j exp f_j."""
    samples, classes = logits.shape
    gradient = np.zeros((samples, classes))
    for i in range(samples):
        log_total = log_sum_exp([float(logits[i, c]) for c in range(classes)])
        for c in range(classes):
            probability = exp(float(logits[i, c]) - log_total)
            indicator = 1.0 if c == labels[i] else 0.0
            gradient[i, c] = (probability - indicator) / samples
    return gradient


def tce(logits: np.ndarray, labels: Sequence[int] | np.ndarray, class_counts: Sequence[int] | np.ndarray) -> float:
    """Truncated cross-entropy (004, Eq. 2): the sum runs over the classes present on the client only.

    mean of  log sum_{c present} exp f_c - f_y.   Equal to CE when every class is present.
    """
    refuse_absent_labels(labels, class_counts)
    samples, classes = logits.shape
    total = 0.0
    for i in range(samples):
        terms = [float(logits[i, c]) for c in range(classes) if class_counts[c] > 0]
        total += log_sum_exp(terms) - float(logits[i, labels[i]])
    return total / samples


def tce_grad(
    logits: np.ndarray, labels: Sequence[int] | np.ndarray, class_counts: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Present c: (q_c - [c = y]) / samples with q the softmax over present classes. Absent c: exactly 0."""
    refuse_absent_labels(labels, class_counts)
    samples, classes = logits.shape
    gradient = np.zeros((samples, classes))
    for i in range(samples):
        log_total = log_sum_exp([float(logits[i, c]) for c in range(classes) if class_counts[c] > 0])
        for c in range(classes):
            if class_counts[c] > 0:
                probability = exp(float(logits[i, c]) - log_total)
                indicator = 1.0 if c == labels[i] else 0.0
                gradient[i, c] = (probability - indicator) / samples
    return gradient


def label_shares(class_counts: Sequence[int] | np.ndarray) -> list[float]:
    """beta_c = n_c / n, the share of label c on the client (002, below Eq. 3)."""
    total = 0.0
    for count in class_counts:
        total += float(count)
    return [float(count) / total for count in class_counts]


def wsm(logits: np.ndarray, labels: Sequence[int] | np.ndarray, class_counts: Sequence[int] | np.ndarray) -> float:
    """Re-weighted softmax cross-entropy (002, Eq. 4): mean of  log sum_c beta_c exp f_c - f_y.

    A class with beta_c = 0 contributes nothing to the sum. There is no log beta_y in the second term, so the loss may
    be negative. Equal label counts: CE minus log C, hence the gradient of CE. One class only: identically 0.
    """
    refuse_absent_labels(labels, class_counts)
    shares = label_shares(class_counts)
    samples, classes = logits.shape
    total = 0.0
    for i in range(samples):
        terms = [log(shares[c]) + float(logits[i, c]) for c in range(classes) if shares[c] > 0]
        total += log_sum_exp(terms) - float(logits[i, labels[i]])
    return total / samples


def wsm_grad(
    logits: np.ndarray, labels: Sequence[int] | np.ndarray, class_counts: Sequence[int] | np.ndarray
) -> np.ndarray:
    """(q_c - [c = y]) / samples with q_c = beta_c exp f_c / sum_j beta_j exp f_j. Absent c: exactly 0."""
    refuse_absent_labels(labels, class_counts)
    shares = label_shares(class_counts)
    samples, classes = logits.shape
    gradient = np.zeros((samples, classes))
    for i in range(samples):
        log_total = log_sum_exp([log(shares[c]) + float(logits[i, c]) for c in range(classes) if shares[c] > 0])
        for c in range(classes):
            if shares[c] > 0:
                probability = exp(log(shares[c]) + float(logits[i, c]) - log_total)
                indicator = 1.0 if c == labels[i] else 0.0
                gradient[i, c] = (probability - indicator) / samples
    return gradient


def personalised_prediction(logits: np.ndarray, class_counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Personalised inference (002, A.4): argmax over present classes of f_c + log beta_c; the first of equals wins."""
    shares = label_shares(class_counts)
    samples, classes = logits.shape
    predictions = np.zeros(samples, dtype=int)
    for i in range(samples):
        best_class = -1
        best_value = 0.0
        for c in range(classes):
            if shares[c] > 0:
                value = float(logits[i, c]) + log(shares[c])
                if best_class == -1 or value > best_value:
                    best_class = c
                    best_value = value
        predictions[i] = best_class
    return predictions


def fedrs(
    logits: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    class_counts: Sequence[int] | np.ndarray,
    alpha: float,
) -> float:
    """Restricted softmax (FedRS, Li and Zhan 2021): cross-entropy of the scaled logits s_c f_c.

    s_c = 1 for a present class, alpha in [0, 1] for an absent one.
    alpha = 1 is CE. alpha = 0 is *not* TCE: an absent class still contributes exp(0) = 1 to the sum.
    """
    samples, classes = logits.shape
    total = 0.0
    for i in range(samples):
        scaled = []
        for c in range(classes):
            scale = 1.0 if class_counts[c] > 0 else alpha
            scaled.append(scale * float(logits[i, c]))
        total += log_sum_exp(scaled) - scaled[labels[i]]
    return total / samples


def fedrs_grad(
    logits: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    class_counts: Sequence[int] | np.ndarray,
    alpha: float,
) -> np.ndarray:
    """s_c (p_c - [c = y]) / samples with p the softmax of the scaled logits (chain rule through s_c f_c)."""
    samples, classes = logits.shape
    gradient = np.zeros((samples, classes))
    for i in range(samples):
        scales = [1.0 if class_counts[c] > 0 else alpha for c in range(classes)]
        scaled = [scales[c] * float(logits[i, c]) for c in range(classes)]
        log_total = log_sum_exp(scaled)
        for c in range(classes):
            probability = exp(scaled[c] - log_total)
            indicator = 1.0 if c == labels[i] else 0.0
            gradient[i, c] = scales[c] * (probability - indicator) / samples
    return gradient


def fedlc(
    logits: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    class_counts: Sequence[int] | np.ndarray,
    tau: float,
) -> float:
    """Calibrated cross-entropy (FedLC, Zhang et al. 2022): CE of the logits f_c - tau n_c^(-1/4).

    The sum runs over every present class, the label included, so that this is a softmax cross-entropy.
    An absent class has n_c = 0, an infinite margin, and vanishes from the sum. So tau = 0 is TCE, not CE.
    Equal counts of all present classes: also TCE, whatever tau, because the margins cancel.
    """
    refuse_absent_labels(labels, class_counts)
    samples, classes = logits.shape
    total = 0.0
    for i in range(samples):
        calibrated = {}
        for c in range(classes):
            if class_counts[c] > 0:
                calibrated[c] = float(logits[i, c]) - tau * float(class_counts[c]) ** (-0.25)
        total += log_sum_exp(list(calibrated.values())) - calibrated[int(labels[i])]
    return total / samples


def fedlc_grad(
    logits: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    class_counts: Sequence[int] | np.ndarray,
    tau: float,
) -> np.ndarray:
    """(q_c - [c = y]) / samples with q the softmax of the calibrated logits of present classes. Absent c: exactly 0."""
    refuse_absent_labels(labels, class_counts)
    samples, classes = logits.shape
    gradient = np.zeros((samples, classes))
    for i in range(samples):
        calibrated = {}
        for c in range(classes):
            if class_counts[c] > 0:
                calibrated[c] = float(logits[i, c]) - tau * float(class_counts[c]) ** (-0.25)
        log_total = log_sum_exp(list(calibrated.values()))
        for c, value in calibrated.items():
            indicator = 1.0 if c == labels[i] else 0.0
            gradient[i, c] = (exp(value - log_total) - indicator) / samples
    return gradient


def numeric_gradient(function: Callable[[np.ndarray], float], point: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences: (function(x + step e_j) - function(x - step e_j)) / (2 step) for every element j."""
    gradient = np.zeros(point.shape)
    for index in np.ndindex(*point.shape):
        above = point.astype(np.float64)
        below = point.astype(np.float64)
        above[index] += step
        below[index] -= step
        gradient[index] = (function(above) - function(below)) / (2 * step)
    return gradient
