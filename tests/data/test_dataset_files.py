"""The readers of the official files, on small files in the official layouts."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from data.official_layouts import (
    MNIST_FILES,
    idx_bytes,
    images,
    labels,
    python2_pickle,
    write,
    write_leaf,
    write_mat,
    write_mnist,
    write_writers,
)
from fedkeep import data
from fedkeep.errors import DataError

# idx


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "."])
def test_mnist(tmp_path, order, packed, folder):
    write_mnist(tmp_path / folder, order=order, packed=packed)
    made = data.load("mnist", tmp_path)
    assert made.shape == (1, 28, 28)
    assert made.train_x.numpy() == pytest.approx((images(12, 1, 28, 28) / 255 - 0.1307) / 0.3081, abs=1e-5)
    assert made.test_x.numpy() == pytest.approx((images(5, 1, 28, 28) / 255 - 0.1307) / 0.3081, abs=1e-5)
    assert made.train_y.tolist() == labels(12).tolist()
    assert made.test_y.tolist() == labels(5).tolist()
    assert "NOT the official 60000 and 10000" in made.source


def test_fashion_mnist_has_its_own_folder_and_constants(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw", train=3)
    write_mnist(tmp_path / "FashionMNIST" / "raw", train=4)
    made = data.load("fashion-mnist", tmp_path)
    assert made.train_x.numpy() == pytest.approx((images(4, 1, 28, 28) / 255 - 0.2860) / 0.3530, abs=1e-5)


def test_qmnist_names_the_writers(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    with pytest.raises(DataError, match=r"qmnist: no files .*qmnist-train-labels-idx2-int"):
        data.load("qmnist", tmp_path)
    write_writers(tmp_path / "QMNIST-labels", labels(12))
    made = data.load("qmnist", tmp_path)
    assert made.groups is not None
    assert made.groups.tolist() == [2000] * 4 + [2001] * 4 + [2002] * 4
    assert "3 writers" in made.source
    assert data.partition.parse("natural").build(made.train_y, None, 0, made.groups).sizes.tolist() == [4, 4, 4]


@pytest.mark.parametrize("classes", [labels(11), (labels(12) + 1) % 10])
def test_writers_of_other_images_are_refused(tmp_path, classes):
    write_mnist(tmp_path / "MNIST" / "raw")
    write_writers(tmp_path / "QMNIST-labels", classes)
    with pytest.raises(DataError, match="do not repeat the 12 MNIST training labels"):
        data.load("qmnist", tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda good: good[:-1], "9423 bytes, but the header .* asks for 9424"),
        (lambda good: good + b"\0", "9425 bytes, but the header"),
        (lambda good: good[:10], "10 bytes, but the header"),
        (lambda good: b"", "begins with nothing"),
        (lambda good: b"\0\0\x08\x01" + good[4:], "begins with 00 00 08 01, not with an idx header of 3 axes"),
        (lambda good: b"\0\0\x07\x03" + good[4:], "begins with 00 00 07 03"),
        (lambda good: b"<htm" + good[4:], "begins with 3c 68 74 6d"),
        (lambda good: good[:4] + b"\xff" * 4 + good[8:], "9424 bytes, but the header .-1, 28, 28."),
    ],
)
def test_damaged_idx_is_refused(tmp_path, damage, message):
    write_mnist(tmp_path)
    (tmp_path / MNIST_FILES[0]).write_bytes(damage(idx_bytes(images(12, 28, 28))))
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte: {message}"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda good: good[:-20], lambda good: b"junk" + good, lambda good: good[:40] + b"x" * 40]
)
def test_damaged_gzip_is_refused(tmp_path, damage):
    write_mnist(tmp_path, packed=True)
    path = tmp_path / (MNIST_FILES[0] + ".gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="cannot be read"):
        data.load("mnist", tmp_path)


def test_one_missing_file_is_named(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / MNIST_FILES[3]).unlink()
    with pytest.raises(DataError, match=f"raw lacks {MNIST_FILES[3]}"):
        data.load("mnist", tmp_path)


def test_images_and_labels_of_different_number_are_refused(tmp_path):
    write_mnist(tmp_path)
    write(tmp_path / MNIST_FILES[1], idx_bytes(labels(13)))
    with pytest.raises(DataError, match="12 train samples but 13 labels"):
        data.load("mnist", tmp_path)


def test_a_label_outside_the_classes_is_refused(tmp_path):
    write_mnist(tmp_path)
    write(tmp_path / MNIST_FILES[3], idx_bytes(np.array([0, 1, 12, 3, 4], dtype=np.uint8)))
    with pytest.raises(DataError, match="1 test labels are outside 0 to 9, the first is 12 at sample 2"):
        data.load("mnist", tmp_path)


# CIFAR

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
MEAN10, STD10 = (np.array(v).reshape(3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
MEAN100, STD100 = (np.array(v).reshape(3, 1, 1) for v in ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)))


def batch(number, classes=10):
    """Batch `number` has number + 2 images."""
    return images(number + 2, 3072) ^ np.uint8(number), labels(number + 2, classes)


def expected10():
    x = np.concatenate([batch(number)[0] for number in range(5)]).reshape(-1, 3, 32, 32)
    return (x / 255 - MEAN10) / STD10, np.concatenate([batch(number)[1] for number in range(5)])


def check10(made):
    x, y = expected10()
    assert made.train_x.numpy() == pytest.approx(x, abs=1e-5)
    assert made.train_y.tolist() == y.tolist()
    assert made.test_x.numpy() == pytest.approx((batch(5)[0].reshape(-1, 3, 32, 32) / 255 - MEAN10) / STD10, abs=1e-5)
    assert made.test_y.tolist() == batch(5)[1].tolist()
    assert (made.shape, made.classes) == ((3, 32, 32), 10)


def write_cifar10_binary(folder):
    for number, name in enumerate(BATCHES):
        x, y = batch(number)
        write(folder / f"{name}.bin", np.concatenate([y[:, None], x], axis=1).tobytes())


def test_cifar10_binary(tmp_path):
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    check10(data.load("cifar10", tmp_path))


@pytest.mark.parametrize("protocol", [None, 2, 3, 4, 5])
def test_cifar10_pickle(tmp_path, protocol):
    for number, name in enumerate(BATCHES):
        x, y = batch(number)
        content = {b"batch_label": b"", b"labels": y.tolist(), b"data": x, b"filenames": [b"a.png"] * len(y)}
        path = tmp_path / "cifar-10-batches-py" / name
        if protocol is None:
            python2_pickle(path, content)
        else:
            write(path, pickle.dumps(content, protocol))
    check10(data.load("cifar10", tmp_path))


def test_cifar10_pickle_from_an_older_numpy_and_with_text_keys(tmp_path):
    for number, name in enumerate(BATCHES):
        x, y = batch(number)
        new = pickle.dumps({"labels": y.tolist(), "data": x}, 2)
        old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        assert old != new
        write(tmp_path / "cifar-10-batches-py" / name, old)
    check10(data.load("cifar10", tmp_path))


def test_cifar100_has_fine_labels_in_both_layouts(tmp_path):
    parts = {"train": (images(9, 3072), labels(9, 100) + 40), "test": (images(4, 3072), labels(4, 100))}
    for name, (x, y) in parts.items():
        coarse = np.full((len(y), 1), 3, dtype=np.uint8)
        write(
            tmp_path / "b" / "cifar-100-binary" / f"{name}.bin",
            np.concatenate([coarse, y[:, None], x], axis=1).tobytes(),
        )
        content = {b"coarse_labels": [3] * len(y), b"fine_labels": y.tolist(), b"data": x}
        python2_pickle(tmp_path / "p" / "cifar-100-python" / name, content)
    for root in ("b", "p"):
        made = data.load("cifar100", tmp_path / root)
        x = images(9, 3, 32, 32) / 255
        assert made.train_x.numpy() == pytest.approx((x - MEAN100) / STD100, abs=1e-5)
        assert made.train_y.tolist() == (labels(9, 100) + 40).tolist()
        assert made.test_y.tolist() == labels(4, 100).tolist()
        assert made.classes == 100


@pytest.mark.parametrize("size", [0, 3072, 3073 * 2 - 1])
def test_a_cut_binary_batch_is_refused(tmp_path, size):
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    write(tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin", bytes(size))
    with pytest.raises(DataError, match=f"data_batch_3.bin: {size} bytes are not a whole number of 3073-byte records"):
        data.load("cifar10", tmp_path)


def test_a_missing_batch_is_named(tmp_path):
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin lacks data_batch_4.bin"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"labels": [1]}, "has no data, only labels"),
        ({b"data": images(1, 3072), b"labels": [1, 2]}, "labels are int64 .2,. for 1 images"),
        ({b"data": images(1, 3000), b"labels": [1]}, "data is uint8 .1, 3000."),
        ({b"data": b"x" * 3072, b"labels": [1]}, "data is bytes"),
        ([1, 2], "holds a list"),
    ],
)
def test_pickles_of_other_content_are_refused(tmp_path, content, message):
    for name in BATCHES:
        write(tmp_path / name, pickle.dumps(content, 2))
    with pytest.raises(DataError, match=f"data_batch_1: {message}"):
        data.load("cifar10", tmp_path)


# SVHN


def test_svhn_turns_axes_and_calls_ten_zero(tmp_path):
    x, y = images(6, 32, 32, 3), np.array([10, 1, 9, 10, 5, 2], dtype=np.uint8)
    write_mat(tmp_path / "SVHN" / "train_32x32.mat", x, y)
    write_mat(tmp_path / "SVHN" / "test_32x32.mat", x[:2], y[:2])
    made = data.load("svhn", tmp_path)
    mean, std = np.array([0.4377, 0.4438, 0.4728]), np.array([0.1980, 0.2010, 0.1970])
    assert made.train_x.permute(0, 2, 3, 1).numpy() == pytest.approx((x / 255 - mean) / std, abs=1e-5)
    assert made.train_x.is_contiguous()
    assert made.train_y.tolist() == [0, 1, 9, 0, 5, 2]
    assert made.shape == (3, 32, 32)
    assert "6 training and 2 test samples, NOT the official 73257 and 26032" in made.source


def test_bad_mat_files_are_refused(tmp_path):
    path = tmp_path / "train_32x32.mat"
    write_mat(tmp_path / "test_32x32.mat", images(2, 32, 32, 3), labels(2))
    for content in (b"", b"not a mat file" * 20):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"train_32x32.mat: not a readable .mat file"):
            data.load("svhn", tmp_path)
    write_mat(path, images(9, 32, 32, 3), labels(9))
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"train_32x32.mat"):
        data.load("svhn", tmp_path)
    write_mat(path, images(4, 16, 16, 3), labels(4))
    with pytest.raises(DataError, match=r"holds X uint8 \(16, 16, 3, 4\)"):
        data.load("svhn", tmp_path)


# FEMNIST


def test_femnist_reads_all_files_and_names_the_writers(tmp_path):
    write_leaf(tmp_path / "femnist" / "train" / "a.json", {"f01": [3, 61], "f00": [7]})
    write_leaf(tmp_path / "femnist" / "train" / "b.json", {"f02": [0], "f03": []})
    write_leaf(tmp_path / "femnist" / "test" / "a.json", {"f00": [5, 6]})
    made = data.load("femnist", tmp_path)
    assert made.shape == (1, 28, 28)
    assert made.classes == 62
    assert made.train_y.tolist() == [3, 61, 7, 0]
    assert made.test_y.tolist() == [5, 6]
    assert made.groups is not None
    assert made.groups.tolist() == ["f01", "f01", "f00", "f02"]
    pixels = np.array([3, 61, 7, 0]) / 100
    assert made.train_x[:, 0, 9, 4].numpy() == pytest.approx((pixels - pixels.mean()) / pixels.std(), abs=1e-5)
    assert "3 writers" in made.source


USER = {"x": [[0.5] * 784], "y": [3]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": ["f00", "f09"], "num_samples": [1, 1]}, "KeyError: 'f09'"),
        ({"num_samples": [1, 1]}, "not a LEAF file"),
        ({"num_samples": [2]}, "user f00 has x of shape .1, 784. and 1 labels, but num_samples says 2"),
        ({"user_data": {"f00": USER | {"y": [3, 4]}}}, "and 2 labels"),
        ({"user_data": {"f00": USER | {"x": [[0.5] * 700]}}}, "shape .1, 700."),
        ({"user_data": {"f00": USER | {"x": [["a"] * 784]}}}, "not a LEAF file"),
        ({"user_data": {"f00": USER | {"y": [3.5]}}}, "not a LEAF file"),
        ({"user_data": {"f00": USER | {"y": [62]}}}, "labels are outside 0 to 61, the first is 62"),
        ({"user_data": {"f00": USER | {"x": [[float("nan")] * 784]}}}, "784 values of the train samples are NaN"),
        ({"users": [], "num_samples": []}, "hold no samples"),
    ],
)
def test_bad_leaf_files_are_refused(tmp_path, changes, message):
    write_leaf(tmp_path / "train" / "a.json", {"f00": [3]}, **changes)
    write_leaf(tmp_path / "test" / "a.json", {"f00": [3]})
    with pytest.raises(DataError, match=message):
        data.load("femnist", tmp_path)


@pytest.mark.parametrize("text", [b"", b'{"users": [', b"\xff\xfe\xfa", b"[]", json.dumps({"users": []}).encode()])
def test_damaged_json_is_refused(tmp_path, text):
    write(tmp_path / "train" / "a.json", text)
    write_leaf(tmp_path / "test" / "a.json", {"f00": [3]})
    with pytest.raises(DataError, match=r"a.json: not a LEAF file"):
        data.load("femnist", tmp_path)
