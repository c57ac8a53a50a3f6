"""FedWAgg (001): phases 2 to 4, given the clustering of phase 1.

    phase 2   cluster model_c = FedAvg of the client models assigned to c
    phase 3   score_c = mean over the drawn clients of the accuracy of cluster model_c on the client's own data
    phase 4   w_t = sum_c (score_c / sum score) cluster model_c

All scores zero: uniform weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np

Model = dict[str, np.ndarray]


def weight_features(model: Model) -> list[float]:
    """Phase 1, features="weights": all weights of one client in one row, tensors in the model's own order."""
    row = []
    for name in model:
        for value in model[name].reshape(-1):
            row.append(float(value))
    return row


def update_features(model: Model, start: Model) -> list[float]:
    """Phase 1, features="update": (w^k - w_{t-1}) / ||w^k - w_{t-1}||; a zero update stays zero."""
    row = []
    for name in model:
        for value in (model[name] - start[name]).reshape(-1):
            row.append(float(value))
    square = 0.0
    for value in row:
        square += value**2
    if square == 0:
        return row
    return [value / sqrt(square) for value in row]


def cluster_models(
    models: Sequence[Model], examples: Sequence[float], assignment: Sequence[int], clusters: int
) -> list[Model]:
    """Phase 2: for every cluster, the mean of its members weighted by their number of examples."""
    result = []
    for c in range(clusters):
        members = [k for k in range(len(models)) if assignment[k] == c]
        if not members:
            raise ValueError(f"cluster {c} has no member in the assignment {list(assignment)}")
        total_examples = 0.0
        for k in members:
            total_examples += examples[k]
        merged = {}
        for name in models[0]:
            total = np.zeros(models[0][name].shape)
            for k in members:
                total = total + examples[k] / total_examples * models[k][name]
            merged[name] = total
        result.append(merged)
    return result


def accuracy(predictions: Sequence[int] | np.ndarray, labels: Sequence[int] | np.ndarray) -> float:
    """Share of right predictions."""
    right = 0
    for prediction, label in zip(predictions, labels, strict=True):
        if int(prediction) == int(label):
            right += 1
    return right / len(labels)


def scores(
    merged: Sequence[Model],
    evaluators: Sequence[Sequence[int]],
    client_accuracy: Callable[[Model, int], float],
) -> list[float]:
    """Phase 3: evaluators[c] are the clients drawn for cluster c; the score is their plain mean accuracy."""
    result = []
    for model, drawn in zip(merged, evaluators, strict=True):
        total = 0.0
        for k in drawn:
            total += client_accuracy(model, k)
        result.append(total / len(drawn))
    return result


def final_weights(cluster_scores: Sequence[float]) -> list[float]:
    """Phase 3, last sentence: the scores scaled to sum to 1; uniform when all are zero."""
    total = 0.0
    for score in cluster_scores:
        total += score
    if total == 0:
        return [1.0 / len(cluster_scores) for _ in cluster_scores]
    return [score / total for score in cluster_scores]


def aggregate(merged: Sequence[Model], weights: Sequence[float]) -> Model:
    """Phase 4: sum_c weight_c cluster model_c."""
    result = {}
    for name in merged[0]:
        total = np.zeros(merged[0][name].shape)
        for model, weight in zip(merged, weights, strict=True):
            total = total + weight * model[name]
        result[name] = total
    return result


def global_round(
    models: Sequence[Model],
    examples: Sequence[float],
    assignment: Sequence[int],
    clusters: int,
    evaluators: Sequence[Sequence[int]],
    client_accuracy: Callable[[Model, int], float],
) -> Model:
    """Phases 2 to 4 in one go."""
    merged = cluster_models(models, examples, assignment, clusters)
    weights = final_weights(scores(merged, evaluators, client_accuracy))
    return aggregate(merged, weights)
