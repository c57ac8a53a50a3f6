"""Counting forgettable examples from one bit per example, against the count from two whole models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.errors import ConfigError
from fedkeep.grammar import parse
from fedkeep.local_opt import SGD
from fedkeep.mechanisms import ForgettingEvents
from fedkeep.mechanisms.forgetting_events import pack, unpack
from fedkeep.method import Plan
from fedkeep.tree import nbytes
from reference import fedwavg, losses, mlp
from toys import Network, Normed, as_numpy, assert_trees, blobs, play, whole_batches

CLIENTS = [blobs(23, [0, 1], 1), blobs(17, [1, 2], 2), blobs(9, [2], 3), blobs(12, [0, 1, 2], 4)]
COHORTS = [[0, 1], [0, 2], [1, 2], [0, 1, 2, 3], [0, 1], [2, 3], [0, 3], [0, 1, 2, 3]]


@given(st.lists(st.booleans(), min_size=1, max_size=50))
@settings(deadline=None, max_examples=50)
def test_packing_and_unpacking_is_the_identity(bits):
    correct = np.array(bits)
    packed = pack(correct)
    assert packed.dtype == torch.uint8 and len(packed) == -(-len(bits) // 8)
    np.testing.assert_array_equal(unpack(packed, len(bits)), correct)


def right(module: torch.nn.Module, params, buffers, data) -> list[bool]:
    """Which examples a whole model gets right, in evaluation mode."""
    module.load_state_dict({**params, **buffers})
    module.eval()
    with torch.no_grad():
        return (module(data.x).argmax(1) == data.y).tolist()


@pytest.mark.parametrize("period", [1, 2, 3])
def test_the_count_is_that_of_two_whole_models(period):
    run = play(
        f"fedavg+events(event_period={period})", Normed(), CLIENTS, COHORTS, Plan(SGD(0.3), batch_size=5, epochs=3)
    )
    module, last_model, last_count = Normed(), {}, {}
    counted = []
    for number, cohort in enumerate(COHORTS, start=1):
        state = run.states[number - 1]
        for k in cohort:
            outcome = run.outcomes[number - 1][k]
            if k in last_model and number % period == 0:
                was_right = right(module, *last_model[k], CLIENTS[k])
                is_right = right(module, state.params, state.buffers, CLIENTS[k])
                last_count[k] = fedwavg.forgettable_count(was_right, is_right)
                counted.append(last_count[k])
            numbers = dict(outcome.update.facts.numbers)
            assert numbers == ({"forgettable": last_count[k]} if k in last_count else {})
            last_model[k] = (outcome.params, outcome.buffers)
    assert sum(counted) > 0 and len(set(counted)) > 1  # else this test would see nothing


@pytest.mark.parametrize("period", [1, 2])
def test_fedwavg_with_whole_models_and_with_bits_are_the_same_run(period):
    """The whole of Algorithm 1: counts, weights and global models of every round."""
    alpha, lr, steps = 0.6, 0.2, 6

    def train(model, number, k):
        for _ in range(steps):
            gradient = mlp.gradient(model, CLIENTS[k].x.numpy(), CLIENTS[k].y.numpy(), losses.ce_grad)
            model = {name: model[name] - lr * gradient[name] for name in model}
        return model

    name = f"fedwavg(alpha={alpha}, event_period={period})"
    run = play(name, Network(), CLIENTS, COHORTS, whole_batches(lr, steps))
    data = [(client.x.numpy(), client.y.numpy()) for client in CLIENTS]
    expected = fedwavg.simulate(as_numpy(run.states[0].params), data, mlp.predict, train, COHORTS, alpha, period)
    for number, record in enumerate(expected):
        updates = [run.outcomes[number][k].update for k in COHORTS[number]]
        assert [update.facts.numbers.get("forgettable") for update in updates] == record.counts
        weights = parse(name).aggregate.weights(updates)
        np.testing.assert_allclose(weights, np.array(record.weights) / len(updates))
        assert_trees(run.states[number + 1].params, record.model)
    assert any(len(set(record.weights)) > 1 for record in expected)


def test_a_bit_per_example_is_all_that_is_kept():
    run = play("fedavg+events", Network(), CLIENTS, [[0, 1]] * 2, whole_batches(0.1, 1))
    kept = run.memories[-1][0]["events"]
    assert kept.keys() == {"right", "count"}
    assert nbytes(kept["right"]) == 3  # 23 examples
    assert run.outcomes[0][0].memory["events"].keys() == {"right"}  # no count before there is a last model


def test_training_is_not_touched():
    plan = whole_batches(0.1, 3)
    counting = play("fedavg+events", Network(), CLIENTS, COHORTS, plan)
    plain = play("fedavg", Network(), CLIENTS, COHORTS, plan)
    for name, tensor in plain.last.params.items():
        assert torch.equal(counting.last.params[name], tensor)


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="count every n-th round, n >= 1"):
        ForgettingEvents(0)
