"""Small files in the official layouts, written byte by byte here and not by the code under test."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from pathlib import Path

import numpy as np
from scipy.io import savemat

MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def images(number: int, *shape: int) -> np.ndarray:
    """Pixels that differ from place to place: sample i holds (i * 37 + position) mod 256."""
    size = int(np.prod(shape))
    return ((np.arange(number)[:, None] * 37 + np.arange(size)) % 256).astype(np.uint8).reshape(number, *shape)


def labels(number: int, classes: int = 10) -> np.ndarray:
    return (np.arange(number) * 7 % classes).astype(np.uint8)


def idx_bytes(array: np.ndarray, code: int = 0x08, order: str = ">") -> bytes:
    """The format as http://yann.lecun.com/exdb/mnist gives it; order "<" reverses every number's bytes."""
    header = bytes([0, 0, code, array.ndim]) if order == ">" else bytes([array.ndim, code, 0, 0])
    data = array.astype(array.dtype.newbyteorder(order)).tobytes()
    return header + struct.pack(f"{order}{array.ndim}i", *array.shape) + data


def write(path: Path, data: bytes, packed: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


def write_mnist(folder: Path, train: int = 12, test: int = 5, order: str = ">", packed: bool = False) -> None:
    arrays = (images(train, 28, 28), labels(train), images(test, 28, 28), labels(test))
    for name, array in zip(MNIST_FILES, arrays, strict=True):
        write(folder / name, idx_bytes(array, order=order), packed)


def write_writers(folder: Path, classes: np.ndarray, packed: bool = True) -> None:
    """QMNIST's label table: class, series, writer, and five more columns; writer = 2000 + row // 4."""
    table = np.zeros((len(classes), 8), dtype=np.int32)
    table[:, 0], table[:, 1], table[:, 2] = classes, 4, 2000 + np.arange(len(classes)) // 4
    write(folder / "qmnist-train-labels-idx2-int", idx_bytes(table, code=0x0C), packed)


class Python2Pickler(pickle._Pickler):  # pyright: ignore
    """Writes bytes and text the way Python 2 wrote its str, which the official CIFAR files hold."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012  # pyright: ignore

    def save_as_python2_str(self, value: bytes | str) -> None:
        data = value if isinstance(value, bytes) else value.encode("latin1")
        self.write(b"T" + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_as_python2_str


def python2_pickle(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)


def write_leaf(path: Path, writers: dict[str, list[int]], **changes: object) -> None:
    """One LEAF file; a user's sample with label y has every pixel y / 100, so samples can be told apart."""
    content: dict[str, object] = {
        "users": list(writers),
        "num_samples": [len(values) for values in writers.values()],
        "user_data": {user: {"x": [[y / 100] * 784 for y in values], "y": values} for user, values in writers.items()},
    }
    write(path, json.dumps(content | changes).encode())


def write_mat(path: Path, pixels: np.ndarray, classes: np.ndarray) -> None:
    """SVHN's format 2: X [32, 32, 3, N] from images [N, 32, 32, 3], y [N, 1]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": pixels.transpose(1, 2, 3, 0), "y": classes[:, None]})
