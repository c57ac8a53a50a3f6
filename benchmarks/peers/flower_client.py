"""What a Flower client does, inside its Ray actor: data and model are made once per actor."""

from __future__ import annotations

import os
from functools import cache

import torch
from peers.torch_models import build, tensors
from torch import Tensor, nn
from torch.nn import functional
from turns import TASK
from workloads import LEARNING_RATE, Task


@cache
def bench() -> tuple[Task, nn.Module, Tensor, Tensor, Tensor]:
    torch.set_num_threads(1)
    task = Task.load(os.environ[TASK])
    return task, build(task), *tensors(task)


def train(client: int, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Train one client from these weights; its weights and number of examples."""
    task, model, x, y, parts = bench()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    inputs, labels = x[parts[client]], y[parts[client]]
    for _ in range(task.epochs):
        for rows in torch.randperm(len(labels)).split(task.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    return model.state_dict(), len(labels)
