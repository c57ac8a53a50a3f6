"""MNIST, Fashion-MNIST and the writers of QMNIST: the idx format."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedkeep.data.layout import Layout, matching, read_bytes
from fedkeep.data.raw import Raw, Scaling, counted
from fedkeep.errors import DataError

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: "i2", 0x0C: "i4", 0x0D: "f4", 0x0E: "f8"}
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST = Layout(("MNIST/raw", "MNIST", "mnist", ""), FILES)
FASHION = Layout(("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist", ""), FILES)
WRITERS = Layout(
    ("QMNIST-labels", "QMNIST/raw", "QMNIST", "qmnist", "MNIST/raw", ""), ("qmnist-train-labels-idx2-int",)
)

# published mean and standard deviation of the training pixels, as used by most public code
MNIST_SCALING = Scaling(255.0, (0.1307,), (0.3081,))
FASHION_SCALING = Scaling(255.0, (0.2860,), (0.3530,))


def read_idx(path: Path, axes: int) -> np.ndarray:
    """An idx file of the given number of axes, plain or .gz.

    http://yann.lecun.com/exdb/mnist: two zero bytes, a type byte, the number of axes, each axis as int32, the data;
    all big-endian. A file with its byte order reversed throughout (number of axes and type first) is read too.
    """
    data = read_bytes(path)
    order = ">" if data[:2] == b"\0\0" else "<"
    kind, count = (data[2], data[3]) if order == ">" else (data[1], data[0]) if data[2:4] == b"\0\0" else (-1, 0)
    if len(data) < 4 or kind not in TYPES or count != axes:
        raise DataError(
            f"{path}: begins with {data[:4].hex(' ') or 'nothing'}, not with an idx header of {axes} axes; "
            "the file is damaged or of another kind, fetch it again"
        )
    start = 4 + 4 * axes
    shape = np.frombuffer(data[4:start][: len(data[4:start]) // 4 * 4], dtype=f"{order}i4").astype(np.int64)
    dtype = np.dtype(order + TYPES[kind])
    expected = start + math.prod(shape.tolist()) * dtype.itemsize
    if len(shape) != axes or (shape < 0).any() or len(data) != expected:
        raise DataError(
            f"{path}: {len(data)} bytes, but the header {shape.tolist()} of {dtype.name} asks for {expected}; "
            "the file is cut short or damaged, fetch it again"
        )
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)


def read_images(folder: Path, scaling: Scaling, title: str) -> Raw:
    """The four files of MNIST or of a set in its format."""
    arrays = [read_idx(matching(folder, file)[0], 3 if "images" in file else 1) for file in FILES]
    train_x, train_y, test_x, test_y = arrays
    source = f"{title}, idx files, {counted(train_y, test_y, (60000, 10000))}"
    return Raw(train_x[:, None], train_y, test_x[:, None], test_y, 10, source, scaling)


def with_writers(raw: Raw, folder: Path) -> Raw:
    """MNIST with the writer of each training image, from QMNIST's label file.

    Yadav & Bottou 2019, "Cold Case: the Lost MNIST Digits": eight int32 columns in MNIST's order, column 0 the class,
    column 2 the writer.
    """
    path = matching(folder, WRITERS.files[0])[0]
    table = read_idx(path, 2)
    if table.shape[1] != 8 or not np.array_equal(table[:, 0], raw.train_y):
        raise DataError(
            f"{path}: {table.shape[0]} rows of {table.shape[1]} columns do not repeat the {len(raw.train_y)} MNIST "
            "training labels in column 0; use the QMNIST training label file with the original MNIST images"
        )
    writers = table[:, 2].astype(np.int64)
    number = len(np.unique(writers))
    return replace(raw, groups=writers, source=f"{raw.source}; {number} writers from the QMNIST labels")
