"""CIFAR-10 and CIFAR-100, in the binary and in the pickle layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedkeep.data.layout import Layout, matching, read_bytes
from fedkeep.data.raw import Raw, Scaling, counted
from fedkeep.data.restricted_pickle import read_pickle
from fedkeep.errors import DataError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Variant:
    """What tells the two sets apart. The last file of a layout is the test part, the others are training parts."""

    title: str
    classes: int
    label_bytes: int  # in the binary layout; the last of them is the label (CIFAR-100: coarse, then fine)
    label_key: str  # in the pickle layout
    binary: Layout
    pickled: Layout
    scaling: Scaling  # published mean and standard deviation of the training pixels by channel

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """The binary layout first: it needs no pickle."""
        return self.binary, self.pickled


_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR10 = Variant(
    "CIFAR-10",
    10,
    1,
    "labels",
    Layout(("cifar-10-batches-bin", ""), tuple(f"{name}.bin" for name in _BATCHES)),
    Layout(("cifar-10-batches-py", ""), _BATCHES),
    Scaling(255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
CIFAR100 = Variant(
    "CIFAR-100 (fine labels)",
    100,
    2,
    "fine_labels",
    Layout(("cifar-100-binary",), ("train.bin", "test.bin")),
    Layout(("cifar-100-python",), ("train", "test")),
    Scaling(255.0, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


def read_cifar(folder: Path, layout: Layout, variant: Variant) -> Raw:
    """Both parts, images as [N, 3, 32, 32]."""
    binary = layout is variant.binary
    read = _read_binary if binary else _read_pickled
    parts = [read(matching(folder, file)[0], variant) for file in layout.files]
    train_x = np.concatenate([x for x, _ in parts[:-1]])
    train_y = np.concatenate([y for _, y in parts[:-1]])
    test_x, test_y = parts[-1]
    source = f"{variant.title}, {'binary' if binary else 'pickle'} files, {counted(train_y, test_y, (50000, 10000))}"
    return Raw(train_x, train_y, test_x, test_y, variant.classes, source, variant.scaling)


def _read_binary(path: Path, variant: Variant) -> tuple[np.ndarray, np.ndarray]:
    """Records of label bytes and 3072 pixels, channel by channel, row by row."""
    data = np.frombuffer(read_bytes(path), dtype=np.uint8)
    record = variant.label_bytes + PIXELS
    if not len(data) or len(data) % record:
        raise DataError(
            f"{path}: {len(data)} bytes are not a whole number of {record}-byte records; "
            "the file is cut short or damaged, fetch it again"
        )
    rows = data.reshape(-1, record)
    return rows[:, variant.label_bytes :].reshape(-1, 3, 32, 32), rows[:, variant.label_bytes - 1]


def _read_pickled(path: Path, variant: Variant) -> tuple[np.ndarray, np.ndarray]:
    content = read_pickle(path)
    if lacking := [key for key in ("data", variant.label_key) if key not in content]:
        raise DataError(f"{path}: has no {' and no '.join(lacking)}, only {', '.join(sorted(content))}; fetch it again")
    x = content["data"]
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS:
        shape = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise DataError(f"{path}: data is {shape}, not uint8 (N, {PIXELS}); fetch the official file again")
    y = np.asarray(content[variant.label_key])
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {variant.label_key} are {y.dtype} {y.shape} for {len(x)} images; fetch the file again"
        )
    return x.reshape(-1, 3, 32, 32), y
