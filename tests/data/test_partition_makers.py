"""The makers: what each promises about sizes, labels and seeds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.data import partition
from fedkeep.data.partition_by_label import _draw_without_replacement
from fedkeep.data.partition_core import largest_remainder
from fedkeep.errors import ConfigError, DataError
from fedkeep.rng import stream

TEN = np.repeat(np.arange(10), 60)  # 600 samples, 60 of each class

MAKERS = {
    "dirichlet": lambda labels, clients, seed: partition.dirichlet(labels, clients, alpha=0.3, seed=seed),
    "shards": lambda labels, clients, seed: partition.shards(labels, clients, seed=seed),
    "iid": lambda labels, clients, seed: partition.iid(labels, clients, seed=seed),
    "quantity_skew": lambda labels, clients, seed: partition.quantity_skew(labels, clients, alpha=0.5, seed=seed),
    "label_clusters": lambda labels, clients, seed: partition.label_clusters(labels, [2, clients - 2], seed=seed),
    "label_ratios": lambda labels, clients, seed: partition.label_ratios(labels, "two-majors", clients, seed=seed),
}


def same(first, second):
    return np.array_equal(first.index, second.index) and np.array_equal(first.offsets, second.offsets)


@pytest.mark.parametrize("maker", MAKERS)
def test_no_sample_has_two_owners_and_the_seed_decides(maker):
    labels = stream(0, "test labels").permutation(TEN)
    made = MAKERS[maker](labels, 9, 5)
    assert len(made) == 9
    assert len(np.unique(made.index)) == len(made.index)
    assert 0 <= made.index.min() <= made.index.max() < len(labels)
    assert all((np.diff(made.indices(k)) > 0).all() for k in range(9))
    assert same(made, MAKERS[maker](labels, 9, 5))
    assert not same(made, MAKERS[maker](labels, 9, 6))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (np.array([], dtype=int), "shape"),
        (np.zeros((6, 2), dtype=int), "shape"),
        (np.linspace(0, 1, 60), "float64"),
        (np.array([0, 1, -2] * 20), "label -2 at sample 2"),
    ],
)
def test_bad_labels_are_refused(maker, labels, error):
    with pytest.raises(DataError, match=error):
        MAKERS[maker](labels, 4, 0)


@pytest.mark.parametrize("maker", ["dirichlet", "shards", "iid", "quantity_skew"])
@pytest.mark.parametrize("clients", [0, -1, 2.5, True])
def test_a_bad_number_of_clients_is_refused(maker, clients):
    with pytest.raises(ConfigError, match=f"clients={clients!r}"):
        MAKERS[maker](TEN, clients, 0)


@pytest.mark.parametrize("maker", ["dirichlet", "shards", "iid", "quantity_skew"])
def test_more_clients_than_samples_is_refused(maker):
    with pytest.raises(DataError, match=r"601.*600 samples"):
        MAKERS[maker](TEN, 601, 0)


# Dirichlet


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    clients=st.integers(1, 80),
    alpha=st.sampled_from([1e-300, 0.001, 0.01, 0.1, 1.0, 100.0, 1e300]),
    seed=st.integers(0, 9),
)
def test_dirichlet_always_ends_with_equal_sizes(labels, clients, alpha, seed):
    clients = min(clients, len(labels))
    made = partition.dirichlet(np.array(labels), clients, alpha, seed)
    assert set(made.sizes) == {len(labels) // clients}
    assert len(np.unique(made.index)) == clients * (len(labels) // clients)


def test_dirichlet_ends_for_thousands_of_clients_and_tiny_alpha():
    labels = np.repeat(np.arange(10), 2000)
    made = partition.dirichlet(labels, 4000, alpha=0.001)
    assert set(made.sizes) == {5}
    assert made.skew(labels).classes_per_client < 1.1


def test_dirichlet_mixes_have_the_moments_of_the_distribution():
    # With plenty left of each class, E q = 1/C and E sum q^2 = (alpha + 1) / (C alpha + 1).
    classes, alpha, clients, each = 4, 0.5, 1500, 100
    labels = np.repeat(np.arange(classes), clients * each)
    shares = partition.dirichlet(labels, clients * classes, alpha, seed=3).label_counts(labels)[:clients] / each
    assert shares.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.03)
    squares = (alpha + 1) / (classes * alpha + 1)
    sampled = squares + (1 - squares) / each  # n draws from q add (1 - sum q^2) / n
    assert (shares**2).sum(axis=1).mean() == pytest.approx(sampled, abs=0.02)


def test_a_larger_alpha_is_less_skewed():
    labels = np.repeat(np.arange(10), 600)
    distances = [partition.dirichlet(labels, 60, alpha).skew(labels).distance for alpha in (0.01, 0.1, 1, 100)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.8
    assert distances[-1] < 0.2


def test_draws_stop_at_what_is_left_and_follow_the_renormalised_mix():
    # Class 0 has 2 samples: the mix (0.8, 0.15, 0.05, 0) becomes (0, 0.75, 0.25, 0) beyond them.
    left = np.array([2, 10**9, 10**9, 10**9])
    taken = _draw_without_replacement(stream(0, "test"), [0.8, 0.15, 0.05, 0.0], left, 200_000)
    assert taken.sum() == 200_000
    assert taken[0] == 2
    assert taken[1] / taken[2] == pytest.approx(3, rel=0.03)
    assert taken[3] == 0


def test_draws_without_any_mass_left_are_uniform_over_the_classes_left():
    left = np.array([5, 10**9, 0, 10**9])
    taken = _draw_without_replacement(stream(0, "test"), [1.0, 0.0, 0.0, 0.0], left, 100_005)
    assert taken[0] == 5
    assert taken[2] == 0
    assert taken[1] / taken[3] == pytest.approx(1, rel=0.05)


def test_a_class_without_mass_is_never_drawn_even_at_the_ends():
    class Ends:
        """A generator that returns only the least and the greatest number it can."""

        def random(self, size):
            return np.where(np.arange(size) % 2, np.nextafter(1, 0), 0.0)

    taken = _draw_without_replacement(Ends(), [0.0, 0.3, 0.7, 0.0], np.array([9, 9, 9, 9]), 6)
    assert taken.tolist() == [0, 3, 3, 0]


def test_draws_in_bulk_are_distributed_like_one_after_the_other():
    mix, left, size, repeats = np.array([0.6, 0.3, 0.1]), np.array([3, 2, 9]), 6, 4000
    generator = stream(0, "test")
    bulk = np.mean([_draw_without_replacement(generator, mix, left, size) for _ in range(repeats)], axis=0)
    total = np.zeros(3)
    for _ in range(repeats):
        taken = np.zeros(3, dtype=int)
        for _ in range(size):
            mass = mix * (taken < left)
            taken[generator.choice(3, p=mass / mass.sum())] += 1
        total += taken
    assert bulk == pytest.approx(total / repeats, abs=0.08)


@pytest.mark.parametrize("alpha", [0, -1.0, math.inf, math.nan, "0.1", True])
@pytest.mark.parametrize("maker", [partition.dirichlet, partition.quantity_skew])
def test_a_bad_alpha_is_refused(maker, alpha):
    with pytest.raises(ConfigError, match=f"{maker.__name__}: alpha={alpha!r}"):
        maker(TEN, 5, alpha)


# Shards


def test_shards_hold_one_label_each_when_they_divide_the_classes():
    made = partition.shards(stream(1, "test").permutation(TEN), 10, shards_per_client=3)  # 30 shards of 20
    assert set(made.sizes) == {60}
    counts = made.label_counts(stream(1, "test").permutation(TEN))
    assert set(np.unique(counts)) <= {0, 20, 40, 60}
    assert counts.sum(axis=0).tolist() == [60] * 10


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4))
def test_shards_lose_no_sample(number, clients, each):
    labels = np.arange(number) % 3
    if clients * each > number:
        with pytest.raises(DataError, match="shards"):
            partition.shards(labels, clients, each)
        return
    made = partition.shards(labels, clients, each)
    assert sorted(made.index) == list(range(number))
    smallest = number // (clients * each)
    assert all(each * smallest <= size <= each * (smallest + 1) for size in made.sizes)


def test_shards_are_runs_of_the_sorted_labels():
    # 7 samples sorted: 2 5 0 3 6 1 4 (labels 0 0 1 1 1 2 2); 3 shards at 7/3 and 14/3: sizes 2, 2, 3
    labels = np.array([1, 2, 0, 1, 2, 0, 1])
    made = partition.shards(labels, 3, shards_per_client=1)
    assert sorted(made.indices(k).tolist() for k in range(3)) == [[0, 3], [1, 4, 6], [2, 5]]


# Label clusters


@pytest.mark.parametrize("sizes", ["2:7", "2:3:4", [4, 6], "1"])
def test_clusters_share_no_class_and_sizes_are_equal(sizes):
    made = partition.label_clusters(TEN, sizes)
    groups = [int(size) for size in (sizes.split(":") if isinstance(sizes, str) else sizes)]
    present = made.label_counts(TEN) > 0
    owned = [part.any(axis=0) for part in np.split(present, np.cumsum(groups)[:-1])]
    assert len(made) == sum(groups)
    assert len(set(made.sizes)) == 1
    assert (np.sum(owned, axis=0) == 1).all()  # every class in exactly one cluster


def test_the_remainder_of_the_classes_goes_to_the_largest_cluster():
    made = partition.label_clusters(TEN, "2:3:4")
    counts = made.label_counts(TEN)
    assert [(counts[a:b].sum(axis=0) > 0).sum() for a, b in ((0, 2), (2, 5), (5, 9))] == [3, 3, 4]
    assert made.sizes[0] == 60  # min(180 // 2, 180 // 3, 240 // 4)


def test_two_classes_a_cluster_as_in_the_paper():
    labels = np.repeat(np.arange(10), 5000)
    made = partition.label_clusters(labels, "2:8", classes_per_cluster=2, samples=1200)
    counts = made.label_counts(labels)
    assert set(made.sizes) == {1200}
    assert [(counts[a:b].sum(axis=0) > 0).sum() for a, b in ((0, 2), (2, 10))] == [2, 2]
    assert counts.max() < 700  # drawn uniformly from two equal classes: 600 +- 17
    chosen = {
        tuple(np.flatnonzero(partition.label_clusters(labels, "2:8", 2, 1200, seed).label_counts(labels)[0]))
        for seed in range(5)
    }
    assert len(chosen) > 1  # which classes is random


@pytest.mark.parametrize("sizes", ["", "2:x", "0:3", [], [2, -1], "2;7"])
def test_bad_cluster_sizes_are_refused(sizes):
    with pytest.raises(ConfigError, match="sizes="):
        partition.label_clusters(TEN, sizes)


def test_clusters_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="3 clusters of 4 classes need 12 classes, the data has 10"):
        partition.label_clusters(TEN, "1:1:1", classes_per_cluster=4)
    with pytest.raises(DataError, match=r"101 samples.*enough for 42"):  # 300 // 7
        partition.label_clusters(TEN, "2:7", samples=101)
    with pytest.raises(DataError, match="enough for 0"):
        partition.label_clusters(np.arange(10), "1:9")


# Label ratios


def test_two_majors_by_hand():
    # 166 samples: quotas 74.7 74.7 4.98 and 1.66 seven times; floors leave 7: the 0.03 label, both majors, four others
    labels = np.repeat(np.arange(10), 1000)
    counts = partition.label_ratios(labels, "two-majors", clients=9, samples=166).label_counts(labels)
    assert counts[0].tolist() == [75, 75, 5, 2, 2, 2, 2, 1, 1, 1]
    assert counts[8].tolist() == [5, 2, 2, 2, 2, 1, 1, 1, 75, 75]
    assert (counts.sum(axis=1) == 166).all()
    majors = [set(np.flatnonzero(row > 50)) for row in counts]
    assert all(len(one & next_one) == 1 for one, next_one in itertools.pairwise(majors))


def test_one_major_by_hand():
    labels = np.repeat(np.arange(10), 1000)
    counts = partition.label_ratios(labels, "one-major", clients=12, samples=100).label_counts(labels)
    assert counts[0].tolist() == [90, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert counts[11].tolist() == [1, 90, 2, 1, 1, 1, 1, 1, 1, 1]


def test_ratios_from_an_array():
    labels = np.repeat([0, 1, 2], 50)
    made = partition.label_ratios(labels, [[0.5, 0.5, 0.0], [0.0, 0.1, 0.9]], samples=50)
    assert made.label_counts(labels).tolist() == [[25, 25, 0], [0, 5, 45]]


def test_without_samples_the_scarcest_label_decides():
    labels = np.repeat([0, 1], [30, 100])
    made = partition.label_ratios(labels, [[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])
    assert made.label_counts(labels).tolist() == [[15, 15], [15, 15], [0, 30]]
    # three clients round 0.5 * 7 up for label 0 (ties to the first): 12 of 11; so 6 each
    uneven = partition.label_ratios(np.repeat([0, 1], [11, 99]), [[0.5, 0.5]] * 3)
    assert uneven.label_counts(np.repeat([0, 1], [11, 99])).tolist() == [[3, 3]] * 3


@pytest.mark.parametrize(
    ("ratios", "clients", "samples", "error", "message"),
    [
        ("two-mayors", 9, 166, ConfigError, 'did you mean "two-majors"'),
        ("two-majors", None, 166, ConfigError, "needs the number of clients"),
        ([0.5, 0.5], None, None, ConfigError, r"shape \(2,\)"),
        ([[0.1] * 10], 3, None, ConfigError, r"give an array \[3, classes\]"),
        ([[0.1] * 10, [0.2] * 10], None, None, ConfigError, "client 1.*sum to 2"),
        ([[-0.1, 0.2] + [0.1] * 8 + [0.1]], None, None, ConfigError, "client 0"),
        ([[math.nan] * 10], None, None, ConfigError, "client 0"),
        ([[0.5, 0.5]], None, None, DataError, "cover 2 classes, the labels go up to 9"),
        ("one-major", 9, 90, DataError, "need label 0 more often than the 60 times"),
        ([[0.0] * 10 + [1.0]], None, None, DataError, "need label 10 more often than the 0 times"),
        ("one-major", 9, 0, ConfigError, "samples=0"),
    ],
)
def test_bad_ratios_are_refused(ratios, clients, samples, error, message):
    with pytest.raises(error, match=message):
        partition.label_ratios(TEN, ratios, clients, samples)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 500))
def test_largest_remainder_sums_exactly_and_stays_within_one(weights, total):
    shares = (np.array(weights) + 1e-3) / (np.array(weights) + 1e-3).sum()
    whole = largest_remainder(shares, total)
    assert whole.sum() == total
    assert (np.abs(whole - shares * total) < 1 + 1e-6).all()


# Sizes and natural clients


def test_iid_deals_every_sample():
    made = partition.iid(TEN, 7)
    assert made.sizes.tolist() == [86, 86, 86, 86, 86, 85, 85]
    assert sorted(made.index) == list(range(600))
    assert made.skew(TEN).distance < 0.2


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([0.001, 0.1, 1.0, 1e300]), st.integers(0, 5))
def test_quantity_skew_gives_everyone_a_sample_and_deals_all(number, clients, alpha, seed):
    clients = min(number, clients)
    made = partition.quantity_skew(np.zeros(number, dtype=int), clients, alpha, seed)
    assert made.sizes.min() >= 1
    assert sorted(made.index) == list(range(number))


def test_quantity_skew_grows_as_alpha_falls_and_leaves_labels_alone():
    labels = np.repeat(np.arange(2), 5000)
    spread = [partition.quantity_skew(labels, 20, alpha).sizes.std() for alpha in (0.05, 1.0, 1000.0)]
    assert spread == sorted(spread, reverse=True)
    assert spread[2] < 50
    largest = partition.quantity_skew(labels, 20, 0.05).label_counts(labels)
    shares = largest[largest.sum(axis=1) > 500]
    assert shares[:, 0] / shares.sum(axis=1) == pytest.approx(0.5, abs=0.1)


def test_natural_is_one_client_per_id_in_sorted_order():
    made = partition.natural(np.array([30, 7, 30, 12, 7, 30]))
    assert [made.indices(k).tolist() for k in range(3)] == [[1, 4], [3], [0, 2, 5]]


def test_natural_keeps_the_largest():
    groups = ["d", "a", "b", "d", "c", "c", "b"]
    made = partition.natural(groups, clients=2)  # b, c, d have two each: the lower ids stay
    assert [made.indices(k).tolist() for k in range(2)] == [[2, 6], [4, 5]]


def test_natural_refuses_what_is_not_there():
    with pytest.raises(DataError, match="clients=5, but the data comes from 2"):
        partition.natural([1, 2, 2], clients=5)
    with pytest.raises(DataError, match="shape"):
        partition.natural(np.zeros((2, 2)))
