"""Who can be reached, who drops out, who is slow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.data.availability import Availability
from fedkeep.data.sampling import cohort, in_random_order
from fedkeep.errors import ConfigError
from fedkeep.rng import stream

SHARES = st.floats(0.05, 0.95)


def near(count: int, of: int, share: float) -> bool:
    return abs(count - of * share) < 5 * math.sqrt(of * share * (1 - share)) + 1


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 200), st.integers(0, 2**32), st.floats(0.1, 1.0), st.integers(1, 50))
def test_a_cohort_of_those_online(clients, seed, online, size):
    size = min(size, clients)
    known = Availability(online=online)
    found = known.cohort(seed, 3, clients, size)
    there = [client for client in range(clients) if known.is_online(seed, 3, client)]
    assert len(found) == min(size, len(there)) and set(found.tolist()) <= set(there)
    assert (np.diff(found) > 0).all() and found.dtype == np.int64
    assert np.array_equal(found, known.cohort(seed, 3, clients, size))


def test_where_everyone_is_online_nothing_changes():
    for clients, size in ((10, 3), (10**6, 100)):
        assert np.array_equal(Availability().cohort(5, 2, clients, size), cohort(5, 2, clients, size))
        assert np.array_equal(
            Availability(dropout=0.3, slow=0.2).cohort(5, 2, clients, size), cohort(5, 2, clients, size)
        )


def test_each_of_those_online_is_equally_likely():
    """4 of 8 clients are online by decree; 2 are drawn in each of 3000 rounds."""
    times = np.zeros(8)
    for number in range(3000):
        times[cohort(0, number, 8, 2, online=lambda client: client % 2 == 0)] += 1
    assert (times[1::2] == 0).all()
    assert all(near(int(count), 3000, 0.5) for count in times[::2])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(0, 2**32))
def test_a_random_order_has_everyone_once(clients, seed):
    assert sorted(in_random_order(np.random.default_rng(seed), clients)) == list(range(clients))


def test_a_random_order_is_uniform_and_costs_what_is_drawn():
    orders = [tuple(in_random_order(stream(0, "order", number), 3)) for number in range(3000)]
    assert len(set(orders)) == 6
    assert all(near(orders.count(order), 3000, 1 / 6) for order in set(orders))
    few = in_random_order(np.random.default_rng(0), 10**15)
    assert len({next(few) for _ in range(100)}) == 100


@settings(deadline=None, max_examples=8)
@given(SHARES, SHARES, st.integers(0, 1000))
def test_frequencies(dropout, slow, seed):
    known = Availability(dropout=dropout, slow=slow, slow_work=0.25)
    work = [known.work(seed, number, client) for number in range(20) for client in range(50)]
    assert set(work) <= {0.0, 0.25, 1.0}
    assert near(work.count(0.0), 1000, dropout)
    assert near(work.count(0.25), 1000, (1 - dropout) * slow)


def test_who_fails_depends_on_seed_round_and_client_alone():
    known = Availability(online=0.5, dropout=0.5, slow=0.5)

    def fates(seed, number):
        return [(known.is_online(seed, number, k), known.work(seed, number, k)) for k in range(40)]

    assert fates(1, 1) == list(reversed([(known.is_online(1, 1, k), known.work(1, 1, k)) for k in reversed(range(40))]))
    assert len({tuple(fates(seed, number)) for seed in (1, 2) for number in (1, 2)}) == 4
    assert len(set(fates(1, 1))) > 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"online": 0.0}, "leaves nobody to train"),
        ({"online": 1.2}, "online=1.2 is no share"),
        ({"dropout": 1.0}, "no update in any round"),
        ({"dropout": -0.1}, "dropout=-0.1"),
        ({"slow": float("nan")}, "slow=nan"),
        ({"slow_work": 2}, "slow_work=2"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Availability(**options)
