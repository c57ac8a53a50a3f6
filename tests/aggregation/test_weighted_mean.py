"""FedAvg's mean against the twin and against centralised training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.aggregation import WeightedMean
from fedkeep.bundles import collect
from fedkeep.errors import ConfigError
from fedkeep.local_opt import SGD
from fedkeep.losses import ce
from fedkeep.method import Method, Plan
from fedkeep.rounds import ServerState, server_round
from fedkeep.server_opt import ServerSGD
from reference import fedavg, losses, mlp
from toys import Bowl, HalfSquare, Network, as_numpy, as_tensors, assert_trees, blobs, bowl, play, update, whole_batches


@given(seed=st.integers(0, 1000), examples=st.lists(st.integers(1, 1000), min_size=1, max_size=6))
@settings(deadline=None, max_examples=30)
def test_one_aggregation_is_the_twins(seed, examples):
    generator = np.random.default_rng(seed)
    start = {"a": generator.normal(size=3), "b": generator.normal(size=2)}
    models = [{name: generator.normal(size=array.shape) for name, array in start.items()} for _ in examples]
    updates = [
        update(k, n, **{name: (model[name] - start[name]).tolist() for name in start})
        for k, (n, model) in enumerate(zip(examples, models, strict=True))
    ]
    for kind, weights in (
        ("examples", fedavg.weights_by_examples(examples)),
        ("uniform", fedavg.uniform_weights(len(examples))),
    ):
        aggregator = WeightedMean(kind)
        np.testing.assert_allclose(aggregator.weights(updates), weights)
        method = Method(ce, aggregator, ServerSGD())
        state = ServerState(as_tensors(start), {}, {}, {})
        new = server_round(method, state, collect(method, updates), 100)
        assert_trees(new.params, fedavg.aggregate(models, weights))


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_whole_runs_are_the_twins(weights):
    curvatures, centres, steps = np.array([1.0, 3.0, 0.5]), np.array([4.0, -1.0, 2.0]), [5, 2, 4]
    clients = [bowl([h], [m], n) for h, m, n in zip(curvatures, centres, steps, strict=True)]
    gradients = [lambda w, _, h=h, m=m: {"w": h * (w["w"] - m)} for h, m in zip(curvatures, centres, strict=True)]
    cohorts = [[0, 1], [1, 2], [0, 1, 2], [2]]
    method = Method(HalfSquare(), WeightedMean(weights), ServerSGD())
    run = play(method, Bowl(10.0), clients, cohorts, Plan(SGD(0.1), batch_size=1))
    examples = steps if weights == "examples" else None
    expected = fedavg.simulate({"w": np.array([10.0])}, gradients, cohorts, steps, 0.1, examples)
    for state, model in zip(run.states, expected, strict=True):
        assert_trees(state.params, model)


def test_one_whole_batch_step_is_a_step_on_everybodys_data():
    clients = [blobs(9, [0, 1], 1), blobs(4, [1, 2], 2), blobs(6, [0, 1, 2], 3)]
    run = play("fedavg", Network(), clients, [[0, 1, 2]] * 3, whole_batches(0.2, 1))
    x, y = (np.concatenate([getattr(client, part).numpy() for client in clients]) for part in "xy")
    w = as_numpy(run.states[0].params)
    for state in run.states[1:]:
        gradient = mlp.gradient(w, x, y, losses.ce_grad)
        w = {name: w[name] - 0.2 * gradient[name] for name in w}
        assert_trees(state.params, w)


def test_numbers_worked_by_hand():
    method = Method(ce, WeightedMean(), ServerSGD())
    state = ServerState({"w": torch.tensor([10.0], dtype=torch.float64)}, {}, {}, {})
    updates = [update(0, 1, w=[4.0]), update(1, 3, w=[-4.0])]
    assert server_round(method, state, collect(method, updates), 2).params["w"].tolist() == [8.0]  # 10 + 1 - 3
    method = Method(ce, WeightedMean("uniform"), ServerSGD(lr=0.5))
    updates = [update(0, 1, w=[4.0]), update(1, 3, w=[-2.0])]
    assert server_round(method, state, collect(method, updates), 2).params["w"].tolist() == [10.5]


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match='did you mean "examples"'):
        WeightedMean("exampels")
