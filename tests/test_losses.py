"""Losses and their gradients against the twins, and the special cases the papers promise."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.errors import ConfigError
from fedkeep.losses import FedLC, FedRS, ce, tce, wsm
from reference import losses as twin

LOSSES = {
    "ce": (ce, lambda f, y, n: twin.ce(f, y), lambda f, y, n: twin.ce_grad(f, y)),
    "tce": (tce, twin.tce, twin.tce_grad),
    "wsm": (wsm, twin.wsm, twin.wsm_grad),
    "fedrs": (FedRS(0.25), lambda f, y, n: twin.fedrs(f, y, n, 0.25), lambda f, y, n: twin.fedrs_grad(f, y, n, 0.25)),
    "fedlc": (FedLC(0.5), lambda f, y, n: twin.fedlc(f, y, n, 0.5), lambda f, y, n: twin.fedlc_grad(f, y, n, 0.5)),
}
TRUNCATING = ["tce", "wsm", "fedlc"]
COUNTS = st.integers(0, 1000)


@st.composite
def batches(draw, least_classes=2, counts=COUNTS):
    """Logits, labels that the client has, and how often it has each."""
    classes = draw(st.integers(least_classes, 6))
    held = draw(st.lists(counts, min_size=classes, max_size=classes).filter(any))
    present = [label for label, count in enumerate(held) if count]
    labels = draw(st.lists(st.sampled_from(present), min_size=1, max_size=5))
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    spread = draw(st.sampled_from([0.0, 1.0, 30.0, 500.0, 1e4]))
    rows = spread * generator.uniform(-1, 1, size=(len(labels), classes))
    return rows, np.array(labels), np.array(held)


def value_and_gradient(loss, logits, labels, counts, dtype=torch.float64):
    leaf = torch.tensor(logits, dtype=dtype, requires_grad=True)
    value = loss(leaf, torch.tensor(labels), torch.tensor(counts))
    (gradient,) = torch.autograd.grad(value, leaf)
    return float(value.detach()), gradient.numpy()


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches())
@settings(deadline=None, max_examples=60)
def test_value_and_gradient_are_the_twins(name, batch):
    loss, twin_value, twin_gradient = LOSSES[name]
    value, gradient = value_and_gradient(loss, *batch)
    # label shares and margins are kept in single precision, hence 1e-6
    assert value == pytest.approx(twin_value(*batch), rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(gradient, twin_gradient(*batch), atol=1e-6)


@pytest.mark.parametrize("name", TRUNCATING)
@given(batch=batches(least_classes=3, counts=st.sampled_from([0, 0, 1, 50])))
@settings(deadline=None, max_examples=60)
def test_absent_classes_get_exactly_zero_gradient(name, batch):
    _, gradient = value_and_gradient(LOSSES[name][0], *batch, dtype=torch.float32)
    assert (gradient[:, batch[2] == 0] == 0.0).all()


@pytest.mark.parametrize("name", TRUNCATING)
@given(batch=batches(), only=st.integers(0, 1))
@settings(deadline=None, max_examples=30)
def test_one_class_has_no_gradient_at_all(name, batch, only):
    logits, labels, counts = batch
    alone = np.where(np.arange(len(counts)) == only, 17, 0)
    value, gradient = value_and_gradient(LOSSES[name][0], logits, np.full_like(labels, only), alone)
    assert (gradient == 0.0).all()
    assert value == pytest.approx(0.0, abs=1e-9)


@given(batch=batches(), count=st.integers(1, 500))
@settings(deadline=None, max_examples=40)
def test_equal_counts_make_wsm_ce_less_a_constant(batch, count):
    logits, labels, counts = batch
    value, gradient = value_and_gradient(wsm, logits, labels, np.full_like(counts, count))
    plain, plain_gradient = value_and_gradient(ce, logits, labels, counts)
    np.testing.assert_allclose(gradient, plain_gradient, atol=1e-9)
    assert value == pytest.approx(plain - log(len(counts)), rel=1e-9, abs=1e-6)


@given(batch=batches(counts=st.integers(1, 1000)))
@settings(deadline=None, max_examples=40)
def test_losses_that_become_ce_when_every_class_is_there(batch):
    plain, plain_gradient = value_and_gradient(ce, *batch)
    for loss in (tce, FedRS(0.3), FedLC(0.0)):
        value, gradient = value_and_gradient(loss, *batch)
        assert value == pytest.approx(plain, rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(gradient, plain_gradient, atol=1e-12)


@given(batch=batches(least_classes=3, counts=st.sampled_from([0, 0, 1, 50])))
@settings(deadline=None, max_examples=40)
def test_neutral_options(batch):
    for loss, neutral in ((FedRS(1.0), ce), (FedLC(0.0), tce)):
        value, gradient = value_and_gradient(loss, *batch)
        expected, expected_gradient = value_and_gradient(neutral, *batch)
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(counts=st.sampled_from([0, 1, 10**7])), size=st.sampled_from([1.0, 1e4, 1e30]))
@settings(deadline=None, max_examples=40)
def test_no_nan_in_single_precision(name, batch, size):
    logits, labels, counts = batch
    value, gradient = value_and_gradient(LOSSES[name][0], logits * size, labels, counts, dtype=torch.float32)
    assert np.isfinite(value) or size == 1e30  # 1e4 * 1e30 is near the largest float
    assert not np.isnan(value) and np.isfinite(gradient).all()


def test_numbers_worked_by_hand():
    logits = np.log([[2.0, 1.0, 5.0]])
    # TCE over the first two classes: log(2 + 1) - log 2
    assert value_and_gradient(tce, logits, [0], [4, 1, 0])[0] == pytest.approx(log(3 / 2))
    # WSM with shares 1/4, 3/4, 0: log(2/4 + 3/4) - log 2, negative
    assert value_and_gradient(wsm, logits, [0], [1, 3, 0])[0] == pytest.approx(log(1.25 / 2), rel=1e-6)
    # CE: log 8 - log 2
    assert value_and_gradient(ce, logits, [0], [1, 3, 0])[0] == pytest.approx(log(4))
    # FedRS, alpha 1/2: log(2 + 1 + sqrt 5) - log 2
    assert value_and_gradient(FedRS(0.5), logits, [0], [1, 3, 0])[0] == pytest.approx(log((3 + 5**0.5) / 2), rel=1e-6)
    # the same for a label the client lacks: log(2 + 1 + sqrt 5) - log sqrt 5
    absent = value_and_gradient(FedRS(0.5), logits, [2], [1, 3, 0])[0]
    assert absent == pytest.approx(log((3 + 5**0.5) / 5**0.5), rel=1e-6)
    # FedLC, tau 1, counts 16 and 1: margins 1/2 and 1
    expected = log(2 * np.exp(-0.5) + np.exp(-1.0)) - log(2) + 0.5
    assert value_and_gradient(FedLC(1.0), logits, [0], [16, 1, 0])[0] == pytest.approx(expected, rel=1e-6)
    # the mean over the batch, not the sum
    assert value_and_gradient(ce, np.repeat(logits, 3, 0), [0, 0, 0], [1, 1, 1])[0] == pytest.approx(log(4))


def test_shares_come_from_the_client_not_from_the_batch():
    logits, labels = np.log([[2.0, 1.0]]), [0]
    few, many = (value_and_gradient(wsm, logits, labels, counts)[0] for counts in ([1, 3], [100, 300]))
    assert few == pytest.approx(many, rel=1e-6)
    assert value_and_gradient(wsm, logits, labels, [3, 1])[0] != pytest.approx(few, rel=1e-3)


@pytest.mark.parametrize("make", [lambda: FedRS(-0.1), lambda: FedRS(1.1), lambda: FedLC(-1.0), lambda: FedLC(np.nan)])
def test_nonsense_is_refused(make):
    with pytest.raises(ConfigError, match="choose it"):
        make()
