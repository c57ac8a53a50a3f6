"""pfl: SimulatedBackend and FederatedAveraging, one process with one thread per core (gloo).

Run by `python -m torch.distributed.run --nproc_per_node CORES`. pfl's Dataset does not shuffle: each client's examples
are shuffled once a visit.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from peers.torch_models import build, final, tensors
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.version import __version__
from torch.nn import functional
from turns import TASK, Turns
from workloads import LEARNING_RATE, Task

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class InTurns(TrainingProcessCallback):
    """Waits between rounds: the first process for its turn, the others for the first."""

    def __init__(self, turns: Turns | None, rounds: int) -> None:
        self._turns, self._left = turns, rounds

    def on_train_begin(self, *, model):
        if self._turns:
            self._turns.ready(version=__version__, how=f"{WORLD} processes x 1 thread")
        self._wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self._left -= 1
        if self._turns:
            self._turns.stop()
        if self._left:
            self._wait()
        return False, Metrics()

    def _wait(self) -> None:
        if self._turns:
            self._turns.start()
        if WORLD > 1:
            torch.distributed.barrier()


def pfl_model(task: Task) -> PyTorchModel:
    model = build(task)

    def loss(x, y):
        model.train()
        return functional.cross_entropy(model(x), y)

    model.loss, model.metrics = loss, lambda x, y: {"loss": Weighted(0.0, 1)}
    central = torch.optim.SGD(model.parameters(), lr=1.0)
    return PyTorchModel(model, local_optimizer_create=torch.optim.SGD, central_optimizer=central)


def federated(task: Task) -> FederatedDataset:
    """The clients, in the order of the schedule; every process draws the same order and takes its share."""
    x, y, parts = tensors(task)
    rng, order = np.random.Generator(np.random.PCG64(RANK)), iter(task.schedule.reshape(-1).tolist())

    def client(number: int) -> Dataset:
        rows = parts[number][torch.from_numpy(rng.permutation(parts.shape[1]))]
        return Dataset(raw_data=[x[rows], y[rows]], user_id=str(number))

    return FederatedDataset(client, lambda: next(order))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task, turns = Task.load(os.environ[TASK]), Turns() if RANK == 0 else None
    model, data = pfl_model(task), federated(task)
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    cohort = task.schedule.shape[1]
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=10**6,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=task.epochs, local_learning_rate=LEARNING_RATE, local_batch_size=task.batch_size
        ),
        NNEvalHyperParams(local_batch_size=1000),
        callbacks=[InTurns(turns, task.rounds)],
    )
    if turns:
        turns.end(final(model.pytorch_model))


if __name__ == "__main__":
    main()
