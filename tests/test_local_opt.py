"""Local optimisers against the twins and against torch.optim; FedNova's effort against its closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.errors import ConfigError
from fedkeep.local_opt import SGD, Adam
from reference import fednova, local_sgd
from toys import as_numpy, as_tensors, assert_trees

OPTIMIZERS = [
    SGD(0.1),
    SGD(0.1, momentum=0.9),
    SGD(0.05, weight_decay=0.2),
    SGD(0.05, momentum=0.5, weight_decay=0.2),
    Adam(0.1),
    Adam(0.01, weight_decay=0.3),
    Adam(0.02, beta1=0.5, beta2=0.6, eps=0.1),
]


def start_and_gradients(seed: int, steps: int = 6):
    generator = np.random.default_rng(seed)

    def draw():
        return {"a": generator.normal(size=(2, 3)), "b": generator.normal(size=2)}

    return draw(), [draw() for _ in range(steps)]


def path(optimizer, w, gradients):
    """All models along the steps, and the inputs untouched."""
    w, found = as_tensors(w), []
    state = optimizer.init(w)
    for gradient in map(as_tensors, gradients):
        before, given = as_numpy(w), as_numpy(gradient)
        new, state = optimizer.step(w, gradient, state)
        assert_trees(w, before, rtol=0, atol=0)
        assert_trees(gradient, given, rtol=0, atol=0)
        w = new
        found.append(w)
    return found


@given(
    seed=st.integers(0, 1000),
    lr=st.floats(1e-3, 1.0),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    decay=st.sampled_from([0.0, 1e-4, 0.5]),
)
@settings(deadline=None, max_examples=30)
def test_sgd_is_the_twin(seed, lr, momentum, decay):
    w, gradients = start_and_gradients(seed)
    expected = local_sgd.train_sgd(w, lambda w, g: g, gradients, lr, momentum, decay)[1:]
    for found, model in zip(path(SGD(lr, momentum, decay), w, gradients), expected, strict=True):
        assert_trees(found, model)


@given(
    seed=st.integers(0, 1000),
    lr=st.floats(1e-3, 1.0),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.0)]),
    eps=st.sampled_from([1e-8, 0.1]),
    decay=st.sampled_from([0.0, 0.5]),
)
@settings(deadline=None, max_examples=30)
def test_adam_is_the_twin(seed, lr, betas, eps, decay):
    w, gradients = start_and_gradients(seed)
    expected = local_sgd.train_adam(w, lambda w, g: g, gradients, lr, *betas, eps, decay)[1:]
    for found, model in zip(path(Adam(lr, *betas, eps, decay), w, gradients), expected, strict=True):
        assert_trees(found, model, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.term())
def test_the_same_steps_as_torch(optimizer):
    w, gradients = start_and_gradients(seed=3)
    leaves = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in as_tensors(w).items()}
    if isinstance(optimizer, SGD):
        theirs = torch.optim.SGD(leaves.values(), optimizer.lr, optimizer.momentum, weight_decay=optimizer.weight_decay)
    else:
        betas = (optimizer.beta1, optimizer.beta2)
        theirs = torch.optim.Adam(leaves.values(), optimizer.lr, betas, optimizer.eps, optimizer.weight_decay)
    for found, gradient in zip(path(optimizer, w, gradients), gradients, strict=True):
        for name, leaf in leaves.items():
            leaf.grad = torch.from_numpy(gradient[name])
        theirs.step()
        assert_trees(found, as_numpy(leaves), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.term())
def test_names_and_types_are_kept(optimizer):
    w = {"x": torch.ones(2, dtype=torch.float32), "y": torch.ones((), dtype=torch.float64)}
    new, _ = optimizer.step(w, w, optimizer.init(w))
    assert {name: (t.dtype, t.shape) for name, t in new.items()} == {n: (t.dtype, t.shape) for n, t in w.items()}


def test_effort_literals():
    assert SGD(0.1).effort(7, 0.0) == 7.0
    assert SGD(0.1, momentum=0.5).effort(2, 0.0) == 2.5  # 1 + (1 + 0.5)
    assert SGD(0.1).effort(3, 1.0) == pytest.approx(2.71)  # 1 + 0.9 + 0.81
    assert Adam(0.1).effort(7, 0.0) == 7.0


@given(
    steps=st.integers(1, 30),
    lr=st.floats(1e-3, 0.5),
    momentum=st.sampled_from([0.0, 0.3, 0.9]),
    mu=st.sampled_from([0.0, 0.01, 1.0, 3.0]),
)
@settings(deadline=None, max_examples=60)
def test_effort_is_the_norm_of_fednovas_vector(steps, lr, momentum, mu):
    found = SGD(lr, momentum).effort(steps, mu)
    assert found == pytest.approx(sum(fednova.vector_unrolled(steps, momentum, lr, mu)), rel=1e-9)
    if not mu:
        assert found == pytest.approx(fednova.norm_momentum(steps, momentum), rel=1e-9)
    if not momentum:
        assert found == pytest.approx(fednova.norm_proximal(steps, lr, mu), rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_effort_is_how_far_a_unit_gradient_moves_the_weights(momentum, mu):
    optimizer, lr, steps = SGD(0.1, momentum), 0.1, 9
    w = {"w": torch.zeros((), dtype=torch.float64)}
    state = optimizer.init(w)
    for _ in range(steps):
        w, state = optimizer.step(w, {"w": 1.0 + mu * w["w"]}, state)
    assert optimizer.effort(steps, mu) == pytest.approx(-float(w["w"]) / lr, rel=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(0.0),
        lambda: SGD(float("nan")),
        lambda: SGD(0.1, momentum=1.0),
        lambda: SGD(0.1, momentum=-0.1),
        lambda: SGD(0.1, weight_decay=-1.0),
        lambda: Adam(-0.1),
        lambda: Adam(0.1, beta1=1.0),
        lambda: SGD(float("inf")),
        lambda: Adam(0.1, beta2=-0.5),
        lambda: Adam(0.1, weight_decay=-1.0),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ConfigError, match="must be"):
        make()
