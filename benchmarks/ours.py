"""FedKeep in a race: a simulation made as `fedkeep run` makes it, one `step()` a round.

The options come as JSON in the environment: `run` (those of `fedkeep run`) and `vary` (what no option says, for the
growth table and for the cost of measuring).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import numpy as np
import torch
from turns import OPTIONS, STARTED, Turns

import fedkeep
from fedkeep.data.partition_core import Partition
from fedkeep.engine.base import JUDGING_CHUNK
from fedkeep.experiment.build import Prepared, cores, engine_for, prepare, resolved, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.model import Model
from fedkeep.models.mlp import MLP
from fedkeep.rng import stream, torch_seeded
from fedkeep.simulate import Simulation

IMPORTED = time.time()
STAGES = ("import", "data", "memory layout chosen", "step recorded, workers ready")


def varied(
    prepared: Prepared, hold_nothing: bool = False, hidden: int = 0, population: int = 0, cohort: int = 0
) -> Prepared:
    """The experiment with some things changed.

    hold_nothing: held-out examples are not trained on and not judged either
    hidden: units of the MLP's hidden layer
    population, cohort: so many clients, so many a round; clients share examples, each holds as many as before
    """
    people = prepared.population
    if hold_nothing:
        nobody = Partition(np.zeros(0, np.int64), np.zeros(len(people) + 1, np.int64))
        prepared = replace(prepared, population=replace(people, held_out=nobody))
    if hidden:
        with torch_seeded(stream(0, "model")):
            module = MLP(prepared.dataset.shape, prepared.dataset.classes, hidden)
        prepared = replace(prepared, model=Model.of(module))
    if population:
        each = int(people.train.sizes[0])
        starts = stream(0, "population").integers(0, len(people.y) - each, population)
        rows = (starts[:, None] + np.arange(each)).ravel()
        partition = Partition(rows, np.arange(population + 1) * each)
        nobody = Partition(np.zeros(0, np.int64), np.zeros(population + 1, np.int64))
        prepared = replace(prepared, population=replace(people, train=partition, held_out=nobody))
    return replace(prepared, cohort_size=cohort) if cohort else prepared


def wake(simulation: Simulation, workers: int) -> None:
    """Have every worker answer once."""
    rows = np.arange(min(len(simulation.population.y), JUDGING_CHUNK * (workers - 1) + 1))
    simulation.engine.judge(simulation.state.params, simulation.state.buffers, "train", rows)


def main() -> None:
    turns, given = Turns(), json.loads(os.environ[OPTIONS])
    torch.set_num_threads(1)  # as `fedkeep run` does
    times = [float(os.environ[STARTED]), IMPORTED]
    prepared = varied(prepare(Config(**given["run"])), **given.get("vary", {}))
    times.append(time.time())
    prepared = resolved(prepared)
    times.append(time.time())
    config, workers = prepared.config, prepared.config.workers or cores()
    simulation = simulation_of(prepared, engine_for(config))
    wake(simulation, workers)
    times.append(time.time())
    turns.ready(
        version=fedkeep.__version__,
        how=f"{workers} {'worker' if workers == 1 else 'workers'} x 1 thread",
        layout=config.layout,
        stages=dict(zip(STAGES, np.diff(times).tolist(), strict=True)),
    )
    try:
        for _ in range(config.rounds - 1):
            turns.start()
            simulation.step()
            turns.stop()
        turns.end({name: tensor.numpy() for name, tensor in simulation.state.params.items()})
    finally:
        simulation.engine.close()


if __name__ == "__main__":
    main()
