"""FedNova: equal step counts make it FedAvg, unequal ones no longer bias it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.aggregation import FedNova, WeightedMean
from fedkeep.bundles import collect
from fedkeep.local_opt import SGD, Adam
from fedkeep.mechanisms import Proximal
from fedkeep.method import Method, Plan
from fedkeep.rounds import ServerState, server_round
from fedkeep.server_opt import ServerSGD
from reference import fednova
from toys import Bowl, HalfSquare, Slope, Sum, as_numpy, as_tensors, assert_trees, bowl, constant, play, update

EXAMPLES = [2, 10, 5]  # with batches of one also the local steps
CENTRES = np.array([4.0, -3.0, 1.0])
SHARES = np.array(EXAMPLES) / sum(EXAMPLES)


def method(aggregator, loss, *mechanisms) -> Method:
    return Method(loss, aggregator, ServerSGD(), mechanisms)


@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.1, momentum=0.9)])
@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_every_round_is_the_twins(optimizer, mu):
    clients = [bowl([1.0], [m], n) for m, n in zip(CENTRES, EXAMPLES, strict=True)]
    cohorts = [[0, 1, 2], [0, 1], [1, 2], [2]]
    run = play(
        method(FedNova(), HalfSquare(), Proximal(mu)), Bowl(9.0), clients, cohorts, Plan(optimizer, batch_size=1)
    )
    for number, cohort in enumerate(cohorts):
        models = [as_numpy(run.outcomes[number][k].params) for k in cohort]
        norms = [sum(fednova.vector_unrolled(EXAMPLES[k], optimizer.momentum, 0.1, mu)) for k in cohort]
        shares = [EXAMPLES[k] / sum(EXAMPLES[j] for j in cohort) for k in cohort]
        expected = fednova.aggregate(as_numpy(run.states[number].params), models, shares, norms)
        assert_trees(run.states[number + 1].params, expected)


@given(seed=st.integers(0, 1000), clients=st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_one_aggregation_is_the_twins_whatever_examples_and_steps(seed, clients):
    generator = np.random.default_rng(seed)
    examples, norms = generator.integers(1, 99, clients), generator.uniform(0.5, 30, clients)
    start = {"a": generator.normal(size=3)}
    models = [{"a": generator.normal(size=3)} for _ in range(clients)]
    updates = [
        update(k, int(n), float(norm), a=(model["a"] - start["a"]).tolist())
        for k, (n, norm, model) in enumerate(zip(examples, norms, models, strict=True))
    ]
    spec = method(FedNova(), Sum())
    new = server_round(spec, ServerState(as_tensors(start), {}, {}, {}), collect(spec, updates), 9)
    assert_trees(new.params, fednova.aggregate(start, models, (examples / examples.sum()).tolist(), norms.tolist()))


def test_equal_step_counts_make_it_fedavg():
    clients = [bowl([h], [m], n) for h, m, n in zip([1.0, 3.0, 0.5], CENTRES, EXAMPLES, strict=True)]
    plan = Plan(SGD(0.1, momentum=0.5), batch_size=1, steps=4)
    nova = play(method(FedNova(), HalfSquare()), Bowl(9.0), clients, [[0, 1, 2], [0, 2]], plan)
    plain = play(method(WeightedMean(), HalfSquare()), Bowl(9.0), clients, [[0, 1, 2], [0, 2]], plan)
    for a, b in zip(nova.states, plain.states, strict=True):
        np.testing.assert_allclose(a.params["w"], b.params["w"], rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_constant_gradients_are_averaged_without_any_bias(momentum):
    """With constant gradients FedNova moves exactly along the global gradient; FedAvg along one biased by the steps."""
    slopes = np.array([1.0, -2.0, 0.5])
    clients = [constant(torch.tensor([g], dtype=torch.float64), n) for g, n in zip(slopes, EXAMPLES, strict=True)]
    plan = Plan(SGD(0.1, momentum=momentum), batch_size=1)
    run = play(method(FedNova(), Sum()), Slope(0.0), clients, [[0, 1, 2]], plan)
    norms = np.array([fednova.norm_momentum(n, momentum) for n in EXAMPLES])
    tau_eff = float(SHARES @ norms)
    assert float(run.last.params["w"]) == pytest.approx(-0.1 * tau_eff * float(SHARES @ slopes))
    plain = play(method(WeightedMean(), Sum()), Slope(0.0), clients, [[0, 1, 2]], plan)
    assert float(plain.last.params["w"]) == pytest.approx(-0.1 * float(SHARES @ (norms * slopes)))
    assert float(plain.last.params["w"]) != pytest.approx(float(run.last.params["w"]), rel=0.1)


def test_the_fixed_point_on_quadratics():
    """With curvature 1 client k ends at centre + (1 - lr)^steps (w - centre); both fixed points are closed forms."""
    lr = 0.02
    clients = [bowl([1.0], [m], n) for m, n in zip(CENTRES, EXAMPLES, strict=True)]
    plan = Plan(SGD(lr), batch_size=1)
    pulled = 1 - (1 - lr) ** np.array(EXAMPLES)
    fixed = {}
    for aggregator, weight in ((FedNova(), SHARES * pulled / EXAMPLES), (WeightedMean(), SHARES * pulled)):
        point = fixed[aggregator.name] = float(weight @ CENTRES / weight.sum())
        still = play(method(aggregator, HalfSquare()), Bowl(point), clients, [[0, 1, 2]] * 2, plan)
        assert float(still.last.params["w"]) == pytest.approx(point, abs=1e-12)
        drawn = play(method(aggregator, HalfSquare()), Bowl(point + 1), clients, [[0, 1, 2]] * 2, plan)
        assert 0 < float(drawn.last.params["w"]) - point < 0.8
    wanted = SHARES @ CENTRES
    assert abs(fixed["fednova"] - wanted) < 0.2  # what is left is of the order of the learning rate
    assert abs(fixed["fedavg"] - wanted) > 0.9


def test_a_warning_where_the_paper_does_not_reach():
    with pytest.warns(UserWarning, match="fednova is derived for SGD"):
        FedNova().check(Plan(Adam(0.1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FedNova().check(Plan(SGD(0.1, momentum=0.9)))
