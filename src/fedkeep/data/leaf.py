"""FEMNIST as LEAF writes it: json files with one entry per writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedkeep.data.layout import Layout, matching, read_bytes
from fedkeep.data.raw import Raw, Scaling
from fedkeep.errors import DataError

LAYOUT = Layout(("femnist", "FEMNIST", "femnist/data", ""), ("train/*.json", "test/*.json"))
CLASSES = 62  # ten digits, 26 capital and 26 small letters
PIXELS = 28 * 28


def read_femnist(folder: Path) -> Raw:
    """Both parts, the writers of the training images as groups.

    Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings". Pixels are 0 ... 1, paper white is 1;
    no published constants, so they are normalised by the training part's own mean and standard deviation.
    """
    (train_x, train_y, writers), (test_x, test_y, _) = (_read_part(folder, file) for file in LAYOUT.files)
    source = (
        f"FEMNIST, LEAF json files, {len(train_y)} training and {len(test_y)} test samples "
        f"of {len(np.unique(writers))} writers"
    )
    return Raw(train_x, train_y, test_x, test_y, CLASSES, source, Scaling(), writers)


def _read_part(folder: Path, files: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    images, labels, writers = [], [], []
    for path in matching(folder, files):
        for writer, x, y in _read_file(path):
            images.append(x)
            labels.append(y)
            writers += [writer] * len(y)
    if not writers:
        raise DataError(f"femnist: {folder / files} hold no samples; run LEAF's preprocessing again")
    return np.concatenate(images).reshape(-1, 1, 28, 28), np.concatenate(labels), np.array(writers)


def _read_file(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    try:
        content: dict[str, Any] = json.loads(read_bytes(path))
        users, numbers, data = content["users"], content["num_samples"], content["user_data"]
        return [_read_user(path, user, data[user], number) for user, number in zip(users, numbers, strict=True)]
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path}: not a LEAF file ({type(error).__name__}: {error}); expected users, num_samples and user_data "
            "with x and y for every user. Run LEAF's preprocessing again"
        ) from error


def _read_user(path: Path, user: str, data: dict[str, Any], number: int) -> tuple[str, np.ndarray, np.ndarray]:
    x = np.asarray(data["x"], dtype=np.float32) if data["x"] else np.empty((0, PIXELS), dtype=np.float32)
    y = np.asarray(data["y"]).astype(np.int64, casting="safe") if data["y"] else np.empty(0, dtype=np.int64)
    if len(x) != number or len(y) != number or x.shape[1:] != (PIXELS,):
        raise DataError(
            f"{path}: user {user} has x of shape {x.shape} and {len(y)} labels, but num_samples says {number} "
            f"images of {PIXELS} pixels; run LEAF's preprocessing again"
        )
    return user, x, y
