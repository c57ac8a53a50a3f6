"""EWC: its correction is the derivative of its penalty, and a real run is what the twins compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.errors import ConfigError
from fedkeep.local_opt import SGD
from fedkeep.mechanisms import EWC
from fedkeep.method import LocalContext, Plan, StepContext
from reference import importance as twin
from reference import losses, mlp
from reference.losses import numeric_gradient
from toys import Network, as_numpy, as_tensors, assert_trees, blobs, play, whole_batches

LR = 0.1
SHAPES = {"weight": (2, 3), "bias": (3,)}


def draw(seed: int, positive: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    tree = {name: generator.normal(size=shape) for name, shape in SHAPES.items()}
    return {name: np.maximum(array, 0.0) for name, array in tree.items()} if positive else tree


def corrected(mechanism: EWC, w, start, fisher, lr: float):
    """The correction as local training sees it."""
    slots = {} if fisher is None else {"importance": as_tensors(fisher)}
    constants = mechanism.prepare(LocalContext(as_tensors(start), slots, {}, 5, 3, lr, 2))
    return mechanism.correction(as_tensors(w), StepContext(as_tensors(start), constants, lr))


def test_explicit_correction_is_the_numeric_derivative_of_the_penalty():
    w, start, fisher, lam = draw(1), draw(2), draw(3, positive=True), 0.8
    found = corrected(EWC(lam, explicit=True), w, start, fisher, LR)
    assert found is not None
    for name in w:
        numeric = numeric_gradient(
            lambda x, name=name: twin.ewc_penalty({**w, name: x}, start, fisher, lam), w[name], 1e-4
        )
        np.testing.assert_allclose(found[name].numpy(), numeric, rtol=1e-7, atol=1e-9)


@given(seed=st.integers(0, 100), lam=st.floats(1e-3, 1e6), lr=st.floats(1e-4, 1.0))
@settings(deadline=None, max_examples=30)
def test_semi_implicit_correction_is_the_twins_and_never_overshoots(seed, lam, lr):
    w, start, fisher = draw(seed), draw(seed + 1), draw(seed + 2, positive=True)
    found = corrected(EWC(lam), w, start, fisher, lr)
    assert_trees(found, twin.ewc_semi_implicit_correction(w, start, fisher, lam, lr))
    for name in w:
        # a step lands where the implicit step does: (w - start) / (1 + lr lam F) from the start
        landed = w[name] - lr * found[name].numpy()
        implicit = start[name] + (w[name] - start[name]) / (1 + lr * lam * fisher[name])
        np.testing.assert_allclose(landed, implicit, rtol=1e-8, atol=1e-9)


def test_semi_implicit_becomes_explicit_as_the_learning_rate_shrinks():
    w, start, fisher = draw(1), draw(2), draw(3, positive=True)
    plain = twin.ewc_explicit_gradient(w, start, fisher, 50.0)
    errors = []
    for lr in (1e-4, 1e-6, 1e-8):
        found = corrected(EWC(50.0), w, start, fisher, lr)
        errors.append(max(np.abs(found[name].numpy() - plain[name]).max() for name in w))
    assert errors[0] > 50 * errors[1] > 50 * 50 * errors[2]
    assert errors[2] < 1e-3


@pytest.mark.parametrize(("lam", "stable"), [(199.9, True), (200.0, False), (1e5, False)])
def test_explicit_refuses_where_it_would_diverge(lam, stable):
    fisher = {"weight": np.full((2, 3), 0.01), "bias": np.array([0.0, 0.1, 0.05])}
    assert twin.ewc_explicit_is_stable(fisher, lam, LR) == stable
    if stable:
        corrected(EWC(lam, explicit=True), draw(1), draw(2), fisher, LR)
    else:
        with pytest.raises(ConfigError, match=r"lr\*lam\*max\(F\) = .* >= 2.*lower lam or lr"):
            corrected(EWC(lam, explicit=True), draw(1), draw(2), fisher, LR)
    corrected(EWC(lam), draw(1), draw(2), fisher, LR)


def test_explicit_is_unstable_exactly_where_it_is_refused():
    # the penalty alone on one weight: w - lr lam F w, which shrinks below 2 and does not from 2 on
    for strength, shrinks in ((1.99, True), (2.0, False)):
        w = 1.0
        for _ in range(50):
            w -= strength * w
        assert (abs(w) < 1) == shrinks


def test_no_penalty_in_the_first_round_or_without_strength():
    assert corrected(EWC(10.0), draw(1), draw(2), None, LR) is None
    assert corrected(EWC(0.0), draw(1), draw(2), draw(3, positive=True), LR) is None
    assert EWC(10.0).server_init(as_tensors(draw(1))) == {}


def test_two_real_rounds_are_the_twins():
    """Local steps with the penalty, the Fisher at the new weights, Eq. (4)'s memory, Eq. (2)'s mean."""
    lam, gamma, steps = 5.0, 0.7, 4
    clients = [blobs(9, [0, 1], 1), blobs(6, [1, 2], 2), blobs(4, [0, 1, 2], 3)]
    run = play(f"fedavg+ewc(lam={lam}, gamma={gamma})", Network(), clients, [[0, 1], [1, 2]], whole_batches(LR, steps))
    received = None
    for number, cohort in enumerate([[0, 1], [1, 2]]):
        start = as_numpy(run.states[number].params)
        fishers = []
        for k in cohort:
            x, y = clients[k].x.numpy(), clients[k].y.numpy()
            w = start
            for _ in range(steps):
                gradient = mlp.gradient(w, x, y, losses.ce_grad)
                pull = {name: np.zeros(w[name].shape) for name in w}
                if received is not None:
                    pull = twin.ewc_semi_implicit_correction(w, start, received, lam, LR)
                w = {name: w[name] - LR * (gradient[name] + pull[name]) for name in w}
            outcome = run.outcomes[number][k]
            assert_trees(outcome.params, w)
            fishers.append(twin.blend(twin.fisher(w, x, y), received, gamma))
            assert_trees(outcome.update.uploads["ewc"]["importance"], fishers[-1])
        received = twin.mean_fisher(fishers)
        assert_trees(run.states[number + 1].slots["ewc"]["importance"], received)


def test_the_penalty_holds_what_matters():
    """A stronger lam keeps the clients' models nearer to the global one."""
    clients = [blobs(9, [0, 1], 1), blobs(6, [1, 2], 2)]
    moved = []
    for lam in (0.0, 1.0, 100.0):
        run = play(f"fedavg+ewc(lam={lam})", Network(), clients, [[0, 1]] * 2, whole_batches(LR, 20))
        delta = run.outcomes[1][0].update.delta
        moved.append(sum(float(tensor.square().sum()) for tensor in delta.values()))
    assert moved[0] > moved[1] > moved[2]


@pytest.mark.parametrize(
    "options", [{"lam": -1.0}, {"lam": float("nan")}, {"lam": 1.0, "gamma": 1.0}, {"lam": 1.0, "gamma": -0.1}]
)
def test_nonsense_is_refused(options):
    with pytest.raises(ConfigError, match="choose it"):
        EWC(**options)


def test_ewc_keeps_nothing_on_the_client_and_checks_no_plan():
    EWC(1e5).check(Plan(SGD(0.01)))
    run = play("fedavg+ewc(lam=1.0)", Network(), [blobs(5, [0, 1])], [[0]], whole_batches(LR, 1))
    assert run.memories[-1][0] == {"ewc": {}}
    assert not torch.equal(run.last.slots["ewc"]["importance"]["output.bias"], torch.zeros(3))
