"""FedWAvg (000): federated weighted averaging by example forgetting, Eq. 1, Eq. 2, Algorithm 1.

An example of client k is forgettable when client k's own model at the end of its previous training classified it
correctly and the global model that the client then receives does not. F[k] is their number (Alg. 1, line 11).

    W[k] = (1 - alpha) + alpha N F[k] / sum F             0 <= alpha < 1            Eq. 1, 2; line 14
    w_t  = (1/N) sum_k W[k] w_t^k                                                    line 15

The weights sum to N. Where the paper is silent:
- sum F = 0: W = 1, the plain average. (The paper starts from F = 1 for everyone, which also gives W = 1.)
- F is counted in rounds divisible by the event period, rounds being numbered from 1; otherwise the last F is kept.
- Partial participation: N = |S_t| and F runs over the cohort. A client without a count (never seen before, or seen but
  not yet counted) takes the mean F of the cohort's counted members; when no member is counted, W = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Model = dict[str, np.ndarray]


@dataclass(frozen=True)
class Round:
    """One round of the simulation: who took part, F and W of each in cohort order, the global model after it.

    A count is None where the client had none; the mean of the others stands in for it in W.
    """

    cohort: list[int]
    counts: list[float | None]
    weights: list[float]
    model: Model


def correct(predictions: Sequence[int] | np.ndarray, labels: Sequence[int] | np.ndarray) -> list[bool]:
    """Which examples a model classifies correctly."""
    return [int(prediction) == int(label) for prediction, label in zip(predictions, labels, strict=True)]


def forgettable_count(local_correct: Sequence[bool], global_correct: Sequence[bool]) -> int:
    """Examples that the client's last own model got right and the received global model gets wrong."""
    count = 0
    for local_right, global_right in zip(local_correct, global_correct, strict=True):
        if local_right and not global_right:
            count += 1
    return count


def fill_missing(counts: Sequence[float | None]) -> list[float]:
    """A client without a count takes the mean of the counted members of the cohort; nobody counted: all 0."""
    known = []
    for count in counts:
        if count is not None:
            known.append(float(count))
    mean = sum(known) / len(known) if known else 0.0
    return [mean if count is None else float(count) for count in counts]


def averaging_weights(counts: Sequence[float | None], alpha: float) -> list[float]:
    """W[k] = (1 - alpha) + alpha N F[k] / sum F; all 1 when sum F = 0."""
    filled = fill_missing(counts)
    clients = len(filled)
    total = sum(filled)
    if total == 0:
        return [1.0 for _ in filled]
    return [(1.0 - alpha) + alpha * clients * count / total for count in filled]


def aggregate(models: Sequence[Model], weights: Sequence[float]) -> Model:
    """(1/N) sum_k W[k] w^k; batch-norm buffers go the same way as parameters."""
    clients = len(models)
    result = {}
    for name in models[0]:
        total = np.zeros(models[0][name].shape)
        for model, weight in zip(models, weights, strict=True):
            total = total + weight * model[name]
        result[name] = total / clients
    return result


def simulate(
    start: Model,
    data: Sequence[tuple[np.ndarray, np.ndarray]],
    predict: Callable[[Model, np.ndarray], Sequence[int] | np.ndarray],
    train: Callable[[Model, int, int], Model],
    cohorts: Sequence[Sequence[int]],
    alpha: float,
    event_period: int = 1,
) -> list[Round]:
    """Algorithm 1, keeping every client's whole last model.

    data[k] = (inputs, labels) of client k; predict(model, inputs) gives labels; train(model, round, client) gives the
    client's model after local training. Rounds are numbered from 1, cohorts[0] is round 1.
    """
    global_model = start
    own_model: dict[int, Model] = {}
    last_count: dict[int, float] = {}
    rounds = []
    for number, cohort in enumerate(cohorts, start=1):
        models = []
        for k in cohort:
            inputs, labels = data[k]
            if number % event_period == 0 and k in own_model:
                local_correct = correct(predict(own_model[k], inputs), labels)
                global_correct = correct(predict(global_model, inputs), labels)
                last_count[k] = forgettable_count(local_correct, global_correct)
            own_model[k] = train(global_model, number, k)
            models.append(own_model[k])
        counts = [last_count.get(k) for k in cohort]
        weights = averaging_weights(counts, alpha)
        global_model = aggregate(models, weights)
        rounds.append(Round(list(cohort), counts, weights, global_model))
    return rounds
