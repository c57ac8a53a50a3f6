"""The only SGD loop: which examples a client sees, in which batches, and how often."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.local.loop import passes, train
from fedkeep.local_opt import SGD
from fedkeep.method import Plan
from fedkeep.rng import stream
from reference import losses, mlp
from toys import Network, Normed, as_numpy, assert_trees, blobs, play

SIZES = st.integers(1, 40)


class Recorder:
    """A step that only writes down which examples it was shown."""

    def __init__(self) -> None:
        self.shown: list[list[int]] = []

    def open(self, state: Any, constants: Any) -> Recorder:
        return self

    def __call__(self, x: torch.Tensor, y: torch.Tensor, size: int) -> None:
        assert torch.equal(x[:, 0], -y)  # inputs and labels stay together
        self.shown += [batch.tolist() for batch in y.split(size)]

    def state(self) -> Any:
        return "the end"


def shown(examples: int, plan: Plan, seed: int = 0, double_single: bool = False) -> list[list[int]]:
    """The examples of each local step, by number."""
    step, y = Recorder(), torch.arange(examples)
    orders = passes(examples, plan, np.random.default_rng(seed))
    end = train(step, None, -y[:, None], y, None, orders, plan.batch_size, double_single)  # type: ignore[arg-type]
    assert end == "the end"
    return step.shown


@given(examples=SIZES, size=st.integers(1, 50), epochs=st.integers(1, 4), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_every_epoch_is_a_permutation_cut_into_batches(examples, size, epochs, seed):
    plan = Plan(SGD(0.1), batch_size=size, epochs=epochs)
    found = shown(examples, plan, seed)
    steps = -(-examples // size)
    assert len(found) == plan.local_steps(examples) == epochs * steps
    for epoch in range(epochs):
        one = found[epoch * steps : (epoch + 1) * steps]
        assert [len(batch) for batch in one[:-1]] == [size] * (steps - 1)
        assert sorted(number for batch in one for number in batch) == list(range(examples))
    for order in passes(examples, plan, np.random.default_rng(seed)):
        assert sorted(order.tolist()) == list(range(examples))


@given(examples=SIZES, size=st.integers(1, 50), steps=st.integers(1, 60))
@settings(deadline=None, max_examples=60)
def test_a_budget_of_steps_is_met_exactly_and_spread_evenly(examples, size, steps):
    plan = Plan(SGD(0.1), batch_size=size, epochs=99, steps=steps)
    found = shown(examples, plan)
    assert len(found) == plan.local_steps(examples) == steps
    seen = np.bincount(np.concatenate(found), minlength=examples)
    assert seen.max() - seen.min() <= 1  # whole passes before anything comes again


def test_a_budget_of_steps_begins_like_whole_epochs():
    """Steps and epochs are the same training, cut at another place."""
    epochs = shown(11, Plan(SGD(0.1), batch_size=4, epochs=3), seed=2)
    for steps in range(1, 10):
        assert shown(11, Plan(SGD(0.1), batch_size=4, steps=steps), seed=2) == epochs[:steps]


def test_epochs_differ_and_streams_decide():
    plan = Plan(SGD(0.1), batch_size=20, epochs=2)
    first, second = shown(20, plan)
    assert first != second
    assert shown(20, plan) == [first, second]
    assert shown(20, plan, seed=1)[0] != first


def test_a_client_smaller_than_a_batch_takes_whole_batch_steps():
    data = blobs(3, [0, 1, 2])
    run = play("fedavg", Network(), [data], [[0]], Plan(SGD(0.2), batch_size=64, epochs=4))
    w = as_numpy(run.states[0].params)
    for _ in range(4):
        gradient = mlp.gradient(w, data.x.numpy(), data.y.numpy(), losses.ce_grad)
        w = {name: w[name] - 0.2 * gradient[name] for name in w}
    assert_trees(run.last.params, w)


def test_mini_batches_are_the_numpy_steps():
    data = blobs(7, [0, 1, 2])
    plan = Plan(SGD(0.2, momentum=0.5), batch_size=3, epochs=2)
    run = play("fedavg", Network(), [data], [[0]], plan, seed=4)
    # the stream of the client gives torch's seed first, then the order of each epoch
    rng = stream(4, "client", 1, 0)
    rng.integers(2**63)
    w = as_numpy(run.states[0].params)
    velocity = {name: np.zeros(w[name].shape) for name in w}
    for _ in range(2):
        order = rng.permutation(7)
        for rows in (order[:3], order[3:6], order[6:]):
            gradient = mlp.gradient(w, data.x.numpy()[rows], data.y.numpy()[rows], losses.ce_grad)
            velocity = {name: 0.5 * velocity[name] + gradient[name] for name in w}
            w = {name: w[name] - 0.2 * velocity[name] for name in w}
    assert_trees(run.last.params, w)


@pytest.mark.parametrize("examples", [1, 4])
def test_a_batch_of_one_trains_with_batch_norm(examples):
    """Four examples in batches of three leave one over; alone it would stop batch norm."""
    data = blobs(examples, [0, 1, 2])
    run = play("fedavg", Normed(), [data], [[0]] * 2, Plan(SGD(0.1), batch_size=3))
    assert int(run.last.buffers["norm.num_batches_tracked"]) == 2 * -(-examples // 3)
    assert run.outcomes[-1][0].update.facts.finite
    if examples == 1:  # the one example is its own mean, and momentum is 0.1
        w = as_numpy(run.states[0].params)
        entering = w["hidden.weight"] @ data.x[0].numpy() + w["hidden.bias"]
        np.testing.assert_allclose(run.states[1].buffers["norm.running_mean"].numpy(), 0.1 * entering)


def test_only_a_single_example_is_doubled_and_only_where_it_must_be():
    plan = Plan(SGD(0.1), batch_size=3)
    assert [len(batch) for batch in shown(4, plan)] == [3, 1]
    found = shown(4, plan, double_single=True)
    assert [len(batch) for batch in found] == [3, 2] and found[1][0] == found[1][1]
    assert [len(batch) for batch in shown(5, plan, double_single=True)] == [3, 2]
