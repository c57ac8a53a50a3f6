"""Data sets by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedkeep.data import cifar, idx, leaf, svhn
from fedkeep.data.digits import read_digits
from fedkeep.data.hub import read_hub
from fedkeep.data.layout import Layout, find, located
from fedkeep.data.npz import KEYS, read_npz
from fedkeep.data.partition_core import checked_count
from fedkeep.data.raw import Dataset, Raw, finish
from fedkeep.errors import ConfigError, DataError, nearest

__all__ = ["Available", "Dataset", "available", "load"]


@dataclass(frozen=True)
class _Files:
    """A data set of official files under the data root."""

    layouts: tuple[Layout, ...]
    read: Callable[[Path, Layout], Raw]
    remedy: str
    writers: Layout | None = None


_MNIST = (
    "Get the four files from http://yann.lecun.com/exdb/mnist or with torchvision.datasets.MNIST(root, download=True)"
)
_CIFAR = "Get the binary or the python version from https://www.cs.toronto.edu/~kriz/cifar.html and unpack it there"

FILES: dict[str, _Files] = {
    "mnist": _Files((idx.MNIST,), lambda folder, _: idx.read_images(folder, idx.MNIST_SCALING, "MNIST"), _MNIST),
    "fashion-mnist": _Files(
        (idx.FASHION,),
        lambda folder, _: idx.read_images(folder, idx.FASHION_SCALING, "Fashion-MNIST"),
        "Get the four files from https://github.com/zalandoresearch/fashion-mnist",
    ),
    "qmnist": _Files(
        (idx.MNIST,),
        lambda folder, _: idx.read_images(folder, idx.MNIST_SCALING, "MNIST"),
        f"{_MNIST}, and the label file from https://github.com/facebookresearch/qmnist",
        writers=idx.WRITERS,
    ),
    "cifar10": _Files(
        cifar.CIFAR10.layouts, lambda folder, layout: cifar.read_cifar(folder, layout, cifar.CIFAR10), _CIFAR
    ),
    "cifar100": _Files(
        cifar.CIFAR100.layouts, lambda folder, layout: cifar.read_cifar(folder, layout, cifar.CIFAR100), _CIFAR
    ),
    "svhn": _Files(
        (svhn.LAYOUT,),
        lambda folder, _: svhn.read_svhn(folder),
        "Get the two files of format 2 (cropped digits) from http://ufldl.stanford.edu/housenumbers",
    ),
    "femnist": _Files(
        (leaf.LAYOUT,),
        lambda folder, _: leaf.read_femnist(folder),
        "Make them with https://github.com/TalwalkarLab/leaf in data/femnist: "
        "./preprocess.sh -s niid --sf 1.0 -t sample; then copy data/train and data/test",
    ),
}


@dataclass(frozen=True)
class Available:
    """One row of what `load` takes. found None: it depends on a data root that was not given, or on the name itself."""

    name: str
    needs_root: bool
    files: str
    found: bool | None


def available(root: str | Path | None = None) -> list[Available]:
    """Every data set `load` knows, with the files it expects and whether they are under `root`."""
    folder = None if root is None else Path(root)
    rows = [Available("digits", False, "none: comes with scikit-learn", True)]
    for name, files in FILES.items():
        layouts = [files.layouts, (files.writers,)] if files.writers else [files.layouts]
        words = "; and ".join("; or ".join(layout.describe() for layout in choice) for choice in layouts)
        found = None if folder is None else all(find(folder, choice) is not None for choice in layouts)
        rows.append(Available(name, True, words, found))
    rows.append(Available("PATH.npz", False, f"the file itself, with {', '.join(KEYS)} and optionally groups", None))
    installed = importlib.util.find_spec("datasets") is not None
    rows.append(Available("hf:NAME", False, 'none: downloads; needs pip install "fedkeep[hf]"', installed))
    return rows


def load(name: str, root: str | Path | None = None, limit: int | None = None, inputs: str = "standard") -> Dataset:
    """A data set by name: digits, mnist, ..., a path that ends in .npz, or hf:NAME.

    `root` is the folder that holds the official files (see `available`). `limit` keeps that many training samples: the
    first ones of a random order that depends on nothing but the number of samples, so a larger limit only adds, and
    every experiment with the same limit sees the same ones. Test part and normalisation stay those of the whole set;
    a limit above the number of samples keeps them all. `inputs`: "standard" normalises by channel, "unit" leaves pixels
    between 0 and 1 (and other numbers as they are in the file).

    >>> digits = load("digits", limit=100)
    >>> tuple(digits.train_x.shape), digits.classes
    ((100, 1, 8, 8), 10)
    """
    if limit is not None:
        checked_count(name, "limit", limit)
    folder = None if root is None else Path(root)
    if name == "digits":
        raw = read_digits()
    elif name.startswith("hf:"):
        raw = read_hub(name.removeprefix("hf:"))
    elif name.endswith(".npz"):
        raw = read_npz(_npz_path(name, folder))
    elif name in FILES:
        raw = _read_files(name, folder)
    else:
        raise ConfigError(
            f'unknown data set "{name}": {nearest(name, ["digits", *FILES])} (or a path that ends in .npz, or hf:NAME)'
        )
    return finish(name, raw, limit, inputs)


def _read_files(name: str, root: Path | None) -> Raw:
    files = FILES[name]
    layout, folder = located(name, root, files.layouts, files.remedy)
    if files.writers is None:
        return files.read(folder, layout)
    _, labels = located(name, root, (files.writers,), files.remedy)
    return idx.with_writers(files.read(folder, layout), labels)


def _npz_path(name: str, root: Path | None) -> Path:
    """The file as named, or under the data root."""
    places = [Path(name).expanduser()] + ([root / name] if root is not None else [])
    for place in places:
        if place.is_file():
            return place
    raise DataError(f"{name}: no such file (looked at {', '.join(map(str, places))}); check the path")
