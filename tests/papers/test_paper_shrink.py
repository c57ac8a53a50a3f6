from __future__ import annotations

import numpy as np
import pytest

from fedkeep.data import load
from fedkeep.errors import ConfigError
from fedkeep.papers.shrink import shrunk_name, write_shrunk


def test_smaller_copies(tiny_root, tmp_path):
    name = shrunk_name("mnist", {"train": 100, "test": 20, "halve": 1})
    path = write_shrunk(name, tiny_root, tmp_path)
    small, whole = load(name, tmp_path), load("mnist", tiny_root, 100)
    assert small.shape == (1, 14, 14) and small.classes == 10
    assert np.array_equal(small.train_y, whole.train_y)
    assert np.bincount(small.test_y).tolist() == [2] * 10  # as many of each class
    means = whole.train_x[7, 0, 2:4, 4:6].mean()  # the 2x2 pixels under pixel (1, 2)
    assert float(small.train_x[7, 0, 1, 2]) == pytest.approx(float(means), abs=2e-3)  # half precision
    before = path.read_bytes()
    path.unlink()
    assert write_shrunk(name, tiny_root, tmp_path).read_bytes() == before


def test_writers_are_kept(tiny_root, tmp_path):
    name = shrunk_name("qmnist", {"test": 10})
    write_shrunk(name, tiny_root, tmp_path)
    assert np.array_equal(load(name, tmp_path).groups, load("qmnist", tiny_root).groups)


def test_unknown_ways_to_shrink_are_refused():
    with pytest.raises(ConfigError, match='shrink: unknown key "tset": did you mean "test"'):
        shrunk_name("mnist", {"tset": 3})
