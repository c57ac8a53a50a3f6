"""Personalised inference (WSM paper, A.4): the global model, with each client's label shares put in at test time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from fedkeep.experiment.build import prepare
from fedkeep.local.evaluate import logits_of
from fedkeep.metrics.forgetting import personalised as predict
from fedkeep.papers import figures
from fedkeep.papers.kinds.base import Context, Outcome
from fedkeep.papers.store import Finished

COLUMNS = ("plain softmax", "personalised", "gain")


def personalised(context: Context) -> Outcome:
    """Accuracy on what clients hold out, with and without; and what it gains."""
    places = context.plan.places
    where = {_name(places, place.name, what): (place, what) for place in places for what in COLUMNS}

    def value(run: Finished, row: object, column: str) -> float:
        plain, ours = accuracies(run)
        return {"plain softmax": plain, "personalised": ours, "gain": ours - plain}[where[column][1]]

    recipe = context.recipe
    table = context.grid(recipe.title, list(where), value, lambda column: where[column][0], recipe.unit)
    return Outcome([table], figures.points(table, recipe.title))


def _name(places: tuple, place: str, what: str) -> str:
    return what if len(places) == 1 else f"{place}, {what}"


@lru_cache(maxsize=64)
def accuracies(run: Finished) -> tuple[float, float]:
    """Accuracy of a run's last global model on all clients' held-out examples: plain, and personalised.

    The label shares are those of each client's training examples; every example counts alike.
    """
    prepared = prepare(run.config)
    population = prepared.population
    tensors = {name: tensor for name, tensor in run.model.items() if isinstance(tensor, torch.Tensor)}
    plain, ours, total = 0, 0, 0
    for client in range(len(population)):
        rows, _ = population.judging_rows(np.array([client]))
        chosen = torch.from_numpy(rows)
        labels = population.y[chosen].numpy()
        logits = logits_of(prepared.model, tensors, {}, population.x[chosen]).numpy()
        counts = population.class_counts(population.examples(client)[1]).numpy()
        plain += int((logits.argmax(1) == labels).sum())
        ours += int((predict(logits, counts) == labels).sum())
        total += len(labels)
    return plain / total, ours / total
