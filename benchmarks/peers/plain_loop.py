"""What one would write by hand: a plain PyTorch loop over clients, in one forked process with one thread per core."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
import torch.multiprocessing as multiprocessing
from peers.torch_models import build, tensors
from torch import Tensor
from torch.nn import functional
from turns import TASK, Turns
from workloads import LEARNING_RATE, Task

CORES = len(os.sched_getaffinity(0))


def trainer(task: Task) -> Callable[[list[int], Tensor], Tensor]:
    """(clients, global weights as one vector) -> the sum of their weights after local training."""
    model = build(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    x, y, parts = tensors(task)

    def train(client: int) -> None:
        inputs, labels = x[parts[client]], y[parts[client]]
        for _ in range(task.epochs):
            for rows in torch.randperm(len(labels)).split(task.batch_size):
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
                optimizer.step()

    def run(clients: list[int], start: Tensor) -> Tensor:
        total = torch.zeros_like(start)
        for client in clients:
            with torch.no_grad():
                torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
            train(client)
            with torch.no_grad():
                total += torch.nn.utils.parameters_to_vector(model.parameters())
        return total

    return run


def serve(task: Task, rank: int, start: Tensor, total: Tensor, line: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    run = trainer(task)
    line.send(None)
    while (clients := line.recv()) is not None:
        total.copy_(run(clients, start))
        line.send(None)


def main() -> None:
    torch.set_num_threads(1)
    turns, task = Turns(), Task.load(os.environ[TASK])
    model = build(task)
    vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach().share_memory_()
    totals = torch.zeros(CORES, len(vector)).share_memory_()
    context = multiprocessing.get_context("fork")
    lines = []
    for rank in range(CORES):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(task, rank, vector, totals[rank], theirs), daemon=True).start()
        lines.append(ours)
    for line in lines:
        line.recv()
    turns.ready(version=torch.__version__, how=f"{CORES} processes x 1 thread")
    for cohort in task.schedule:
        turns.start()
        for rank, line in enumerate(lines):
            line.send(cohort[rank::CORES].tolist())
        for line in lines:
            line.recv()
        torch.sum(totals, 0, out=vector)
        vector /= len(cohort)
        turns.stop()
    torch.nn.utils.vector_to_parameters(vector, model.parameters())
    turns.end({name: value.detach().numpy() for name, value in model.state_dict().items()})
    for line in lines:
        line.send(None)


if __name__ == "__main__":
    main()
