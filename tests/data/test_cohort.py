"""Who takes part in a round."""

from __future__ import annotations

import numpy as np
import pytest

from fedkeep.data.sampling import cohort, cohort_size
from fedkeep.errors import ConfigError


def test_a_cohort_is_sorted_distinct_and_in_range():
    drawn = cohort(seed=1, round=2, clients=50, size=20)
    assert drawn.dtype == np.int64
    assert len(drawn) == 20
    assert (np.diff(drawn) > 0).all()
    assert 0 <= drawn[0] <= drawn[-1] < 50


def test_a_cohort_depends_on_seed_and_round_alone():
    assert np.array_equal(cohort(1, 2, 1000, 10), cohort(1, 2, 1000, 10))
    assert not np.array_equal(cohort(1, 2, 1000, 10), cohort(1, 3, 1000, 10))
    assert not np.array_equal(cohort(1, 2, 1000, 10), cohort(2, 2, 1000, 10))


def test_every_client_is_equally_likely():
    rounds = 3000
    times = np.bincount(np.concatenate([cohort(0, r, 12, 3) for r in range(rounds)]), minlength=12)
    expected, deviation = rounds / 4, np.sqrt(rounds * 0.25 * 0.75)
    assert np.abs(times - expected).max() < 4.5 * deviation


def test_memory_does_not_grow_with_the_population():
    drawn = cohort(seed=0, round=0, clients=10**13, size=100)  # 80 terabytes, were it a permutation
    assert len(np.unique(drawn)) == 100


@pytest.mark.parametrize("size", [0, -1, 11])
def test_a_cohort_that_cannot_be_drawn_is_refused(size):
    with pytest.raises(ConfigError, match=f"size={size} of clients=10"):
        cohort(0, 0, 10, size)


@pytest.mark.parametrize(
    ("clients", "fraction", "size"),
    [
        (100, 0.1, 10),
        (10, 0.25, 3),
        (10, 0.05, 1),
        (100, 0.145, 15),
        (3, 1, 3),
        (3, 1.0, 3),
        (7, 0.5, 4),
        (30, 0.02, 1),
    ],
)
def test_cohort_size_rounds_half_up(clients, fraction, size):
    assert cohort_size(clients, fraction) == size


@pytest.mark.parametrize("clients", [1, 3, 7, 100, 1234, 10**6])
def test_the_smallest_fraction_it_names_works(clients):
    with pytest.raises(ConfigError, match="the smallest fraction that works") as error:
        cohort_size(clients, 0.49 / clients)
    named = float(str(error.value).split()[-1])
    assert named == pytest.approx(0.5 / clients, rel=1e-3)
    assert cohort_size(clients, named) == 1


@pytest.mark.parametrize("fraction", [0, -0.5, 1.01, float("nan")])
def test_a_fraction_outside_is_refused(fraction):
    with pytest.raises(ConfigError, match=r"outside \(0, 1\].*0.005"):
        cohort_size(100, fraction)


def test_no_clients_at_all_is_refused():
    with pytest.raises(ConfigError, match="clients=0"):
        cohort_size(0, 0.5)
