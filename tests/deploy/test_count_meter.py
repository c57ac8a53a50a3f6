"""Forgetting from counts is forgetting from examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from fedkeep.deploy.answers import Counts
from fedkeep.deploy.meter import measure_counts, stand_ins
from fedkeep.metrics.forgetting import decompose_by
from fedkeep.metrics.measure import measure


@st.composite
def rounds(draw):
    """Clients with examples, a cohort, and who is right on what."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    clients, classes = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    owners = np.repeat(np.arange(clients), rng.integers(1, 9, clients))
    labels = rng.integers(0, classes, len(owners))
    cohort = sorted(rng.choice(clients, draw(st.integers(1, clients)), replace=False).tolist())

    def bits():
        return rng.random(len(owners)) < 0.6

    return classes, labels, owners, cohort, bits(), {i: bits() for i in cohort}, bits(), draw(st.booleans())


def counted(classes, labels, owners, cohort, before, local, after, everybody, probe):
    """What each client would send."""
    found = {}
    for k in np.unique(owners):
        mine = owners == k

        def by(right, mine=mine):
            return np.bincount(labels[mine & right], minlength=classes)

        patterns = None
        if k in cohort:
            patterns = decompose_by(before[mine], local[k][mine], after[mine], labels[mine], classes).counts
        tried = np.stack([by(local[i]) for i in cohort]) if probe and (everybody or k in cohort) else None
        found[int(k)] = Counts(by(np.ones(len(owners), bool)), by(after), by(before), patterns, tried)
    return found


@given(rounds())
def test_the_same_tables_as_from_single_examples(case):
    classes, labels, owners, cohort, before, local, after, everybody = case
    probed = np.flatnonzero(np.isin(owners, cohort)) if not everybody else np.arange(len(owners))
    wanted = measure(
        3, labels, owners, classes, before, {i: c[probed] for i, c in local.items()}, after, {0: 2.0}, probed
    )
    counts = counted(*case, probe=True)
    got = measure_counts(3, classes, counts, cohort, {0: 2.0}, [k for k in counts if counts[k].models is not None])
    for name in ("clients", "classes", "forgetting"):
        for column, values in getattr(wanted, name).items():
            np.testing.assert_allclose(getattr(got, name)[column], values, rtol=1e-12, err_msg=f"{name}.{column}")
    assert got.summary == pytest.approx(wanted.summary, nan_ok=True)


@given(rounds())
def test_without_probe_what_others_would_know_is_unknown(case):
    classes, _labels, owners, cohort, before, local, after, _ = case
    counts = counted(*case, probe=False)
    got = measure_counts(1, classes, counts, cohort, {})
    assert np.isnan(got.summary["forgetting"]) and np.isnan(got.clients["forgetting_by_model"]).all()
    assert got.forgetting["model"].tolist() == got.forgetting["data"].tolist() == cohort
    for place, k in enumerate(cohort):
        mine = owners == k
        assert got.forgetting["forgetting"][place] == pytest.approx(before[mine].mean() - local[k][mine].mean())
    assert got.summary["right_after"] == sum(after[np.isin(owners, cohort)])


def test_a_client_that_does_not_know_what_was_before_is_left_out():
    known = Counts(np.array([2]), np.array([1]), np.array([2]))
    got = measure_counts(1, 1, {0: known, 1: Counts(np.array([2]), np.array([2]))}, [], {})
    assert got.clients["client"].tolist() == [0]


def test_nobody_answers():
    got = measure_counts(1, 2, {}, [0], {})
    assert len(got.clients["client"]) == 0 and got.classes["judged"].tolist() == [0, 0]


@given(rounds())
def test_stand_ins_have_the_counts(case):
    classes = case[0]
    for found in counted(*case, probe=False).values():
        labels, (before, _, after) = stand_ins(found, classes)
        assert np.bincount(labels, minlength=classes).tolist() == found.judged.tolist()
        assert np.bincount(labels[before], minlength=classes).tolist() == found.before.tolist()
        assert np.bincount(labels[after], minlength=classes).tolist() == found.after.tolist()
