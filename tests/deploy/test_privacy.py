"""Differential privacy: what is clipped, what noise is added, what it costs, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')
pytest.importorskip("dp_accounting", reason='dp-accounting is not installed; pip install "fedkeep[flower]"')

from deploy.loopback import Deployment
from fedkeep.bundles import Bundle
from fedkeep.deploy.privacy import Privacy, clipped, unpredictable
from fedkeep.errors import ConfigError
from fedkeep.experiment import execute
from fedkeep.method import Facts
from fedkeep.tree import norm, sub

torch.set_num_threads(1)
PRIVATE = {"dp_clip": 0.5, "dp_noise": 1.0}
UNIFORM = "fedavg(weights=uniform)"


def test_clipping():
    long, short = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}, {"a": torch.tensor([0.3])}
    assert clipped(long, 1.0)["a"].tolist() == pytest.approx([0.6])
    assert clipped(long, 1.0)["b"].tolist() == [pytest.approx([0.8])]
    assert clipped(short, 1.0) is short
    assert clipped({"a": torch.tensor([math.nan, 1.0])}, 1.0)["a"].tolist() == [0.0, 0.0]


def gaussian_epsilon(sigma: float, rounds: int, delta: float) -> float:
    """Renyi accounting of the plain Gaussian mechanism, by hand: rdp(a) = T a / (2 sigma^2), then the conversion of
    Canonne, Kamath and Steinke 2020, Prop. 12; minimum over a fine grid of orders."""
    orders = np.linspace(1.05, 400, 200_000)
    rdp = rounds * orders / (2 * sigma**2)
    return float(np.min(rdp + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)))


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (4.0, 10), (10.0, 100)])
def test_everybody_in_every_round_is_the_gaussian_mechanism_at_twice_the_clip(noise, rounds):
    privacy = Privacy(clip=1.0, noise=noise, delta=1e-5, clients=50, cohort=50)
    # one client's update replaced by another moves the sum by up to 2 C: sigma = z C / 2 C
    assert privacy.epsilon(rounds) == pytest.approx(gaussian_epsilon(noise / 2, rounds, 1e-5), rel=0.02)


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_sampling():
    def of(noise=4.0, cohort=10, clip=1.0):
        return Privacy(clip, noise, 1e-5, 100, cohort)

    assert of().epsilon(0) == 0.0
    assert of().epsilon(1) < of().epsilon(10) < of().epsilon(100)
    assert of(8.0).epsilon(10) < of(4.0).epsilon(10)
    assert of(cohort=10).epsilon(10) < of(cohort=100).epsilon(10)
    assert of(clip=1.0).epsilon(10) == of(clip=7.0).epsilon(10)  # the clip scales signal and noise alike


def test_noise_has_the_promised_size_and_missing_clients_do_not_change_the_divisor():
    privacy = Privacy(clip=0.5, noise=3.0, delta=1e-5, clients=10, cohort=4)
    total = {"w": torch.full((40_000,), 2.0)}
    facts = tuple(Facts(k, 1, 1, 1.0) for k in range(2))  # two of four answered
    noised = privacy.noised(Bundle(facts, total), np.random.default_rng(0))
    mean = noised.total["w"] / 2  # what the uniform mean of two will make of it
    assert float(mean.mean()) == pytest.approx(2.0 / 4, abs=0.01)
    assert float(mean.std()) == pytest.approx(3.0 * 0.5 / 4, rel=0.02)


def test_noise_cannot_be_repeated():
    assert unpredictable().normal() != unpredictable().normal()


def private(tmp_path, method=UNIFORM, options=None, **config):
    config = {"forgetting": "off", "model": "mlp", **config}
    return Deployment(tmp_path, method, {**PRIVATE, **(options or {})}, **config)


def test_a_private_run_reports_its_epsilon(tmp_path):
    deployment = private(tmp_path)
    run = deployment.serve()
    wanted = [Privacy(0.5, 1.0, 1e-5, 4, 2).epsilon(t) for t in (1, 2)]
    assert run.frame("rounds")["epsilon"].tolist() == pytest.approx(wanted)
    from fedkeep.experiment.rundir import RunDirectory

    outcome = RunDirectory(run.directory).outcome()
    assert outcome["privacy"]["epsilon"] == pytest.approx(wanted[-1]) and outcome["privacy"]["delta"] == 1e-5
    assert deployment.said("epsilon", "the server sees each clipped update")


def test_updates_are_clipped_on_the_client_and_again_on_the_server(tmp_path):
    deployment = private(tmp_path, options={"dp_clip": 0.01, "dp_noise": 1e-9}, rounds=1)
    seen = []

    def tamper(client, request, reply):
        from fedkeep.deploy import messages
        from fedkeep.deploy.wire import put, spec_of, take

        model = deployment_model(deployment)
        delta = take(reply.content, "delta", spec_of(model))
        seen.append(norm(delta))
        put(reply.content, "delta", {name: 1000 * tensor for name, tensor in delta.items()})  # a client that cheats
        assert reply.content["numbers"]["examples"] == 1 and messages
        return reply

    deployment.grid.tamper = tamper
    run = deployment.serve()
    assert seen and all(size <= 0.01 * 1.0001 for size in seen)
    assert norm(sub(run.params, deployment_model(deployment))) <= 0.01 * 1.001


def deployment_model(deployment):
    from fedkeep.experiment.build import prepare

    return prepare(deployment.config).model.initial()[0]


def test_a_huge_clip_and_no_noise_to_speak_of_is_the_method_itself(tmp_path):
    deployment = private(tmp_path, "fedprox(mu=0.1)+wsm+fedavg(weights=uniform)", {"dp_clip": 1e6, "dp_noise": 1e-15})
    torch.testing.assert_close(deployment.serve().params, execute(deployment.config).params, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "config", "words"),
    [
        ("fedavg", {}, "number of examples"),
        ("fednova", {}, "fednova"),
        ("scaffold", {}, "scaffold sends dc"),
        ("fedavg(weights=uniform)+ewc(lam=1)", {}, "ewc sends importance"),
        ("importance(lam=1)", {}, "importance"),
        ("fedwavg(alpha=0.5)", {}, "forgettable"),
        ("fedwagg(clusters=2)", {}, "fedwagg looks at each client"),
        (UNIFORM, {"forgetting": "cohort"}, "--forgetting off"),
        (UNIFORM, {"model": "resnet-shallow"}, "batch norm"),
    ],
)
def test_what_noise_does_not_cover_is_refused_saying_why(tmp_path, method, config, words):
    with pytest.raises(ConfigError, match=words):
        private(tmp_path, method, **config).serve()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"dp_noise": 0.0}, {"dp_clip": 0.0}, {"dp_delta": 0.0}, {"dp_noise": -1.0}])
def test_half_a_privacy_is_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="dp_"):
        private(tmp_path, options=options).serve()
