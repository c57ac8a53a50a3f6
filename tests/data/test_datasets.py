"""load and available: names, limits, checks, digits, .npz."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from data.official_layouts import images, labels, write_mnist
from fedkeep import data
from fedkeep.errors import ConfigError, DataError


def test_digits_are_scikit_learns_in_a_stratified_split():
    digits = data.load("digits")
    assert digits.shape == (1, 8, 8)
    assert digits.train_x.dtype == digits.test_x.dtype == torch.float32
    assert digits.train_y.dtype == digits.test_y.dtype == torch.int64
    assert digits.classes == 10
    assert digits.groups is None
    everything = np.bincount(load_digits().target)
    train, test = (np.bincount(y.numpy()) for y in (digits.train_y, digits.test_y))
    assert (train + test == everything).all()
    assert (np.abs(test - everything / 5) <= 0.5).all()
    assert digits.train_x.mean().item() == pytest.approx(0, abs=1e-5)
    assert digits.train_x.std().item() == pytest.approx(1, abs=1e-3)


def test_digits_keep_each_image_with_its_label():
    digits = data.load("digits")
    original = load_digits()
    known = {tuple(image): label for image, label in zip(original.data.astype(int), original.target, strict=True)}
    x = torch.cat([digits.train_x, digits.test_x]).reshape(1797, 64).double()
    darkest, lightest = x.max(), x.min()  # pixel values 16 and 0
    pixels = ((x - lightest) / (darkest - lightest) * 16).round().int().numpy()
    y = torch.cat([digits.train_y, digits.test_y]).tolist()
    assert all(known[tuple(image)] == label for image, label in zip(pixels, y, strict=True))
    assert len({tuple(image) for image in pixels}) == len(known)


def test_digits_are_the_same_every_time():
    assert torch.equal(data.load("digits").test_x, data.load("digits").test_x)


def test_unit_inputs_are_the_files_numbers_divided_and_nothing_else(tmp_path):
    unit = data.load("digits", inputs="unit")
    original = load_digits().data / 16
    mine = torch.cat([unit.train_x, unit.test_x]).reshape(1797, 64).double().numpy()
    assert sorted(map(tuple, mine)) == sorted(map(tuple, original))  # sixteenths are exact
    assert "not normalised" in unit.source
    assert "not normalised" not in data.load("digits").source
    numbers = np.random.default_rng(0).normal(3, 2, (6, 4)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x_train=numbers, y_train=np.arange(6), x_test=numbers, y_test=np.arange(6))
    assert torch.equal(data.load(str(tmp_path / "mine.npz"), inputs="unit").test_x, torch.from_numpy(numbers))
    with pytest.raises(ConfigError, match='inputs "units" is unknown'):
        data.load("digits", inputs="units")


def test_a_larger_limit_only_adds():
    whole, few, more = (data.load("digits", limit=limit) for limit in (None, 50, 200))
    rows = [{tuple(row) for row in part.train_x.flatten(1).tolist()} for part in (few, more, whole)]
    assert rows[0] < rows[1] < rows[2]
    assert (len(few.train_y), len(more.train_y)) == (50, 200)
    assert torch.equal(few.test_x, whole.test_x)
    assert "50 of 1438 training samples" in few.source
    assert len(set(few.train_y.tolist())) > 5  # not the first of one class
    assert torch.equal(data.load("digits", limit=10**6).train_x, whole.train_x)


@pytest.mark.parametrize("limit", [0, -3, 2.5, True])
def test_a_bad_limit_is_refused(limit):
    with pytest.raises(ConfigError, match=f"digits: limit={limit!r}"):
        data.load("digits", limit=limit)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match='unknown data set "mnits": did you mean "mnist"'):
        data.load("mnits")


def test_available_says_what_is_there(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    rows = {row.name: row for row in data.available(tmp_path)}
    names = {
        "digits",
        "mnist",
        "fashion-mnist",
        "qmnist",
        "cifar10",
        "cifar100",
        "svhn",
        "femnist",
        "PATH.npz",
        "hf:NAME",
    }
    assert set(rows) == names
    assert rows["mnist"].found is True
    assert rows["mnist"].needs_root
    assert "train-images-idx3-ubyte" in rows["mnist"].files
    assert rows["fashion-mnist"].found is False
    assert rows["qmnist"].found is False  # the images are there, the writers are not
    assert rows["digits"].found is True
    assert not rows["digits"].needs_root
    assert {row.found for row in data.available() if row.needs_root} == {None}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "qmnist", "cifar10", "cifar100", "svhn", "femnist"])
def test_missing_files_are_named_with_a_remedy(name, tmp_path):
    with pytest.raises(DataError, match=f"{name}: needs a data root.*http"):
        data.load(name)
    with pytest.raises(DataError, match=r"is not a folder.*http"):
        data.load(name, tmp_path / "nowhere")
    with pytest.raises(DataError, match=f"{name}: no files under .*Expected there: .*http"):
        data.load(name, tmp_path)


def npz(path, **changes):
    arrays = {
        "x_train": images(8, 3, 6, 6),
        "y_train": labels(8, 4),
        "x_test": images(3, 3, 6, 6),
        "y_test": labels(3, 4),
    }
    arrays |= changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return str(path)


def test_npz_of_8_bit_images_is_normalised_by_channel(tmp_path):
    made = data.load(npz(tmp_path / "own.npz", groups=np.arange(8) // 2))
    pixels = images(8, 3, 6, 6) / 255
    mean, std = (f(pixels, axis=(0, 2, 3)).reshape(3, 1, 1) for f in (np.mean, np.std))
    assert made.train_x.numpy() == pytest.approx((pixels - mean) / std, abs=1e-5)
    assert made.test_x.numpy() == pytest.approx((images(3, 3, 6, 6) / 255 - mean) / std, abs=1e-5)
    assert made.classes == 4
    assert made.groups is not None
    assert made.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "own.npz" in made.source
    assert str(tmp_path) not in made.source


def test_npz_limit_keeps_x_y_and_groups_together_and_the_scaling(tmp_path):
    path = npz(tmp_path / "own.npz", groups=np.arange(8), y_train=np.arange(8))
    whole, few = data.load(path), data.load(path, limit=3)
    assert few.groups is not None
    kept = few.groups.tolist()
    assert kept == sorted(kept)
    assert few.train_y.tolist() == kept
    assert torch.equal(few.train_x, whole.train_x[kept])
    assert few.classes == whole.classes


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (1, 6, 5)])
def test_npz_finds_the_channel_axis(shape, tmp_path):
    made = data.load(npz(tmp_path / "own.npz", x_train=images(8, *shape), x_test=images(3, *shape)))
    flat = data.load(npz(tmp_path / "flat.npz", x_train=images(8, 1, 6, 5), x_test=images(3, 1, 6, 5)))
    assert made.shape == (1, 6, 5)
    assert torch.equal(made.train_x, flat.train_x)


def test_npz_moves_colours_in_front(tmp_path):
    last = images(8, 6, 5, 3).astype(np.float32)
    made = data.load(npz(tmp_path / "own.npz", x_train=last, x_test=last[:3]))
    assert made.shape == (3, 6, 5)
    assert made.train_x[4, 2, 1, 3].item() == last[4, 1, 3, 2]


def test_npz_of_numbers_is_taken_as_it_is(tmp_path):
    x = np.linspace(-3, 9, 40).reshape(8, 5)
    made = data.load(npz(tmp_path / "own.npz", x_train=x, x_test=x[:3], y_train=labels(8, 4)[:, None]))
    assert made.shape == (5,)
    assert torch.equal(made.train_x, torch.tensor(x, dtype=torch.float32))
    assert made.train_y.tolist() == [0, 3, 2, 1, 0, 3, 2, 1]


def test_npz_under_the_data_root(tmp_path):
    npz(tmp_path / "own.npz")
    assert len(data.load("own.npz", tmp_path).train_y) == 8
    with pytest.raises(DataError, match=r"other.npz: no such file.*other.npz, .*other.npz"):
        data.load("other.npz", tmp_path)


BAD = np.zeros((8, 5))
BAD[3, 1], BAD[6, :2] = np.nan, np.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_train": BAD, "x_test": BAD[:1]},
            "3 values of the train samples are NaN or infinite, the first in sample 3",
        ),
        ({"x_train": BAD[:3].repeat(8, 0)[:8], "x_test": BAD[3:4].repeat(3, 0)}, "3 values of the test samples"),
        ({"y_train": labels(7)}, "8 train samples but 7 labels"),
        ({"y_train": labels(8).astype(float)}, "train labels are float64"),
        (
            {"y_train": np.array([0, 1, -1, 1, 0, 1, 0, 1])},
            "1 train labels are outside 0 to 3, the first is -1 at sample 2",
        ),
        ({"x_train": images(0, 3, 6, 6), "y_train": labels(0)}, "the train part is empty"),
        ({"x_test": images(3, 3, 7, 6)}, "shape"),
        ({"x_test": images(3, 3, 6, 6) / 255}, "x_test is float64"),
        ({"x_train": np.array(["a"] * 8), "x_test": np.array(["a"] * 3)}, "must be numbers"),
        ({"groups": np.arange(5)}, "5 client ids .* for 8 training samples"),
        ({"x_test": None, "y_test": None}, "has no x_test, y_test, only x_train, y_train"),
        ({"x_train": np.array([{}] * 8, dtype=object)}, "without objects"),
    ],
)
def test_bad_npz_is_refused(changes, message, tmp_path):
    with pytest.raises(DataError, match=message):
        data.load(npz(tmp_path / "own.npz", **changes))


@pytest.mark.parametrize("cut", [0, 10, -30])
def test_damaged_npz_is_refused(cut, tmp_path):
    path = tmp_path / "own.npz"
    npz(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"not a readable .npz"):
        data.load(str(path))
