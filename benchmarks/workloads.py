"""The workloads that FedKeep and its peers are timed on, and the file through which all get the same work.

Only numpy here: the peers read a task with their own interpreters. What a seed means (who holds what, who takes part
in which round, the initial weights) is FedKeep's; `tasks.py` writes it down and the peers follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LEARNING_RATE = 0.01
PLAIN: dict[str, Any] = {
    "method": "fedavg",
    "lr": LEARNING_RATE,
    "validation": 0.0,
    "forgetting": "off",
    "judge_every": 0,
}
"""Training alone: nothing held out, nothing judged."""


@dataclass(frozen=True)
class Workload:
    """What is trained (options of a FedKeep run), on which data, and how often it is timed."""

    title: str
    data: str  # "mnist", "noise", "images" or "cifar-shaped": see tasks.py
    options: Mapping[str, Any] = field(default_factory=dict)
    turns: int = 3  # how often each contender has its turn, after one round to warm up
    rounds_a_turn: int = 1

    @property
    def rounds(self) -> int:
        """Rounds of one contender, the warm-up included."""
        return 1 + self.turns * self.rounds_a_turn


def _workload(title: str, data: str, turns: int, rounds_a_turn: int, **options: Any) -> Workload:
    return Workload(title, data, {**PLAIN, **options}, turns, rounds_a_turn)


SHARDS = "shards(shards_per_client=2)"
CROWD: dict[str, Any] = {
    "model": "mlp",
    "partition": SHARDS,
    "clients": 1000,
    "fraction": 0.1,
    "batch_size": 20,
    "local_epochs": 1,
}
WORKLOADS = {
    "W1": _workload(
        "MLP 784-200-10, 100 clients of 600 images, 10 a round, batch 10, 10 epochs",
        *("mnist", 6, 2),
        **{"model": "mlp", "partition": SHARDS, "clients": 100, "fraction": 0.1, "batch_size": 10, "local_epochs": 10},
    ),
    "W2": _workload(
        "CNN 5x5x32 - 5x5x64 - 512 - 10, the same clients, batch 10, 1 epoch",
        *("mnist", 4, 1),
        **{"model": "cnn", "partition": SHARDS, "clients": 100, "fraction": 0.1, "batch_size": 10, "local_epochs": 1},
    ),
    "W3": _workload(
        "MLP 784-200-10, 1000 clients of 60 images, 100 a round, batch 20, 1 epoch",
        *("mnist", 6, 4),
        **CROWD,
    ),
    "W3n": _workload("the same as W3 on noise: images that have nothing in common", *("noise", 6, 4), **CROWD),
    "W4": _workload(
        "ResNet-18 with group norm on 3x32x32 images, 20 clients of 64, 10 a round, one batch of 64",
        *("images", 4, 1),
        **{"model": "resnet18", "norm": "group", "partition": "iid", "clients": 20, "fraction": 0.5},
        **{"batch_size": 64, "local_epochs": 1},
    ),
    "LeNet": _workload(
        "LeNet on 3x32x32 images, 100 clients of 450, 10 a round, batch 64, 3 epochs",
        *("cifar-shaped", 4, 1),
        **{"model": "lenet", "partition": "iid", "clients": 100, "fraction": 0.1, "batch_size": 64, "local_epochs": 3},
    ),
}
PEER_WORKLOADS = ("W1", "W2", "W3", "W3n", "W4")


@dataclass(frozen=True, eq=False)
class Task:
    """A workload written down: everything a peer needs to do the same work."""

    model: str
    batch_size: int
    epochs: int
    rounds: int
    x: np.ndarray  # float32, [N, features] for the MLP, else [N, channels, height, width]
    y: np.ndarray  # int64
    parts: np.ndarray  # rows of x that each client holds, [clients, examples]
    schedule: np.ndarray  # who takes part, [rounds, cohort]
    initial: Mapping[str, np.ndarray]  # weights by name, in torch's layout

    @staticmethod
    def load(folder: str | Path) -> Task:
        """Read what `tasks.write_task` wrote; the examples are mapped, not copied."""
        folder = Path(folder)
        plain = json.loads((folder / "task.json").read_text())
        data = Path(plain.pop("data"))
        x = np.load(data / "x.npy", mmap_mode="c")
        with np.load(folder / "arrays.npz") as arrays:
            named = {name: arrays[name] for name in arrays.files}
        parts, schedule = named.pop("/parts"), named.pop("/schedule")
        x = x.reshape(len(x), -1) if plain["model"] == "mlp" else x
        return Task(**plain, x=x, y=np.load(data / "y.npy"), parts=parts, schedule=schedule, initial=named)
