"""A data root of small files in the official layouts, enough for every recipe at smoke scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from official_layouts import images, labels, write, write_leaf, write_mat, write_mnist, write_writers

TRAIN, TEST = 600, 40


def write_tiny_root(root: Path) -> Path:
    """MNIST, Fashion-MNIST, the writers of QMNIST, CIFAR-10 and SVHN; neither CIFAR-100 nor FEMNIST."""
    write_mnist(root / "MNIST/raw", TRAIN, TEST)
    write_mnist(root / "FashionMNIST/raw", TRAIN, TEST)
    write_writers(root / "QMNIST-labels", labels(TRAIN))
    for number in range(1, 6):
        write(root / f"cifar-10-batches-bin/data_batch_{number}.bin", _cifar(TRAIN // 5, number, 10, 1))
    write(root / "cifar-10-batches-bin/test_batch.bin", _cifar(TEST, 0, 10, 1))
    for name, number in (("train", TRAIN), ("test", TEST)):
        digits = labels(number)
        write_mat(root / f"SVHN/{name}_32x32.mat", images(number, 32, 32, 3), np.where(digits == 0, 10, digits))
    return root


def write_rare_sets(root: Path) -> Path:
    """CIFAR-100 and FEMNIST."""
    write(root / "cifar-100-binary/train.bin", _cifar(300, 1, 100, 2))
    write(root / "cifar-100-binary/test.bin", _cifar(100, 0, 100, 2))
    writers = {f"writer{number}": list(range(62)) for number in range(4)}
    for part in ("train", "test"):
        write_leaf(root / f"femnist/{part}/all_data.json", writers)
    return root


def _cifar(number: int, shift: int, classes: int, label_bytes: int) -> bytes:
    """Records of label bytes (the last is the label) and 3072 pixels."""
    pixels = images(number + shift, 3072)[shift:]
    marks = np.zeros((number, label_bytes), dtype=np.uint8)
    marks[:, -1] = labels(number, classes)
    return np.hstack([marks, pixels]).tobytes()
