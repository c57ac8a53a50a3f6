"""Measure forgetting in a training loop of your own: plain PyTorch, FedAvg, the digits of scikit-learn.

    python examples/meter_pytorch.py --rounds 10

Five clients hold two digits each. The four lines that concern the meter are marked.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedkeep as fk

CLIENTS = 5


def digits_of(client: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A client's training and held-out examples: the digits 2k and 2k + 1, every fifth held out."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    mine = torch.nonzero(y // 2 == client).flatten()
    held_out = torch.arange(len(mine)) % 5 == 0
    return (x[mine[~held_out]], y[mine[~held_out]]), (x[mine[held_out]], y[mine[held_out]])


def local_training(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.randperm(len(y), generator=generator).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def average(models: Sequence[nn.Module], weights: Sequence[float]) -> dict[str, Tensor]:
    states = [model.state_dict() for model in models]
    total = sum(weights)
    return {
        name: torch.stack([w / total * s[name] for w, s in zip(weights, states, strict=True)]).sum(0)
        for name in states[0]
    }


def federated(rounds: int) -> fk.ForgettingMeter:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    split = {client: digits_of(client) for client in range(CLIENTS)}
    train = {client: pair[0] for client, pair in split.items()}
    held_out = {client: pair[1] for client, pair in split.items()}
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    meter = fk.ForgettingMeter(held_out, classes=10, train=train)  # 1: what models are judged on
    for _ in range(rounds):
        meter.open(model)  # 2: the model that clients receive
        local = []
        for client in range(CLIENTS):
            mine = copy.deepcopy(model)
            local_training(mine, *train[client], generator)
            meter.local(client, mine)  # 3: what each client made of it
            local.append(mine)
        model.load_state_dict(average(local, [len(train[client][1]) for client in range(CLIENTS)]))
        meter.close(model)  # 4: what the server made of these
    return meter


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="FedAvg in plain PyTorch, with a meter for forgetting.")
    parser.add_argument("--rounds", type=int, default=10)
    meter = federated(parser.parse_args(arguments).rounds)

    rounds = meter.frame("rounds")
    print(rounds[["round", "validation_accuracy", "forgetting", "forgettable"]].round(3).to_string(index=False))
    pairs = meter.frame("forgetting")
    last = pairs[pairs["round"] == pairs["round"].max()]
    print("\nForgetting in the last round: accuracy that each client's model lost on each client's data")
    print(last.pivot(index="data", columns="model", values="forgetting").round(2).to_string())
    print(f"\nAverage forgetting over all rounds: {rounds['forgetting'].mean():.3f}")


if __name__ == "__main__":
    main()
