"""Writes a workload down for everyone: data, who holds what, who takes part when, initial weights, work per round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from workloads import WORKLOADS, Workload

from fedkeep.data.idx import FILES as IDX_FILES
from fedkeep.data.sampling import cohort
from fedkeep.experiment.build import Prepared, prepare
from fedkeep.experiment.config import Config

SEED = 7
CLASSES = 10


@dataclass(frozen=True)
class Sources:
    """Where the data is: official MNIST files where there are some, made-up images of the same shape otherwise."""

    folder: Path  # where made-up data and tasks are written
    mnist_root: Path | None

    @staticmethod
    def find(folder: Path, data_root: str) -> Sources:
        root = Path(data_root) if data_root else None
        places = [root / "MNIST" / "raw", root / "MNIST", root / "mnist", root] if root else []
        found = any((place / name).exists() for place in places for name in (IDX_FILES[0], IDX_FILES[0] + ".gz"))
        return Sources(folder, root if found else None)

    @property
    def words(self) -> str:
        if self.mnist_root:
            return "MNIST; made-up images for W3n, W4 and LeNet"
        return "made-up images, of MNIST's shape and number for W1 to W3 (no --data-root with MNIST was given)"

    def options(self, kind: str) -> dict[str, str]:
        """The options of a run that name the data."""
        if kind == "mnist" and self.mnist_root:
            return {"data": "mnist", "data_root": str(self.mnist_root)}
        path = self.folder / f"{kind}.npz"
        if not path.exists():
            np.savez(path, **MADE_UP[kind]())
        return {"data": str(path)}


def _images(shape: tuple[int, ...], train: int, test: int) -> dict[str, np.ndarray]:
    """Noise around one random image per class, 8 bit: learnable, and the same everywhere."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    centres = rng.integers(0, 256, (CLASSES, *shape), dtype=np.int16)
    made = {}
    for part, count in (("train", train), ("test", test)):
        y = rng.integers(0, CLASSES, count)
        noise = rng.integers(0, 256, (count, *shape), dtype=np.int16)
        made[f"x_{part}"] = ((centres[y] + 3 * noise) // 4).astype(np.uint8)
        made[f"y_{part}"] = y
    return made


MADE_UP = {
    "mnist": lambda: _images((1, 28, 28), 60_000, 10_000),
    "noise": lambda: _images((1, 28, 28), 60_000, 10_000),
    "images": lambda: _images((3, 32, 32), 20 * 64, 1000),
    "cifar-shaped": lambda: _images((3, 32, 32), 100 * 450, 1000),
}


def config_of(name: str, sources: Sources, **more: Any) -> Config:
    """The FedKeep run that a workload is; `rounds` is one more than will be run, because the last is always judged."""
    workload = WORKLOADS[name]
    options = {**workload.options, **sources.options(workload.data), "rounds": workload.rounds + 1}
    return Config(**{**options, **more})


def write_task(name: str, sources: Sources, workload: Workload) -> tuple[Path, Prepared]:
    """Write one workload into a folder of its own."""
    config = config_of(name, sources, rounds=workload.rounds + 1)
    prepared = prepare(config)
    data, folder = sources.folder / f"data-{workload.data}", sources.folder / f"task-{name}"
    folder.mkdir()
    if not data.exists():
        data.mkdir()
        np.save(data / "x.npy", prepared.dataset.train_x.numpy())
        np.save(data / "y.npy", prepared.dataset.train_y.numpy())
    population = prepared.population
    arrays = {n: tensor.numpy() for n, tensor in prepared.model.initial()[0].items()}
    arrays["/parts"] = np.stack([population.train.indices(k) for k in range(len(population))])
    cohorts = [cohort(config.seed, r + 1, len(population), prepared.cohort_size) for r in range(workload.rounds)]
    arrays["/schedule"] = np.stack(cohorts)
    np.savez(folder / "arrays.npz", **arrays)
    plain = {"model": config.model, "batch_size": config.batch_size, "epochs": config.local_epochs}
    (folder / "task.json").write_text(json.dumps({**plain, "rounds": workload.rounds, "data": str(data)}))
    return folder, prepared


def gflop_a_round(prepared: Prepared) -> float:
    """The arithmetic of one round of plain training: forward and backward products, two per multiply-add."""
    config, model = prepared.config, prepared.model
    x, y = (part[: config.batch_size] for part in prepared.population.examples(0))
    params, buffers = model.initial()
    leaves = {name: tensor.requires_grad_() for name, tensor in params.items()}
    counter = FlopCounterMode(display=False)
    with counter:
        functional.cross_entropy(model.forward(leaves, buffers, x, train=True)[0], y).backward()
    seen = config.local_epochs * int(prepared.population.train.sizes[0]) * prepared.cohort_size
    return counter.get_total_flops() / len(y) * seen / 1e9


@dataclass(frozen=True)
class Verdict:
    """How good the model is that a contender ended with, and how far it moved from the start."""

    accuracy: float
    loss: float
    change: torch.Tensor  # of all weights, as one vector

    def distance(self, other: Verdict) -> float:
        """How far this change is from another, relative to the other's length."""
        return float((self.change - other.change).norm() / other.change.norm())


def judge(prepared: Prepared, params: Mapping[str, np.ndarray]) -> Verdict:
    """Judge final weights with FedKeep's model, whoever made them."""
    start, buffers = prepared.model.initial()
    if params.keys() != start.keys():
        raise ValueError(f"other weights than expected: {sorted(params.keys() ^ start.keys())}")
    end = {name: torch.from_numpy(params[name]) for name in start}
    test_x, test_y = prepared.dataset.test_x, prepared.dataset.test_y
    with torch.inference_mode():
        parts = [prepared.model.forward(end, buffers, x, train=False)[0] for x in test_x.split(500)]
        logits = torch.cat(parts)
        loss = float(functional.cross_entropy(logits, test_y))
    change = torch.cat([(end[name] - start[name]).reshape(-1) for name in start])
    return Verdict(float((logits.argmax(1) == test_y).double().mean()), loss, change)
