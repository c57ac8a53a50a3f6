"""SVHN, cropped digits, from its MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkeep.data.layout import Layout
from fedkeep.data.raw import Raw, Scaling, counted
from fedkeep.errors import DataError

LAYOUT = Layout(("SVHN", "svhn", ""), ("train_32x32.mat", "test_32x32.mat"))
# published mean and standard deviation of the training pixels by channel
SCALING = Scaling(255.0, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))


def read_svhn(folder: Path) -> Raw:
    """Both parts. Label 10 of the files is the digit 0."""
    train_x, train_y = _read_mat(folder / LAYOUT.files[0])
    test_x, test_y = _read_mat(folder / LAYOUT.files[1])
    source = f"SVHN cropped digits, .mat files, {counted(train_y, test_y, (73257, 26032))}; non-commercial use only"
    return Raw(train_x, train_y, test_x, test_y, 10, source, SCALING)


def _read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """X [32, 32, 3, N] and y [N, 1] as images [N, 3, 32, 32] and labels [N]."""
    from scipy.io import loadmat  # slow to import, and only needed here

    try:
        content = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # a damaged .mat file can raise nearly anything
        raise DataError(f"{path}: not a readable .mat file ({error}); it is damaged, fetch it again") from error
    x, y = content.get("X"), content.get("y")
    if x is None or y is None or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        shapes = ", ".join(f"{key} {content[key].dtype} {content[key].shape}" for key in ("X", "y") if key in content)
        raise DataError(
            f"{path}: holds {shapes or 'neither X nor y'}, not X uint8 (32, 32, 3, N) and y (N, 1); fetch it again"
        )
    labels = y.ravel().astype(np.int64)
    return x.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels)
