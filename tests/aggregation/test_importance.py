"""Importance: weights per element against the twin, and whole rounds with real Fishers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.aggregation import Importance, importance_weights
from fedkeep.bundles import collect
from fedkeep.errors import ConfigError
from fedkeep.local_opt import SGD
from fedkeep.losses import ce
from fedkeep.method import Method, Plan
from fedkeep.rounds import ServerState, check, server_round
from fedkeep.server_opt import ServerSGD
from reference import importance as twin
from toys import Network, Normed, as_numpy, as_tensors, assert_trees, blobs, play, update, whole_batches


def fishers(seed: int, clients: int, zeros: float):
    """Non-negative trees; a share of the elements is zero, some for everyone, some tensors altogether."""
    generator = np.random.default_rng(seed)

    def draw(shape):
        values = generator.exponential(size=shape) * 10.0 ** generator.integers(-6, 3)
        return np.where(generator.random(shape) < zeros, 0.0, values)

    trees = [{"a": draw((3, 2)), "b": draw(4), "c": draw(2)} for _ in range(clients)]
    for tree in trees:
        tree["a"][0] = 0.0
    trees[0]["c"][:] = 0.0
    return trees


@given(seed=st.integers(0, 10**6), clients=st.integers(1, 5), zeros=st.sampled_from([0.0, 0.4, 1.0]))
@settings(deadline=None, max_examples=60)
def test_weights_are_the_twins_and_sum_to_one_in_every_element(seed, clients, zeros):
    trees = fishers(seed, clients, zeros)
    found = importance_weights([as_tensors(tree) for tree in trees])
    for own, expected in zip(found, twin.aggregation_weights(trees), strict=True):
        assert_trees(own, expected)
    for name in trees[0]:
        total = torch.stack([own[name] for own in found]).sum(0)
        np.testing.assert_allclose(total, 1.0, rtol=0, atol=1e-12)


def test_equal_fishers_are_the_uniform_average_and_so_are_zeros():
    same = as_tensors(fishers(1, 1, 0.0)[0])
    for trees in ([same] * 4, [{name: 0 * tensor for name, tensor in same.items()}] * 4):
        for own in importance_weights(trees):
            for tensor in own.values():
                np.testing.assert_allclose(tensor, 0.25, rtol=1e-12)


def test_a_client_scale_does_not_count():
    """The first normalisation is per client and tensor: a client with a hundred times the Fisher weighs the same."""
    one, other = fishers(2, 2, 0.0)
    larger = {name: 100 * array for name, array in one.items()}
    for a, b in zip(
        importance_weights([as_tensors(one), as_tensors(other)]),
        importance_weights([as_tensors(larger), as_tensors(other)]),
        strict=True,
    ):
        assert_trees(a, as_numpy(b))


@given(seed=st.integers(0, 1000), clients=st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_one_aggregation_is_the_twins(seed, clients):
    generator = np.random.default_rng(seed)
    trees = fishers(seed, clients, 0.3)
    start = {name: generator.normal(size=array.shape) for name, array in trees[0].items()}
    models = [{name: generator.normal(size=array.shape) for name, array in start.items()} for _ in trees]
    updates = [
        update(
            k,
            examples=3 * k + 1,
            uploads={"ewc": {"importance": as_tensors(tree)}},
            **{name: (model[name] - start[name]).tolist() for name in start},
        )
        for k, (tree, model) in enumerate(zip(trees, models, strict=True))
    ]
    method = Method(ce, Importance(), ServerSGD())
    new = server_round(method, ServerState(as_tensors(start), {}, {}, {}), collect(method, updates), 9)
    assert_trees(new.params, twin.aggregate(models, trees))


def test_two_real_rounds_are_the_twins():
    clients = [blobs(9, [0, 1], 1), blobs(6, [1, 2], 2), blobs(5, [0, 1, 2], 3)]
    run = play("importance(lam=2.0, gamma=0.6)", Network(), clients, [[0, 1, 2], [0, 2]], whole_batches(0.1, 4))
    received = None
    for number, cohort in enumerate([[0, 1, 2], [0, 2]]):
        models = [as_numpy(run.outcomes[number][k].params) for k in cohort]
        own = [
            twin.blend(twin.fisher(model, clients[k].x.numpy(), clients[k].y.numpy()), received, 0.6)
            for k, model in zip(cohort, models, strict=True)
        ]
        assert_trees(run.states[number + 1].params, twin.aggregate(models, own))
        received = twin.mean_fisher(own)
        assert_trees(run.states[number + 1].slots["ewc"]["importance"], received)


def test_buffers_are_averaged_by_examples():
    clients = [blobs(9, [0, 1], 1), blobs(3, [1, 2], 2)]
    run = play("importance(lam=1.0)", Normed(), clients, [[0, 1]], Plan(SGD(0.1), batch_size=4))
    own = [as_numpy(run.outcomes[0][k].buffers) for k in range(2)]
    expected = twin.buffer_mean(own, [9, 3])
    for name in ("norm.running_mean", "norm.running_var"):
        np.testing.assert_allclose(run.last.buffers[name].numpy(), expected[name])
    assert int(run.last.buffers["norm.num_batches_tracked"]) == round((9 * 3 + 3 * 1) / 12)


def test_it_needs_somebody_to_send_the_fisher():
    method = Method(ce, Importance(), ServerSGD())
    with pytest.raises(ConfigError, match="importance needs clients to upload importance"):
        check(method, Plan(SGD(0.1)))
    with pytest.raises(KeyError, match="client 3 sent no importance; combine with ewc or rwalk"):
        Importance().combine([update(3, w=[1.0])], [1.0])
