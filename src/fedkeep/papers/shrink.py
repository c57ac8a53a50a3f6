"""Smaller copies of data sets: fewer examples, smaller images, so that a reduced experiment ends in minutes.

Judging a ResNet on ten thousand images takes longer than training it for a few rounds. A copy has `train` training
and `test` test examples, the latter equally many of each class, and images whose side is halved `halve` times by the
mean of 2x2 pixels.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from fedkeep.data import load
from fedkeep.errors import ConfigError, nearest
from fedkeep.files import write_whole
from fedkeep.rng import stream

KEYS = ("train", "test", "halve")


def shrunk_name(data: str, shrink: Mapping[str, int]) -> str:
    """The file name of a smaller copy.

    >>> shrunk_name("cifar10", {"train": 1000, "test": 200, "halve": 1})
    'cifar10,train-1000,test-200,halve-1.npz'
    """
    for key in shrink:
        if key not in KEYS:
            raise ConfigError(f'shrink: unknown key "{key}": {nearest(key, KEYS)}')
    return ",".join([data, *(f"{key}-{shrink[key]}" for key in KEYS if shrink.get(key))]) + ".npz"


def write_shrunk(name: str, root: Path | None, folder: Path) -> Path:
    """Write the smaller copy of that name into `folder`, if it is not there yet."""
    path = folder / name
    if path.exists():
        return path
    data, *changes = name.removesuffix(".npz").split(",")
    shrink = {key: int(value) for key, _, value in (change.partition("-") for change in changes)}
    whole = load(data, root, shrink.get("train"))
    kept = _balanced(whole.test_y.numpy(), shrink.get("test", len(whole.test_y)))
    arrays = {
        "x_train": _halved(whole.train_x, shrink.get("halve", 0)),
        "y_train": whole.train_y.numpy(),
        "x_test": _halved(whole.test_x[torch.from_numpy(kept)], shrink.get("halve", 0)),
        "y_test": whole.test_y.numpy()[kept],
    }
    if whole.groups is not None:
        arrays["groups"] = whole.groups
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.getvalue())
    return path


def _balanced(labels: np.ndarray, number: int) -> np.ndarray:
    """`number` positions, as equally many of each class as there are, always the same ones."""
    order = stream(0, "shrink").permutation(len(labels))
    rank = np.empty(len(labels), dtype=np.int64)  # how many of the same class come before it
    for label in np.unique(labels):
        mine = order[labels[order] == label]
        rank[mine] = np.arange(len(mine))
    return np.sort(np.lexsort((labels, rank))[:number])


def _halved(x: torch.Tensor, times: int) -> np.ndarray:
    for _ in range(times):
        x = avg_pool2d(x, 2)
    return x.numpy().astype(np.float16)
