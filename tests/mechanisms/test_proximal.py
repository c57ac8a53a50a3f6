"""FedProx: its correction is the derivative of its penalty, and its runs are the twin's."""

from __future__ import annotations

import numpy as np
import pytest

from fedkeep.aggregation import WeightedMean
from fedkeep.errors import ConfigError
from fedkeep.local_opt import SGD
from fedkeep.mechanisms import Proximal
from fedkeep.method import Method, Plan, StepContext
from fedkeep.server_opt import ServerSGD
from reference import fedprox
from reference.losses import numeric_gradient
from toys import Bowl, HalfSquare, as_tensors, assert_trees, bowl, play

CURVATURES = np.array([[1.0, 2.0], [3.0, 0.5], [0.5, 4.0]])
CENTRES = np.array([[4.0, -2.0], [-1.0, 1.0], [2.0, 0.0]])
STEPS = [5, 2, 4]


def some_models():
    generator = np.random.default_rng(0)
    shapes = {"weight": (2, 3), "bias": (3,)}
    return tuple({name: generator.normal(size=shape) for name, shape in shapes.items()} for _ in range(2))


@pytest.mark.parametrize("mu", [0.01, 1.0, 7.5])
def test_correction_is_the_numeric_derivative_of_the_penalty(mu):
    w, start = some_models()
    found = Proximal(mu).correction(as_tensors(w), StepContext(as_tensors(start), {}, 0.1))
    assert found is not None
    for name in w:
        numeric = numeric_gradient(lambda x, name=name: fedprox.penalty({**w, name: x}, start, mu), w[name], 1e-4)
        np.testing.assert_allclose(found[name].numpy(), numeric, rtol=1e-7)


def test_no_pull_adds_nothing_at_all():
    w, start = some_models()
    assert Proximal(0.0).correction(as_tensors(w), StepContext(as_tensors(start), {}, 0.1)) is None
    assert Proximal(0.0).pull() == 0.0
    assert Proximal(0.3).pull() == 0.3


def test_whole_runs_are_the_twins():
    clients = [bowl(h, m, n) for h, m, n in zip(CURVATURES.tolist(), CENTRES.tolist(), STEPS, strict=True)]
    gradients = [lambda w, batch, h=h, m=m: {"w": h * (w["w"] - m)} for h, m in zip(CURVATURES, CENTRES, strict=True)]
    cohorts = [[0, 1], [1, 2], [0, 1, 2], [2]]
    method = Method(HalfSquare(), WeightedMean(), ServerSGD(), (Proximal(0.7),))
    run = play(method, Bowl(10.0, -3.0), clients, cohorts, Plan(SGD(0.1), batch_size=1))
    expected = fedprox.simulate({"w": np.array([10.0, -3.0])}, gradients, cohorts, STEPS, 0.1, 0.7, examples=STEPS)
    for state, model in zip(run.states, expected, strict=True):
        assert_trees(state.params, model)


def test_a_strong_pull_stops_at_the_weighted_middle():
    # with many steps the client ends at (h m + mu w_t) / (h + mu): here (2 * 5 + 6 * 1) / 8 = 2
    method = Method(HalfSquare(), WeightedMean(), ServerSGD(), (Proximal(6.0),))
    run = play(method, Bowl(1.0), [bowl([2.0], [5.0], 200)], [[0]], Plan(SGD(0.1), batch_size=1))
    assert float(run.last.params["w"]) == pytest.approx(2.0)


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="mu is the strength of a pull; choose it >= 0"):
        Proximal(-0.1)
    with pytest.raises(ConfigError, match="mu is the strength"):
        Proximal(float("nan"))
    Proximal(19.9).check(Plan(SGD(0.1)))
    with pytest.raises(ConfigError, match=r"lr\*mu = 2 >= 2 overshoots"):
        Proximal(20.0).check(Plan(SGD(0.1)))
