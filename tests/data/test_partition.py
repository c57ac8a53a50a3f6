"""Partition, Skew and the validation split."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeep.data.partition import Partition, iid, split_validation
from fedkeep.errors import ConfigError, DataError


def test_from_owners_lists_each_clients_samples_in_order():
    partition = Partition.from_owners([2, 0, 2, -1, 0, -1], clients=4)
    assert [partition.indices(k).tolist() for k in range(4)] == [[1, 4], [], [0, 2], []]
    assert partition.sizes.tolist() == [2, 0, 2, 0]
    assert len(partition) == 4
    assert partition.index.dtype == partition.offsets.dtype == np.int64


def test_indices_is_a_view():
    partition = Partition.from_owners([0, 1, 0], clients=2)
    assert np.shares_memory(partition.indices(1), partition.index)


@pytest.mark.parametrize(
    ("index", "offsets"), [([0, 1], [0, 1]), ([0, 1], [1, 2]), ([0, 1], [0, 2, 1, 2]), ([0], []), ([[0]], [0, 1])]
)
def test_offsets_that_do_not_fit_are_refused(index, offsets):
    with pytest.raises(DataError, match="offsets"):
        Partition(np.array(index), np.array(offsets))


@pytest.mark.parametrize("client", [-1, 2])
def test_a_client_that_does_not_exist_is_refused(client):
    with pytest.raises(ConfigError, match=f"client {client} does not exist.*0 to 1"):
        Partition.from_owners([0, 1], clients=2).indices(client)


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 3)), min_size=1, max_size=60))
def test_label_counts_equal_counting_one_by_one(pairs):
    owners, labels = zip(*pairs, strict=True)
    expected = np.zeros((5, max(labels) + 1), dtype=int)
    for owner, label in pairs:
        if owner >= 0:
            expected[owner, label] += 1
    counts = Partition.from_owners(owners, clients=5).label_counts(np.array(labels))
    assert np.array_equal(counts, expected)


def test_label_counts_with_more_classes_than_seen():
    counts = Partition.from_owners([0, 1], clients=2).label_counts(np.array([1, 0]), classes=4)
    assert counts.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_label_counts_refuses_too_few_classes_and_foreign_labels():
    partition = Partition.from_owners([0, 0, 1], clients=2)
    with pytest.raises(DataError, match="label 2 does not fit classes=2"):
        partition.label_counts(np.array([0, 1, 2]), classes=2)
    with pytest.raises(DataError, match="sample 2, there are 2 labels"):
        partition.label_counts(np.array([0, 1]))


def test_skew_by_hand():
    # client 0: labels 0 0 1 1; client 1: labels 2 2; client 2: nothing. Shares dealt: 1/3 each.
    partition = Partition.from_owners([0, 0, 0, 0, 1, 1, -1], clients=3)
    skew = partition.skew(np.array([0, 0, 1, 1, 2, 2, 3]))
    assert skew.classes_per_client == 1.5
    # client 0: 1/2 (1/6 + 1/6 + 1/3) = 1/3; client 1: 1/2 (1/3 + 1/3 + 2/3) = 2/3
    assert skew.distance == pytest.approx(0.5)
    assert skew.effective_classes == pytest.approx(math.sqrt(2))  # exp((log 2 + 0) / 2)
    assert (skew.clients, skew.smallest, skew.largest) == (3, 0, 4)
    assert skew.describe() == (
        "3 clients of 0 to 4 samples; 1.5 classes each (effective 1.4); label distance 0.50 from the global share"
    )


def test_skew_of_equal_shares_is_none():
    skew = Partition.from_owners([0, 0, 1, 1], clients=2).skew(np.array([0, 1, 0, 1]))
    assert (skew.distance, skew.smallest, skew.largest) == (0.0, 2, 2)
    assert skew.effective_classes == pytest.approx(2)


def test_skew_of_nothing_is_refused():
    with pytest.raises(DataError, match="no client"):
        Partition.from_owners([-1, -1], clients=2).skew(np.array([0, 1]))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.floats(0, 0.99), st.integers(0, 5))
def test_split_validation_divides_each_client(sizes, fraction, seed):
    partition = Partition(np.arange(sum(sizes))[::-1].copy(), np.concatenate([[0], np.cumsum(sizes)]))
    train, validation = split_validation(partition, fraction, seed)
    for client, size in enumerate(sizes):
        parts = train.indices(client).tolist() + validation.indices(client).tolist()
        assert sorted(parts) == sorted(partition.indices(client).tolist())
        assert len(validation.indices(client)) <= size * fraction + 1e-6
        assert len(validation.indices(client)) > size * fraction - 1 - 1e-6 or size <= 1
        assert len(train.indices(client)) >= min(size, 1)


def test_split_validation_takes_the_floor():
    partition = Partition(np.arange(130), np.array([0, 100, 119, 128, 129, 129, 130]))
    _, validation = split_validation(partition, 0.1, seed=0)
    assert validation.sizes.tolist() == [10, 1, 0, 0, 0, 0]
    _, validation = split_validation(Partition(np.arange(100), np.array([0, 100])), 0.29, seed=0)
    assert validation.sizes.tolist() == [29]  # 0.29 * 100 < 29 in floating point


def test_split_validation_never_empties_the_training_part():
    train, validation = split_validation(Partition(np.arange(6), np.array([0, 5, 6])), 1 - 1e-12, seed=0)
    assert train.sizes.tolist() == [1, 1]
    assert validation.sizes.tolist() == [4, 0]


def test_split_validation_is_keyed_by_client_and_seed():
    three = Partition(np.arange(150), np.array([0, 50, 100, 150]))
    without_first = Partition(np.arange(50, 150), np.array([0, 0, 50, 100]))
    held = split_validation(three, 0.2, seed=1)[1]
    again = split_validation(without_first, 0.2, seed=1)[1]
    other = split_validation(three, 0.2, seed=2)[1]
    assert np.array_equal(held.indices(2), again.indices(2))
    assert not np.array_equal(held.indices(2), other.indices(2))
    assert not np.array_equal(held.indices(1) - 50, held.indices(2) - 100)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, math.nan])
def test_split_validation_refuses_a_bad_fraction(fraction):
    with pytest.raises(ConfigError, match="validation fraction"):
        split_validation(iid(np.zeros(4, dtype=int), 2), fraction, seed=0)
