"""Your own data in one .npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from fedkeep.data.raw import Raw, Scaling, as_images
from fedkeep.errors import DataError

KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: Path) -> Raw:
    """x_train, y_train, x_test, y_test and optionally groups (one client id per training sample).

    x is [N, features], [N, H, W], [N, H, W, C] or [N, C, H, W]. 8-bit images are divided by 255 and normalised by the
    training part's channel mean and standard deviation; other numbers are taken as they are. The classes are
    0 ... largest label.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in (*KEYS, "groups") if key in archive.files}
            present = list(archive.files)
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: not a readable .npz file ({error}); write it with numpy.savez({path.name!r}, "
            "x_train=..., y_train=..., x_test=..., y_test=...), without objects"
        ) from error
    if lacking := [key for key in KEYS if key not in arrays]:
        raise DataError(f"{path}: has no {', '.join(lacking)}, only {', '.join(present) or 'nothing'}; add it")
    x = {key: as_images(arrays[key]) for key in KEYS if key.startswith("x")}
    y = {key: _labels(arrays[key]) for key in KEYS if key.startswith("y")}
    eight_bit = x["x_train"].dtype == np.uint8
    if (x["x_test"].dtype == np.uint8) != eight_bit:
        raise DataError(
            f"{path}: x_train is {x['x_train'].dtype}, x_test is {x['x_test'].dtype}; 8-bit images are scaled "
            "and other numbers are not, so both must be of one kind"
        )
    largest = max((int(values.max()) for values in y.values() if values.size and values.dtype.kind in "iu"), default=0)
    groups = arrays.get("groups")
    return Raw(
        x["x_train"],
        y["y_train"],
        x["x_test"],
        y["y_test"],
        classes=largest + 1,
        source=f"{path.name}, {len(y['y_train'])} training and {len(y['y_test'])} test samples",
        scaling=Scaling(255.0) if eight_bit else None,
        groups=None if groups is None else groups.ravel(),
    )


def _labels(y: np.ndarray) -> np.ndarray:
    """[N] from [N] or [N, 1]."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
