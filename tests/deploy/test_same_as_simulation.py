"""One meaning everywhere: over Flower's messages a method ends where the simulator ends."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from deploy.loopback import Deployment
from fedkeep import grammar, models
from fedkeep.calls import parse_call
from fedkeep.experiment import execute

torch.set_num_threads(1)

METHODS = [
    "fedavg",
    "fedavg(weights=uniform)",
    "fedprox(mu=0.1)",
    "scaffold",
    "scaffold+wsm",
    "fednova",
    "fedwavg(alpha=0.5)",
    "fedwagg(clusters=2)",
    "fedwagg(clusters=2, evaluators=3, features=update, balanced=true)",
    "importance(lam=10)+wsm",
    "importance(lam=10, walk=true)",
    "fedavg+ewc(lam=1)",
    "fedavg+rwalk(lam=1)",
    "fedavg+events",
    "fedavg+ce",
    "fedavg+tce",
    "fedavg+fedrs(alpha=0.5)",
    "fedavg+fedlc(tau=0.5)",
    "scaffold+fedprox(mu=0.1)+events@sgd(lr=0.5)",
    "fedavg@momentum(lr=0.5)",
    "fedavg@adam(lr=0.01)",
    "fedavg@yogi(lr=0.01)",
    "fedavg@adagrad(lr=0.01)",
]


def test_the_list_has_every_term_of_the_grammar():
    words = {parse_call(term, "term")[0] for text in METHODS for term in grammar._split(text.partition("@")[0])}
    servers = {parse_call(text.partition("@")[2], "server")[0] for text in METHODS if "@" in text}
    assert words == set(grammar.TERMS)
    assert servers == set(grammar.SERVER)


def same_tables(network, simulated, leave=()):
    for name in ("rounds", "clients", "classes", "forgetting"):
        there, here = network.frame(name), simulated.frame(name)
        columns = [column for column in here if column not in ("seconds", "bytes_down", *leave)]
        pd.testing.assert_frame_equal(there[columns], here[columns], check_dtype=False, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:scaffold is derived for plain SGD")
def test_same_parameters_and_same_records(tmp_path, method):
    deployment = Deployment(tmp_path, method, {"probe": True}, rounds=3, fraction=0.75)
    network, simulated = deployment.serve(), execute(deployment.config)
    torch.testing.assert_close(network.params, simulated.params, rtol=1e-5, atol=1e-6)
    same_tables(network, simulated)


class Tiny(torch.nn.Sequential):
    """A convolution and batch norm, small."""

    def __init__(self, shape, classes, norm):
        super().__init__(
            torch.nn.Conv2d(shape[0], 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.LazyLinear(classes)
        )
        self(torch.zeros(2, *shape))


def test_batch_norm_and_convolutions_travel_too(tmp_path, monkeypatch):
    monkeypatch.setitem(models._MODELS, "tiny", models._Entry(Tiny, 0))
    deployment = Deployment(tmp_path, "scaffold", {"probe": True}, model="tiny", rounds=3)
    network, simulated = deployment.serve(), execute(deployment.config)
    torch.testing.assert_close(network.params, simulated.params, rtol=1e-5, atol=1e-6)
    assert set(network.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    torch.testing.assert_close(network.buffers, simulated.buffers, rtol=1e-5, atol=1e-6)
    same_tables(network, simulated)


def test_forgetting_against_all_clients(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", {"probe": True}, forgetting="all")
    same_tables(deployment.serve(), execute(deployment.config))


def test_without_probe_only_own_numbers_travel(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", forgetting="cohort", rounds=2)
    network, simulated = deployment.serve(), execute(deployment.config)
    torch.testing.assert_close(network.params, simulated.params, rtol=1e-5, atol=1e-6)
    pairs, clients = network.frame("forgetting"), network.frame("clients")
    assert (pairs["model"] == pairs["data"]).all() and len(pairs) == 4
    assert network.frame("rounds")["forgetting"].isna().all()
    for name in ("accuracy_before", "accuracy_local", "accuracy_after", "right_before", "forgotten_aggregation"):
        pd.testing.assert_series_equal(clients[name], simulated.frame("clients")[name], check_dtype=False)
    assert not any("models/" in key for _, request, _ in deployment.grid.replies.values() for key in request.content)


def test_forgetting_off_sends_no_counts(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", forgetting="off")
    network, simulated = deployment.serve(), execute(deployment.config)
    torch.testing.assert_close(network.params, simulated.params, rtol=1e-5, atol=1e-6)
    assert {kind for _, kind, _ in deployment.grid.log} == {"train"}
    assert network.best[0].keys() == network.params.keys()  # nothing held out is judged: the last model is the best
    torch.testing.assert_close(network.best[0], network.params)


def test_unregistered_nodes_say_who_they_are(tmp_path):
    deployment = Deployment(tmp_path, "fedavg")
    deployment.grid.registered = False
    network, simulated = deployment.serve(), execute(deployment.config)
    torch.testing.assert_close(network.params, simulated.params, rtol=1e-5, atol=1e-6)
    assert [kind for _, kind, _ in deployment.grid.log].count("query.hello") == 4


def test_names_and_order_of_nodes_do_not_matter(tmp_path):
    plain = Deployment(tmp_path / "a", "scaffold").serve()
    named = Deployment(tmp_path / "b", "scaffold", {"names": "west,north,east,south"})
    torch.testing.assert_close(named.serve().params, plain.params, rtol=0, atol=0)
