"""What a file reader hands over, and the one road from there to checked, normalised tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike

from fedkeep.errors import ConfigError, DataError, nearest
from fedkeep.rng import stream


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set in memory, ready for a model.

    Images are float32 [N, channels, height, width], normalised by channel unless asked otherwise; other data is
    [N, features].
    """

    name: str
    train_x: torch.Tensor
    train_y: torch.Tensor  # int64
    test_x: torch.Tensor
    test_y: torch.Tensor
    classes: int
    groups: np.ndarray | None  # who a training sample came from, for the natural partition
    source: str  # where the data is from, in words, with what a result made of it must say

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])


@dataclass(frozen=True)
class Scaling:
    """x becomes (x / divisor - mean) / std, by channel (images) or by column.

    mean and std None: measured on the whole training part, before any limit; a constant column keeps std 1.
    """

    divisor: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Raw:
    """Arrays as they were read. scaling None: the values are taken as they are."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    source: str
    scaling: Scaling | None
    groups: np.ndarray | None = None


INPUTS = ("standard", "unit")


def finish(name: str, raw: Raw, limit: int | None, inputs: str = "standard") -> Dataset:
    """Check, cut down to `limit` training samples, normalise; `inputs` "unit" only divides: pixels from 0 to 1."""
    if inputs not in INPUTS:
        raise ConfigError(f'inputs "{inputs}" is unknown: {nearest(inputs, INPUTS)}')
    _check_part(name, "train", raw.train_x, raw.train_y, raw.classes)
    _check_part(name, "test", raw.test_x, raw.test_y, raw.classes)
    if raw.train_x.shape[1:] != raw.test_x.shape[1:]:
        raise DataError(
            f"{name}: a training sample has shape {raw.train_x.shape[1:]}, a test sample {raw.test_x.shape[1:]}; "
            "both parts must come from the same data set"
        )
    if raw.groups is not None and len(raw.groups) != len(raw.train_y):
        raise DataError(
            f"{name}: {len(raw.groups)} client ids (groups) for {len(raw.train_y)} training samples; give one for each"
        )
    if inputs == "unit" and raw.scaling is not None:
        raw = replace(raw, scaling=Scaling(raw.scaling.divisor, (0.0,), (1.0,)), source=f"{raw.source}; not normalised")
    factor, shift = _affine(raw)
    if limit is not None and limit < len(raw.train_y):
        raw = _limited(raw, limit)
    return Dataset(
        name=name,
        train_x=_tensor(raw.train_x, factor, shift),
        train_y=torch.from_numpy(raw.train_y.astype(np.int64)),
        test_x=_tensor(raw.test_x, factor, shift),
        test_y=torch.from_numpy(raw.test_y.astype(np.int64)),
        classes=raw.classes,
        groups=raw.groups,
        source=raw.source,
    )


def _check_part(name: str, part: str, x: np.ndarray, y: np.ndarray, classes: int) -> None:
    """Refuse what would only fail, or quietly mislead, later."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"{name}: {part} labels are {y.dtype} {y.shape}; they must be one whole number per sample")
    if x.dtype.kind not in "iuf" or x.ndim not in (2, 4):
        raise DataError(
            f"{name}: {part} samples are {x.dtype} {x.shape}; they must be numbers "
            "[N, features] or [N, channels, height, width]"
        )
    if len(x) != len(y):
        raise DataError(f"{name}: {len(x)} {part} samples but {len(y)} labels; the files do not belong together")
    if not x.size:
        raise DataError(f"{name}: the {part} part is empty ({x.shape}); there must be at least one sample")
    if x.dtype.kind == "f":
        bad = ~np.isfinite(x).reshape(len(x), -1)
        if bad.any():
            first = int(np.argmax(bad.any(axis=1)))
            raise DataError(
                f"{name}: {int(bad.sum())} values of the {part} samples are NaN or infinite, the first in sample "
                f"{first}; repair or remove those samples"
            )
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(
            f"{name}: {int(wrong.sum())} {part} labels are outside 0 to {classes - 1}, the first is {y[first]} "
            f"at sample {first}; the file is damaged or the classes are numbered differently"
        )


def _limited(raw: Raw, limit: int) -> Raw:
    """The first `limit` samples of one fixed random order, put back in file order: a larger limit only adds."""
    kept = np.sort(stream(0, "limit").permutation(len(raw.train_y))[:limit])
    return replace(
        raw,
        train_x=raw.train_x[kept],
        train_y=raw.train_y[kept],
        groups=None if raw.groups is None else raw.groups[kept],
        source=f"{raw.source}; {limit} of {len(raw.train_y)} training samples, drawn at random once and for all",
    )


def _affine(raw: Raw) -> tuple[np.ndarray, np.ndarray]:
    """The scaling as x * factor + shift, shaped to broadcast over one sample."""
    if raw.scaling is None:
        return np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.float32)
    axes = (0, 2, 3) if raw.train_x.ndim == 4 else (0,)
    mean, std = raw.scaling.mean, raw.scaling.std
    if mean is None or std is None:
        mean = raw.train_x.mean(axis=axes, dtype=np.float64) / raw.scaling.divisor
        std = raw.train_x.std(axis=axes, dtype=np.float64) / raw.scaling.divisor
        std = np.where(std > 0, std, 1.0)
    shape = (-1, 1, 1) if raw.train_x.ndim == 4 else (-1,)
    factor = 1.0 / (raw.scaling.divisor * np.asarray(std))
    shift = -np.asarray(mean) / np.asarray(std)
    return factor.reshape(shape).astype(np.float32), shift.reshape(shape).astype(np.float32)


def _tensor(x: np.ndarray, factor: np.ndarray, shift: np.ndarray) -> torch.Tensor:
    values = x.astype(np.float32, order="C")  # a copy: the reader's array may be read-only
    values *= factor
    values += shift
    return torch.from_numpy(values)


def as_images(x: np.ndarray) -> np.ndarray:
    """[N, H, W], [N, H, W, C] or [N, C, H, W] as [N, C, H, W]; [N, features] stays.

    A last axis of 1 or 3 is taken for channels unless the second axis is one of these as well.
    """
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x


def counted(train: ArrayLike, test: ArrayLike, official: tuple[int, int]) -> str:
    """Sizes in words, saying so when they are not the published ones."""
    sizes = (len(np.asarray(train)), len(np.asarray(test)))
    words = f"{sizes[0]} training and {sizes[1]} test samples"
    if sizes == official:
        return words
    return f"{words}, NOT the official {official[0]} and {official[1]} (a subset or a rebuilt set: say so with results)"


def encoded(labels: Sequence[object] | np.ndarray, names: Sequence[object]) -> np.ndarray:
    """Labels as their position in `names`; -1 for a label that is not there."""
    position = {name: number for number, name in enumerate(names)}
    return np.array([position.get(label, -1) for label in labels], dtype=np.int64)
