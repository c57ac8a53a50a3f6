"""Any image or table data set of the Hugging Face hub, when `datasets` is installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedkeep.data.raw import Raw, Scaling, as_images, encoded
from fedkeep.errors import DataError

IMAGE_COLUMNS = ("image", "img", "images", "pixel_values")
LABEL_COLUMNS = ("label", "fine_label", "labels", "target", "character", "digit", "y")
GROUP_COLUMNS = ("writer_id", "client_id", "user_id", "speaker_id", "group")
TEST_SPLITS = ("test", "validation", "valid")


def read_hub(reference: str) -> Raw:
    """NAME or NAME:CONFIGURATION, e.g. "ylecun/mnist" or "ufldl-stanford/svhn:cropped_digits".

    The image column, or else every numeric column, is taken as x; images of 8 bits are divided by 255, and all is
    normalised by the training part's mean and standard deviation, by channel or by column. Splits: train, and test or
    validation. A column of writers or users becomes groups.
    """
    name, _, configuration = reference.partition(":")
    splits = _download(reference, name, configuration or None)
    test = next((split for split in TEST_SPLITS if split in splits), None)
    if "train" not in splits or test is None:
        raise DataError(
            f"hf:{reference}: has the splits {', '.join(splits)}; needs train and one of {', '.join(TEST_SPLITS)}. "
            "Save it as a .npz file with a split of your own"
        )
    if not (len(splits["train"]) and len(splits[test])):
        raise DataError(f"hf:{reference}: the split train or {test} is empty; there must be at least one sample")
    columns = list(splits["train"].column_names)
    label = _first(columns, LABEL_COLUMNS)
    if label is None:
        raise DataError(
            f"hf:{reference}: no label among its columns {', '.join(columns)}; known label columns are "
            f"{', '.join(LABEL_COLUMNS)}. Save it as a .npz file instead"
        )
    group = _first(columns, GROUP_COLUMNS)
    train_x, test_x, scaling = _samples(reference, splits["train"], splits[test], exclude=(label, group))
    train_y, test_y, classes = _labels(splits["train"], splits[test], label)
    source = f"Hugging Face data set {reference}, splits train ({len(train_y)}) and {test} ({len(test_y)})"
    groups = None if group is None else np.asarray(list(splits["train"][group]))
    return Raw(train_x, train_y, test_x, test_y, classes, source, scaling, groups)


def _download(reference: str, name: str, configuration: str | None) -> Any:
    try:
        hub = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            f'hf:{reference}: the package datasets is not installed; run pip install "fedkeep[hf]"'
        ) from error
    try:
        return hub.load_dataset(name, configuration) if configuration else hub.load_dataset(name)
    except Exception as error:  # the hub's client raises errors of many kinds
        raise DataError(
            f"hf:{reference}: could not be loaded ({type(error).__name__}: {error}); check the name "
            "(hf:NAME or hf:NAME:CONFIGURATION) and the connection"
        ) from error


def _first(columns: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in columns), None)


def _samples(
    reference: str, train: Any, test: Any, exclude: tuple[str | None, ...]
) -> tuple[np.ndarray, np.ndarray, Scaling]:
    """x of both splits, from the image column or else from every numeric column."""
    columns = [column for column in train.column_names if column not in exclude]
    image = _first(columns, IMAGE_COLUMNS)
    if image is not None:
        try:
            mode = "L" if getattr(train[0][image], "mode", "RGB") in ("1", "L", "LA") else "RGB"
            train_x, test_x = (_stacked(reference, split[image], mode) for split in (train, test))
        except (ImportError, OSError) as error:
            raise DataError(
                f"hf:{reference}: its images cannot be decoded ({error}); run pip install pillow, or check the data"
            ) from error
        return train_x, test_x, Scaling(255.0 if train_x.dtype == np.uint8 else 1.0)
    numeric = [column for column in columns if _is_numeric(train[0][column])]
    if not numeric:
        raise DataError(
            f"hf:{reference}: neither an image column ({', '.join(IMAGE_COLUMNS)}) nor numbers among its columns "
            f"{', '.join(train.column_names)}; save it as a .npz file instead"
        )
    return _table(reference, train, numeric), _table(reference, test, numeric), Scaling()


def _stacked(reference: str, pictures: Iterable[Any], mode: str) -> np.ndarray:
    """Pictures as [N, C, H, W]; a decoded picture has its colours last, an array may have them first."""
    arrays = [_pixels(picture, mode) if hasattr(picture, "convert") else np.asarray(picture) for picture in pictures]
    if len(shapes := {array.shape for array in arrays}) != 1:
        raise DataError(
            f"hf:{reference}: images of {len(shapes)} different shapes, {sorted(shapes)[:3]} ...; all must have "
            "one size: resize them and save a .npz file"
        )
    return as_images(np.stack(arrays))


def _pixels(picture: Any, mode: str) -> np.ndarray:
    pixels = np.asarray(picture.convert(mode))
    return pixels.transpose(2, 0, 1) if mode == "RGB" else pixels


def _is_numeric(value: Any) -> bool:
    return not isinstance(value, str | bytes) and np.asarray(value).dtype.kind in "iufb"


def _table(reference: str, split: Any, columns: Sequence[str]) -> np.ndarray:
    """Numeric columns side by side; a column of lists of equal length gives as many features."""
    try:
        parts = [np.asarray(list(split[column]), dtype=np.float32) for column in columns]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"hf:{reference}: the columns {', '.join(columns)} do not form a table of numbers ({error}); "
            "save it as a .npz file instead"
        ) from error


def _labels(train: Any, test: Any, column: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Whole numbers as they are; text and other labels are numbered in sorted order of the training part's."""
    train_y, test_y = np.asarray(list(train[column])), np.asarray(list(test[column]))
    if train_y.dtype.kind in "iu":
        names = getattr(getattr(train, "features", {}).get(column), "names", None)
        return train_y, test_y, len(names) if names else int(max(train_y.max(), test_y.max(initial=0))) + 1
    names = sorted(set(train_y.tolist()))
    return encoded(train_y.tolist(), names), encoded(test_y.tolist(), names), len(names)
