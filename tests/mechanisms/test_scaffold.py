"""SCAFFOLD: on clients that disagree it reaches what FedAvg cannot, and every number is the twin's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from fedkeep.aggregation import WeightedMean
from fedkeep.local_opt import SGD, Adam
from fedkeep.mechanisms import Scaffold
from fedkeep.method import Method, Plan
from fedkeep.server_opt import ServerSGD
from reference import fedavg, scaffold
from toys import Bowl, HalfSquare, Normed, assert_same_bits, assert_trees, blobs, bowl, play

START = [10.0, -3.0]
CURVATURES = np.array([[1.0, 2.0], [3.0, 0.5], [0.5, 4.0], [2.0, 1.0]])
CENTRES = np.array([[4.0, -2.0], [-1.0, 1.0], [2.0, 3.0], [0.0, 5.0]])
STEPS = [5, 3, 4, 6]  # examples, and with batches of one also local steps
LR = 0.1
PLAN = Plan(SGD(LR), batch_size=1)
STATIONARY = (CURVATURES * CENTRES).sum(0) / CURVATURES.sum(0)  # where the mean of all clients' gradients is zero


def clients():
    return [bowl(h, m, n) for h, m, n in zip(CURVATURES.tolist(), CENTRES.tolist(), STEPS, strict=True)]


def gradients():
    return [lambda w, batch, h=h, m=m: {"w": h * (w["w"] - m)} for h, m in zip(CURVATURES, CENTRES, strict=True)]


def halves(rounds: int):
    """Two of the four clients a round, at random."""
    generator = np.random.default_rng(3)
    return [sorted(generator.choice(4, size=2, replace=False).tolist()) for _ in range(rounds)]


def method(server_lr: float = 1.0, *mechanisms) -> Method:
    return Method(HalfSquare(), WeightedMean("uniform"), ServerSGD(server_lr), mechanisms)


def test_half_the_clients_a_round_reach_the_stationary_point_of_all():
    run = play(method(1.0, Scaffold()), Bowl(*START), clients(), halves(80), PLAN)
    np.testing.assert_allclose(run.last.params["w"].numpy(), STATIONARY, atol=1e-9)
    np.testing.assert_allclose(run.last.slots["scaffold"]["c"]["w"].numpy(), 0.0, atol=1e-9)
    # at the end each client's variate is its own gradient there
    for k in range(4):
        own = CURVATURES[k] * (STATIONARY - CENTRES[k])
        np.testing.assert_allclose(run.memories[-1][k]["scaffold"]["c"]["w"].numpy(), own, atol=1e-8)


def test_fedavg_does_not():
    everybody = play(method(), Bowl(*START), clients(), [[0, 1, 2, 3]] * 40, PLAN)
    # its fixed point weighs client k by 1 - (1 - lr h)^steps
    pull = 1 - (1 - LR * CURVATURES) ** np.array(STEPS)[:, None]
    np.testing.assert_allclose(everybody.last.params["w"].numpy(), (pull * CENTRES).sum(0) / pull.sum(0), atol=1e-6)
    assert np.abs(everybody.last.params["w"].numpy() - STATIONARY).max() > 0.1
    half = play(method(), Bowl(*START), clients(), halves(60), PLAN)
    distances = [np.abs(state.params["w"].numpy() - STATIONARY).max() for state in half.states[-40:]]
    assert np.mean(distances) > 0.3


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_models_and_control_variates_are_the_twins_in_every_round(server_lr):
    cohorts = [*halves(12), [0, 1, 2, 3], [2]]
    run = play(method(server_lr, Scaffold()), Bowl(*START), clients(), cohorts, PLAN)
    expected = scaffold.simulate({"w": np.array(START)}, gradients(), cohorts, STEPS, LR, server_lr)
    for t, state in enumerate(run.states):
        assert_trees(state.params, expected.models[t])
        assert_trees(state.slots["scaffold"]["c"], expected.server_controls[t])
        for k in range(4):
            kept = run.memories[t].get(k)
            if kept is None:  # never sampled so far: still zero in the paper's books
                np.testing.assert_array_equal(expected.client_controls[t][k]["w"], 0.0)
            else:
                assert_trees(kept["scaffold"]["c"], expected.client_controls[t][k])


def test_the_mean_of_the_clients_variates_is_the_servers_after_every_round():
    run = play(method(1.0, Scaffold()), Bowl(*START), clients(), halves(20), PLAN)
    for state, memories in zip(run.states, run.memories, strict=True):
        total = sum((memory["scaffold"]["c"]["w"] for memory in memories.values()), torch.zeros(2, dtype=torch.float64))
        np.testing.assert_allclose(total / 4, state.slots["scaffold"]["c"]["w"], rtol=0, atol=1e-12)


def test_variates_start_at_zero_whatever_the_weights_and_the_first_round_is_fedavg():
    run = play(method(1.0, Scaffold()), Bowl(*START), clients(), [[0, 1, 2, 3]], PLAN)
    assert torch.equal(run.states[0].slots["scaffold"]["c"]["w"], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(Scaffold().client_init(run.states[0].params)["c"]["w"], torch.zeros(2, dtype=torch.float64))
    plain = play(method(), Bowl(*START), clients(), [[0, 1, 2, 3]], PLAN)
    assert_same_bits(run.last.params, plain.last.params)
    twin = fedavg.simulate({"w": np.array(START)}, gradients(), [[0, 1, 2, 3]], STEPS, LR)
    assert_trees(run.last.params, twin[-1])


def test_control_variates_never_touch_buffers_or_frozen_layers():
    data = [blobs(7, [0, 1], 1), blobs(5, [1, 2], 2)]
    run = play("scaffold", Normed(), data, [[0, 1]] * 3, Plan(SGD(0.1), batch_size=3), frozen=["classifier"])
    trained = {"hidden.weight", "hidden.bias", "norm.weight", "norm.bias"}
    assert run.last.params.keys() == trained
    assert run.last.slots["scaffold"]["c"].keys() == trained
    for outcome in run.outcomes[-1].values():
        assert outcome.update.uploads["scaffold"]["dc"].keys() == trained
        assert outcome.memory["scaffold"]["c"].keys() == trained
    assert set(run.last.buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_the_variate_is_divided_by_the_steps_that_were_taken():
    # one client, lr 0.1, three steps on w/2 * w^2 from 1: 1 -> 0.9 -> 0.81 -> 0.729, c_k = 0.271 / 0.3
    run = play(method(1.0, Scaffold()), Bowl(1.0), [bowl([1.0], [0.0], 3)], [[0]], Plan(SGD(0.1), batch_size=1))
    assert float(run.memories[-1][0]["scaffold"]["c"]["w"]) == pytest.approx(0.271 / 0.3)


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), SGD(0.1, weight_decay=0.1), Adam(0.1)])
def test_a_warning_where_the_paper_does_not_reach(optimizer):
    with pytest.warns(UserWarning, match="scaffold is derived for plain SGD"):
        Scaffold().check(Plan(optimizer))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scaffold().check(Plan(SGD(0.1)))
