"""Pickles are read without running what is in them."""

from __future__ import annotations

import collections
import datetime
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.official_layouts import python2_pickle
from fedkeep.data.restricted_pickle import read_pickle
from fedkeep.errors import DataError


class Runs:
    """A pickle that makes a folder when an ordinary reader opens it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path):
    evil = tmp_path / "evil"
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Runs(evil)}, 2))
    with pytest.raises(DataError, match=r"data_batch_1: refused, it refers to (posix|os).mkdir"):
        read_pickle(path)
    assert not evil.exists()
    pickle.loads(path.read_bytes())
    assert evil.exists()  # the attack itself works


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.float64(1.0), "scalar"),
        (datetime.date(2020, 1, 1), "datetime.date"),
        (collections.OrderedDict(), "collections.OrderedDict"),
        (np.random.default_rng, "numpy.random"),
        (eval, "builtin(s|__).eval"),
        (np.array([{}], dtype=object), "type 'O8'"),
        (np.array(["text"]), "type 'U4'"),
        (np.zeros(1, dtype=[("a", "i4")]), "type 'V4'"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_other_things_are_refused_by_name(tmp_path, value, name, protocol):
    (tmp_path / "file").write_bytes(pickle.dumps({"data": value}, protocol))
    with pytest.raises(DataError, match=f"refused, .*{name}"):
        read_pickle(tmp_path / "file")


def test_another_encoding_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"c_codecs\nencode\n(Vabc\nVrot13\ntR.")
    with pytest.raises(DataError, match=r"refused, .*rot13"):
        read_pickle(tmp_path / "file")


ARRAYS = [
    np.arange(12, dtype=np.uint8).reshape(3, 4),
    np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    np.arange(3, dtype=">i4"),
    np.array([True, False]),
    np.zeros((0, 3)),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "python 2"])
def test_arrays_come_through(tmp_path, array, protocol):
    if protocol == "python 2":
        python2_pickle(tmp_path / "file", {"data": array})
    else:
        (tmp_path / "file").write_bytes(pickle.dumps({"data": array}, protocol))
    read = read_pickle(tmp_path / "file")["data"]
    assert np.array_equal(read, array)
    assert read.dtype == array.dtype


def test_plain_containers_come_through(tmp_path):
    content = {"a": [1, (2.5, None)], "b": {"c": b"", "d": b"\xff"}, "e": True}
    (tmp_path / "file").write_bytes(pickle.dumps(content, 2))
    assert read_pickle(tmp_path / "file") == content


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255), st.booleans())
def test_damage_gives_a_data_error_or_a_dictionary(tmp_path_factory, place, value, cut):
    good = bytearray(pickle.dumps({"data": ARRAYS[0], "labels": [1, 2, 3]}, 2))
    place %= len(good)
    damaged = good[:place] if cut else good[:place] + bytes([value]) + good[place + 1 :]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(damaged)
    try:
        assert isinstance(read_pickle(path), dict)
    except DataError as error:
        assert "damaged" in str(error)
