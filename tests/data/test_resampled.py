"""Populations of any size: every client draws its own examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.data.partition import Partition, iid, parse
from fedkeep.data.population import LISTED, Drawn, Population, split
from fedkeep.data.resampled import Resampled
from fedkeep.errors import ConfigError, DataError

LABELS = np.arange(1000) % 10


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["dirichlet(alpha=0.1)", "dirichlet(alpha=100)", "shards(shards_per_client=2)", "iid"]),
    st.integers(1, 60),
    st.integers(0, 10**15),
    st.integers(0, 2**32),
)
def test_a_client_holds_what_it_is_asked_for(spec, samples, client, seed):
    made = Resampled(LABELS, parse(spec), samples, seed)
    rows = made(client)
    assert (np.diff(rows) > 0).all() and rows[0] >= 0 and rows[-1] < len(LABELS)  # ascending, none twice
    assert len(rows) == samples  # 100 of each label are enough
    assert np.array_equal(rows, Resampled(LABELS, parse(spec), samples, seed)(client))
    if spec.startswith("shards"):
        assert len(set(LABELS[rows].tolist())) <= 2


def test_labels_are_as_skewed_as_asked():
    def distance(spec: str) -> float:
        made = Resampled(LABELS, parse(spec), 50, 0)
        shares = np.stack([np.bincount(LABELS[made(k)], minlength=10) for k in range(200)]) / 50
        return float(0.5 * np.abs(shares - 0.1).sum(1).mean())

    found = [distance(spec) for spec in ("dirichlet(alpha=0.05)", "dirichlet(alpha=0.5)", "dirichlet(alpha=50)", "iid")]
    assert found[0] > 0.6 > found[1] > 0.3 > found[2] and abs(found[2] - found[3]) < 0.05


def test_too_few_of_a_label_give_fewer_examples():
    made = Resampled(np.array([0, 1, 1, 1, 1, 1]), parse("shards(shards_per_client=1)"), 3, 0)
    assert {len(made(client)) for client in range(30)} == {1, 3}


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigError, match=r"natural.*dirichlet, shards, iid"):
        Resampled(LABELS, parse("natural"), 5, 0)
    with pytest.raises(DataError, match="more labels than the 10"):
        Resampled(LABELS, parse("shards(shards_per_client=11)"), 5, 0)
    with pytest.raises(ConfigError, match="samples=0"):
        Resampled(LABELS, parse("iid"), 0, 0)
    with pytest.raises(ConfigError, match="client 5 does not exist"):
        Drawn(5, lambda client: np.arange(client)).indices(5)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.34, 0.9])
def test_a_function_is_split_as_an_array_is(fraction):
    partition = iid(LABELS, 37, seed=1)
    whole = Drawn(len(partition), partition.indices)
    for array, function in zip(split(partition, fraction, 4), split(whole, fraction, 4), strict=True):
        assert len(function) == len(array) == 37
        assert all(np.array_equal(array.indices(k), function.indices(k)) for k in range(37))


def test_a_large_array_is_split_as_a_small_one():
    clients = LISTED + 1
    large = Partition(np.arange(10 * clients), np.arange(0, 10 * clients + 1, 10))
    small = Partition(large.index[:500], large.offsets[:51])
    for one, other in zip(split(large, 0.3, 2), split(small, 0.3, 2), strict=True):
        assert isinstance(one, Drawn) and isinstance(other, Partition)
        assert all(np.array_equal(one.indices(k), other.indices(k)) for k in range(50))
    train, held = split(large, 0.3, 2)
    assert len(held.indices(clients - 1)) == 3
    assert sorted([*train.indices(4000), *held.indices(4000)]) == large.indices(4000).tolist()


def population(clients: int) -> tuple[Population, list[int]]:
    """A population that writes down who is asked for."""
    asked: list[int] = []

    def rows(client: int) -> np.ndarray:
        asked.append(client)
        return (client + np.arange(5)) % 1000

    y = torch.from_numpy(LABELS)
    return Population.of(torch.zeros(1000, 1), y, Drawn(clients, rows), 10, 0.2, 0), asked


def test_a_panel_is_a_fixed_draw():
    made, asked = population(10**9)
    panel = made.panel(50, seed=3)
    assert len(np.unique(panel)) == 50 and np.array_equal(panel, made.panel(50, seed=3))
    assert not np.array_equal(panel, made.panel(50, seed=4))
    assert asked == []
    small, _ = population(30)
    assert small.panel(50, 3).tolist() == small.panel(0, 3).tolist() == list(range(30))


def test_sizes_are_looked_up_for_a_few():
    made, asked = population(10**9)
    assert set(made.some_sizes) == {4} and len(asked) == LISTED
    assert min(asked) == 0 and max(asked) > 0.99 * 10**9
    few, asked = population(7)
    assert few.some_sizes == [4] * 7 and asked == list(range(7))


def test_labels_are_counted_per_client():
    made, _ = population(100)
    train, held = made.label_counts(np.array([0, 9]))
    assert (train + held).tolist() == [[1] * 5 + [0] * 5, [1] * 4 + [0] * 5 + [1]]
    assert held.sum(1).tolist() == [1, 1]
