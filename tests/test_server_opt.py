"""Server optimisers against the twins of Reddi et al. 2020."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.errors import ConfigError
from fedkeep.grammar import SERVER
from fedkeep.server_opt import ServerAdagrad, ServerAdam, ServerMomentum, ServerSGD, ServerYogi
from reference import server_optimizers as twin
from toys import as_numpy, as_tensors, assert_trees


def start_and_deltas(seed: int, rounds: int = 5):
    generator = np.random.default_rng(seed)

    def draw(size):
        return {"a": size * generator.normal(size=(2, 2)), "b": size * generator.normal(size=3)}

    return draw(1.0), [draw(size) for size in generator.choice([0.0, 0.01, 1.0, 3.0], rounds)]


def trajectory(optimizer, w, deltas):
    w = as_tensors(w)
    state = optimizer.init(w)
    found = [w]
    for delta in map(as_tensors, deltas):
        before = as_numpy(w)
        new, state = optimizer.step(w, delta, state)
        assert_trees(w, before, rtol=0, atol=0)
        w = new
        found.append(w)
    return found


PAIRS = {
    "sgd": lambda lr, tau, b1, b2: (ServerSGD(lr), lambda w, d: twin.sgd(w, d, lr)),
    "momentum": lambda lr, tau, b1, b2: (ServerMomentum(lr, b1), lambda w, d: twin.fedavgm(w, d, lr, b1)),
    "adam": lambda lr, tau, b1, b2: (ServerAdam(lr, b1, b2, tau), lambda w, d: twin.fedadam(w, d, lr, tau, b1, b2)),
    "yogi": lambda lr, tau, b1, b2: (ServerYogi(lr, b1, b2, tau), lambda w, d: twin.fedyogi(w, d, lr, tau, b1, b2)),
    "adagrad": lambda lr, tau, b1, b2: (ServerAdagrad(lr, b1, tau), lambda w, d: twin.fedadagrad(w, d, lr, tau, b1)),
}


@pytest.mark.parametrize("name", PAIRS)
@given(
    seed=st.integers(0, 1000),
    lr=st.floats(1e-3, 2.0),
    tau=st.sampled_from([1e-3, 0.1]),
    beta1=st.sampled_from([0.0, 0.9]),
    beta2=st.sampled_from([0.0, 0.5, 0.99]),
)
@settings(deadline=None, max_examples=25)
def test_the_whole_trajectory_is_the_twins(name, seed, lr, tau, beta1, beta2):
    optimizer, expected = PAIRS[name](lr, tau, beta1, beta2)
    w, deltas = start_and_deltas(seed)
    for found, model in zip(trajectory(optimizer, w, deltas), expected(w, deltas), strict=True):
        assert_trees(found, model)


def test_every_server_optimizer_has_a_twin():
    assert PAIRS.keys() == SERVER.keys()


def test_rate_one_is_plain_averaging_and_no_momentum_is_sgd():
    w, deltas = start_and_deltas(1)
    averaged = {name: w[name] + sum(delta[name] for delta in deltas) for name in w}
    assert_trees(trajectory(ServerSGD(), w, deltas)[-1], averaged)
    assert_trees(trajectory(ServerMomentum(beta=0.0), w, deltas)[-1], averaged)


def test_momentum_is_torchs():
    w, deltas = start_and_deltas(2)
    leaves = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in as_tensors(w).items()}
    theirs = torch.optim.SGD(leaves.values(), 0.3, momentum=0.8)
    for found, delta in zip(trajectory(ServerMomentum(0.3, 0.8), w, deltas)[1:], deltas, strict=True):
        for name, leaf in leaves.items():
            leaf.grad = -torch.from_numpy(delta[name])
        theirs.step()
        assert_trees(found, as_numpy(leaves))


def test_first_steps_by_hand():
    w, delta = {"w": torch.zeros(1, dtype=torch.float64)}, {"w": torch.tensor([0.5], dtype=torch.float64)}
    # m = 0.1 * 0.5; v = 0.99 * 0.01 + 0.01 * 0.25 = 0.0124
    new, _ = ServerAdam(1.0, tau=0.1).step(w, delta, ServerAdam(1.0, tau=0.1).init(w))
    assert float(new["w"]) == pytest.approx(0.05 / (0.0124**0.5 + 0.1))
    # v = 0.01 + 0.25, m = 0.5
    new, _ = ServerAdagrad(1.0, tau=0.1).step(w, delta, ServerAdagrad(1.0, tau=0.1).init(w))
    assert float(new["w"]) == pytest.approx(0.5 / (0.26**0.5 + 0.1))
    # v = 0.01 < 0.25, so v grows: 0.01 + 0.01 * 0.25
    new, _ = ServerYogi(1.0, tau=0.1).step(w, delta, ServerYogi(1.0, tau=0.1).init(w))
    assert float(new["w"]) == pytest.approx(0.05 / (0.0125**0.5 + 0.1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ServerSGD(0.0),
        lambda: ServerMomentum(beta=1.0),
        lambda: ServerAdam(-1.0),
        lambda: ServerAdam(0.1, tau=0.0),
        lambda: ServerYogi(0.1, beta2=1.0),
        lambda: ServerAdagrad(0.1, beta1=-0.1),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ConfigError, match="must be"):
        make()
