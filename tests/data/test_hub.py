"""Hugging Face data sets, with a small stand-in for the package `datasets`."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from fedkeep import data
from fedkeep.errors import DataError


class Picture:
    """As much of a PIL image as is needed."""

    def __init__(self, pixels, mode):
        self.pixels, self.mode = np.asarray(pixels, dtype=np.uint8), mode

    def convert(self, mode):
        if mode == self.mode:
            return self
        if mode == "RGB":
            return Picture(np.stack([self.pixels] * 3, axis=-1), "RGB")
        return Picture(self.pixels[..., 0], "L")

    def __array__(self, dtype=None, copy=None):
        return self.pixels


class Split:
    """A table: rows by number, columns by name."""

    def __init__(self, names=None, **columns):
        self.columns = columns
        self.column_names = list(columns)
        self.features = {key: types.SimpleNamespace(names=names) for key in columns if key == "label"} if names else {}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, int):
            return {name: values[key] for name, values in self.columns.items()}
        return iter(self.columns[key])  # a column need not be a list


@pytest.fixture
def hub(monkeypatch):
    """Install the stand-in; returns the dictionary of what load_dataset gives, by its arguments."""
    content = {}
    module = types.ModuleType("datasets")

    def load_dataset(*arguments):
        if arguments not in content:
            raise FileNotFoundError(f"no {arguments}")
        return content[arguments]

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return content


def grey(number):
    return [Picture(np.full((4, 5), 10 * i), "L") for i in range(number)]


def test_grey_images(hub):
    hub["some/mnist",] = {
        "train": Split(image=grey(4), label=[0, 2, 1, 1], names=["a", "b", "c", "d"]),
        "test": Split(image=grey(2), label=[0, 1]),
    }
    made = data.load("hf:some/mnist")
    values = np.array([0, 10, 20, 30])
    assert made.shape == (1, 4, 5)
    assert made.train_x[:, 0, 3, 4].numpy() == pytest.approx((values - 15) / values.std(), abs=1e-5)
    assert made.train_y.tolist() == [0, 2, 1, 1]
    assert made.classes == 4  # from the names, though d never occurs
    assert "some/mnist" in made.source


def test_colour_images_with_other_column_names_and_a_configuration(hub):
    colours = [Picture(np.random.default_rng(i).integers(0, 256, (4, 5, 3)), "RGB") for i in range(3)]
    mixed = [*colours, Picture(np.zeros((4, 5)), "L")]
    hub["cifar", "full"] = {
        "train": Split(img=mixed, fine_label=[0, 1, 2, 3], coarse_label=[0] * 4, writer_id=["u", "v", "u", "w"]),
        "validation": Split(img=colours, fine_label=[4, 1, 0], coarse_label=[0] * 3, writer_id=["u"] * 3),
    }
    made = data.load("hf:cifar:full")
    assert made.shape == (3, 4, 5)
    assert made.train_y.tolist() == [0, 1, 2, 3]
    assert made.classes == 5
    assert made.groups is not None
    assert made.groups.tolist() == ["u", "v", "u", "w"]
    stacked = np.stack([c.pixels for c in colours] + [np.zeros((4, 5, 3))]) / 255
    expected = (stacked - stacked.mean(axis=(0, 1, 2))) / stacked.std(axis=(0, 1, 2))
    assert made.train_x.permute(0, 2, 3, 1).numpy() == pytest.approx(expected, abs=1e-5)
    assert "validation" in made.source


def test_a_table_with_text_labels(hub):
    train = Split(width=[1.0, 3.0], name=["x", "y"], sizes=[[1, 2], [3, 2]], label=["yes", "no"])
    hub["iris",] = {"train": train, "test": Split(width=[2.0], name=["z"], sizes=[[1, 2]], label=["no"])}
    made = data.load("hf:iris")
    # columns width, sizes[0], sizes[1], each (x - mean) / std; the constant one becomes 0
    assert made.train_x.tolist() == [[-1, -1, 0], [1, 1, 0]]
    assert made.test_x.tolist() == [[0, -1, 0]]
    assert made.train_y.tolist() == [1, 0]
    assert made.test_y.tolist() == [0]
    assert made.classes == 2


def test_a_test_label_that_training_never_saw_is_refused(hub):
    hub["t",] = {"train": Split(a=[1.0, 2.0], label=["p", "q"]), "test": Split(a=[1.0], label=["r"])}
    with pytest.raises(DataError, match="1 test labels are outside 0 to 1"):
        data.load("hf:t")


def test_limit_applies(hub):
    split = Split(image=grey(6), label=[0, 1] * 3)
    hub["m",] = {"train": split, "test": split}
    assert len(data.load("hf:m", limit=4).train_y) == 4


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": Split(a=[1.0], label=[0])}, "has the splits train; needs train and one of test"),
        ({"test": Split(a=[1.0], label=[0])}, "has the splits test"),
        ({"train": Split(a=[1.0], kind=[0]), "test": Split(a=[1.0], kind=[0])}, "no label among its columns a, kind"),
        ({"train": Split(a=["x"], label=[0]), "test": Split(a=["x"], label=[0])}, "neither an image column"),
        ({"train": Split(a=[], label=[]), "test": Split(a=[], label=[])}, "is empty"),
        ({"train": Split(a=[[1], [1, 2]], label=[0, 1]), "test": Split(a=[[1]], label=[0])}, "do not form a table"),
        (
            {
                "train": Split(image=[*grey(1), Picture(np.zeros((9, 9)), "L")], label=[0, 1]),
                "test": Split(image=grey(1), label=[0]),
            },
            "images of 2 different shapes",
        ),
    ],
)
def test_unusable_data_sets_are_refused(hub, splits, message):
    hub["odd",] = splits
    with pytest.raises(DataError, match=f"hf:odd: {message}|{message}"):
        data.load("hf:odd")


def test_a_wrong_name_is_refused(hub):
    with pytest.raises(DataError, match=r"hf:nothing: could not be loaded .FileNotFoundError"):
        data.load("hf:nothing")


def test_without_the_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "fedkeep\[hf\]"'):
        data.load("hf:mnist")
