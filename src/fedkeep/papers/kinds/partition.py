"""Pictures of who holds what; nothing is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedkeep.data.partition import parse as parse_partition
from fedkeep.experiment.build import data_key, load_data
from fedkeep.experiment.config import Config
from fedkeep.papers import figures
from fedkeep.papers.cells import Table
from fedkeep.papers.expand import Row
from fedkeep.papers.kinds.base import Context, Outcome
from fedkeep.rng import stream

SHOWN = 10  # clients, as in the papers
NUMBERS = {
    "classes a client holds, mean": ("plain", lambda counts: float((counts > 0).sum(1).mean())),
    "share of the largest class, mean": ("share", lambda counts: float(_shares(counts).max(1).mean())),
    "clients that hold every class": ("percent", lambda counts: float((counts > 0).all(1).mean())),
}


def partition(context: Context) -> Outcome:
    """Stacked bars of ten randomly chosen clients, a panel per column; in numbers over all clients and seeds."""
    cells, shown = {}, {}
    context.store.prepare(context.plan.arms)
    for place in context.plan.places:
        config = context.arm_at(place).config
        found = {seed: holdings(context.store.located(replace(config, seed=seed))) for seed in context.plan.seeds}
        for name, (unit, value) in NUMBERS.items():
            values = {seed: value(counts) for seed, counts in found.items()}
            cells[name, place.name] = context.cell(Row(name), place.name, values, unit)
        counts = found[context.plan.seeds[0]]
        chosen = np.sort(stream(context.plan.seeds[0], "shown clients").permutation(len(counts))[:SHOWN])
        shown[place.name] = (chosen, _shares(counts)[chosen])
    table = Table(context.recipe.title, list(NUMBERS), [place.name for place in context.plan.places], cells)
    return Outcome([table], figures.stacked(shown, context.recipe.title))


def holdings(config: Config) -> np.ndarray:
    """counts[k, c] of a config's partition."""
    dataset = load_data(data_key(config))
    labels = dataset.train_y.numpy()
    made = parse_partition(config.partition).build(labels, config.clients or None, config.seed, groups=dataset.groups)
    return made.label_counts(labels, dataset.classes)


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)
