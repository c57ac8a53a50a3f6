"""FedLab: SGDSerialClientTrainer and SyncServerHandler in one process, batches from memory (its fastest way).

FedLab imports torchvision for the data sets that it bundles; none is used here, so an empty stand-in does.
"""

from __future__ import annotations

import os
import sys
import types
from importlib.metadata import version

import torch
from turns import TASK, Turns
from workloads import LEARNING_RATE, Task


class StandIn(types.ModuleType):
    """A module that has every name and does nothing."""

    __path__ = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for module in ("", ".transforms", ".datasets", ".datasets.utils", ".models", ".utils"):
    sys.modules["torchvision" + module] = StandIn("torchvision" + module)

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from peers.torch_models import build, final, tensors  # noqa: E402


class Batches:
    """Shuffled batches of one client, as light as can be."""

    def __init__(self, x, y, size: int) -> None:
        self.x, self.y, self.size, self.dataset = x, y, size, y

    def __iter__(self):
        for rows in torch.randperm(len(self.y)).split(self.size):
            yield self.x[rows], self.y[rows]

    def __len__(self) -> int:
        return -(-len(self.y) // self.size)


class Clients:
    def __init__(self, task: Task) -> None:
        self.x, self.y, self.parts = tensors(task)

    def get_dataloader(self, client: int, size: int) -> Batches:
        return Batches(self.x[self.parts[client]], self.y[self.parts[client]], size)


class Silent:
    def info(self, *_) -> None: ...

    debug = warning = error = info


def main() -> None:
    turns, task = Turns(), Task.load(os.environ[TASK])
    threads = 1 if task.model == "mlp" else len(os.sched_getaffinity(0))  # what is faster for each
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    clients = len(task.parts)
    share = task.schedule.shape[1] / clients
    server = SyncServerHandler(build(task), task.rounds, sample_ratio=share, cuda=False, logger=Silent())
    server.num_clients = clients
    trainer = SGDSerialClientTrainer(build(task), clients, cuda=False, logger=Silent())
    trainer.setup_dataset(Clients(task))
    trainer.setup_optim(task.epochs, task.batch_size, LEARNING_RATE)
    turns.ready(version=version("fedlab"), how=f"1 process, threads: {threads}")
    for cohort in task.schedule:
        turns.start()
        trainer.local_process(server.downlink_package, cohort.tolist())
        for package in trainer.uplink_package:
            server.load(package)
        turns.stop()
    turns.end(final(server.model))


if __name__ == "__main__":
    main()
