"""The Ray engine without Ray: what it refuses, who gets which work, what travels."""

from __future__ import annotations

import pickle
import socket
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fake_cluster import FakeCluster
from fedkeep import grammar
from fedkeep.engine import crew, ray_cluster
from fedkeep.engine.crew import Crew
from fedkeep.engine.ray_cluster import Cluster, reachable
from fedkeep.engine.ray_engine import RayEngine
from fedkeep.engine.ray_worker import packed, unpacked
from fedkeep.engine.sealed import opened, sealed
from fedkeep.engine.serial import SerialEngine
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.build import engine_for, prepare, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.packing import pack
from fedkeep.rounds import begin, broadcast_of

TINY = {"limit": 60, "clients": 7, "fraction": 0.8, "validation": 0.2, "local_steps": 2, "batch_size": 8}
METHODS = ["fedavg", "scaffold+wsm", "importance(lam=10)", "fedwagg(clusters=2)"]


def simulated(method: str, make_engine, rounds: int = 3):
    simulation = simulation_of(prepare(Config(method=method, step="eager", rounds=rounds, **TINY)), make_engine)
    records = [simulation.step() for _ in range(rounds)]
    return simulation, records


@cache
def serial(method: str):
    return simulated(method, SerialEngine)


def assert_as_serial(method: str, simulation, records) -> None:
    calm, wanted = serial(method)
    for name, tensor in calm.state.params.items():
        assert torch.equal(tensor, simulation.state.params[name])
    assert calm.memories.keys() == simulation.memories.keys()
    for client, memory in calm.memories.items():
        (kept, _), (got, _) = pack(memory), pack(simulation.memories[client])
        assert all(torch.equal(a, b) for a, b in zip(kept, got, strict=True))
    for a, b in zip(wanted, records, strict=True):
        assert (a.accuracy, a.loss, a.bytes_up, a.cohort) == (b.accuracy, b.loss, b.bytes_up, b.cohort)


@pytest.mark.parametrize("method", METHODS)
def test_any_order_of_answers_gives_the_bits_of_the_serial_engine(method):
    for seed, cores in ((0, 1), (1, 2), (2, 5)):
        cluster = FakeCluster(cores, seed)
        simulation, records = simulated(method, lambda b, c=cluster: RayEngine(b, c))
        assert_as_serial(method, simulation, records)
        assert cluster.hired == cores
        simulation.close()
        assert not cluster.actors and cluster.closed == 1


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([None, None, None, None, "node", "worker"]), max_size=60), st.integers(0, 99))
def test_lost_workers_change_nothing(troubles, seed):
    """Whoever dies when: the pieces that it had are done by others."""
    for how in range(len(troubles) - 1):  # three deaths at one piece are another story
        if troubles[how] == troubles[how + 1] == "worker":
            troubles[how + 1] = None
    script = iter(troubles)
    cluster = FakeCluster(3, seed)

    def make(bench):
        engine = RayEngine(bench, cluster)
        cluster.trouble = lambda: next(script, None)
        return engine

    try:
        simulation, records = simulated("scaffold+wsm", make)
    except RunError as error:
        assert "same piece of work" in str(error) or "do not start" in str(error)  # it can still come to that
        return
    assert_as_serial("scaffold+wsm", simulation, records)


def test_the_user_hears_of_a_lost_node_once(capsys):
    script = iter([None, None, "node", None, "worker"])
    cluster = FakeCluster(2)

    def make(bench):
        engine = RayEngine(bench, cluster)
        cluster.trouble = lambda: next(script, None)
        return engine

    simulation, records = simulated("fedavg", make)
    assert_as_serial("fedavg", simulation, records)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "no longer answers; its clients are trained elsewhere" in said[0]
    assert "died (killed for the test); its clients are trained again" in said[1]


def test_work_that_kills_every_worker_stops_the_run():
    cluster = FakeCluster(2)

    def make(bench):
        engine = RayEngine(bench, cluster)
        greeted = set()

        def trouble():
            new = {id(a) for a in cluster.actors} - greeted
            greeted.update(new)
            return None if new else "worker"

        cluster.trouble = trouble
        return engine

    with pytest.raises(RunError, match=r"died 3 times|do not start"):
        simulated("fedavg", make)


def test_cores_that_appear_are_used_and_those_that_go_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(crew, "LOOK", 0.0)
    cluster = FakeCluster(1)
    simulation, _ = simulated("fedavg", lambda b: RayEngine(b, cluster), rounds=1)
    assert simulation.engine.workers == 1
    cluster.count = 4
    simulation.step()
    assert simulation.engine.workers == 4
    cluster.count = 1  # members that work stay until they are lost; nobody new is hired
    simulation.step()
    assert cluster.hired == 4


def test_workers_is_the_most_that_are_hired():
    cluster = FakeCluster(8)
    simulated("fedavg", lambda b: RayEngine(b, cluster, workers=3))
    assert cluster.hired == 3


def test_one_worker_for_each_gpu():
    cluster = FakeCluster(8)
    cluster.gpus = 2
    simulated("fedavg", lambda b: RayEngine(b, cluster, device="cuda"), rounds=1)
    assert cluster.hired == 2 and cluster.devices == {"cuda"}
    with pytest.raises(ConfigError, match="no node of the cluster has a GPU"):
        simulated("fedavg", lambda b: RayEngine(b, FakeCluster(8), device="cuda"), rounds=1)


def test_what_is_broadcast_is_put_down_once_a_round():
    """The data once, then one object for training, one for each judging; nothing per client."""
    cluster = FakeCluster(3)
    simulated("fedavg", lambda b: RayEngine(b, cluster), rounds=2)
    before, a_round = 1, 1 + 2  # clients' examples before round 1; training, clients' and test examples after it
    assert len(cluster.puts) == 1 + before + 2 * a_round
    assert len(cluster.puts[0][1]) >= 4  # x and y of both parts stay outside of the bytes
    assert len(cluster.puts[0][0]) < 50_000


def test_other_versions_are_refused():
    cluster = FakeCluster(1)
    cluster.changed = lambda met: replace(met, versions={**met.versions, "torch": "1.0"})
    with pytest.raises(ConfigError, match=r"node 10\.0\.0\.1 has torch 1\.0, this one 2.*same version on all nodes"):
        simulated("fedavg", lambda b: RayEngine(b, cluster))
    assert not cluster.actors


def test_another_processor_is_worth_a_note():
    cluster = FakeCluster(2)
    cluster.changed = lambda met: replace(met, processor="ABACUS")
    with pytest.warns(UserWarning, match="computes with ABACUS") as said:
        simulated("fedavg", lambda b: RayEngine(b, cluster))
    assert len(said) == 1


def test_workers_that_never_start_end_the_run():
    cluster = FakeCluster(2, trouble=lambda: "worker")
    with pytest.raises(RunError, match=r"workers do not start on the cluster.*same Python, fedkeep"):
        simulated("fedavg", lambda b: RayEngine(b, cluster))
    assert not cluster.actors


def test_patience_ends(monkeypatch, capsys):
    monkeypatch.setattr(crew, "PATIENCE", 0.3)
    monkeypatch.setattr(crew, "HINT", 0.0)
    team = Crew(FakeCluster(0), lambda: None)
    with pytest.raises(RunError, match="no core of the cluster was free"):
        for _ in range(100):
            team.wait(0.05)
    assert capsys.readouterr().err.count("waiting for a free core of the cluster") == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_bench_that_has_travelled_computes_the_same_bits(method):
    """With recorded steps: the recording is made anew from the same tensors."""
    prepared = prepare(Config(method=method, **{**TINY, "local_steps": 4}))
    here = simulation_of(prepared).engine.bench
    there = unpacked(pickle.loads(pickle.dumps(packed(here), protocol=5)))
    assert there.trainer.step.programs.keys() == here.trainer.step.programs.keys()
    broadcast = broadcast_of(begin(here.trainer.method, *prepared.model.initial()))
    rows = np.arange(5)
    a, b = here.run_group(broadcast, [1, 2], {}, rows), there.run_group(broadcast, [1, 2], {}, rows)
    assert pickle.dumps(a.bundle.facts) == pickle.dumps(b.bundle.facts)
    for name, tensor in a.bundle.total.items():
        assert torch.equal(tensor, b.bundle.total[name])
    for one, other in zip(a.bundle.updates, b.bundle.updates, strict=True):
        assert all(torch.equal(t, other.delta[name]) for name, t in one.delta.items())


def test_every_method_can_travel():
    for text in ("fedprox(mu=0.1)+tce", "fednova+fedrs(alpha=0.5)@momentum", "fedwavg(alpha=0.3)", "fedavg+ewc(lam=1)"):
        assert opened(sealed(grammar.parse(text))) == grammar.parse(text)


def test_sealed_values_share_or_own_their_memory():
    value = {"w": torch.arange(6.0).view(2, 3).t(), "n": torch.tensor(3), "empty": {}, "rows": np.arange(4)}
    data, buffers = sealed(value)
    shared, own = opened((data, buffers)), opened((data, buffers), own=True)
    for got in (shared, own):
        assert torch.equal(got["w"], value["w"]) and got["n"] == 3 and got["empty"] == {}
        assert (got["rows"] == np.arange(4)).all()
    own["w"].zero_()
    assert shared["w"].sum() == 15
    assert shared["w"].data_ptr() in {buffer.ctypes.data for buffer in buffers}
    assert own["w"].data_ptr() not in {buffer.ctypes.data for buffer in buffers}


def test_read_only_buffers_make_no_noise():
    data, buffers = sealed(torch.ones(3))
    for buffer in buffers:
        buffer.flags.writeable = False
    assert opened((data, buffers)).sum() == 3  # warnings are errors here


# -- refusals


def test_without_ray_the_way_to_it_is_named(monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"engine ray needs Ray.*pip install fedkeep\[ray\]"):
        engine_for(Config(engine="ray"))
    with pytest.raises(ConfigError, match=r"pip install fedkeep\[ray\]"):
        Cluster()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://10.0.0.1:10001", "runs on a node of the cluster"),
        ("somewhere", "give HOST:PORT"),
        ("host:port", "give HOST:PORT"),
        ("127.0.0.1:99999999", "cannot be reached"),
    ],
)
def test_addresses_that_are_none_are_refused(address, says):
    with pytest.raises(ConfigError, match=says):
        reachable(address)


def test_an_address_where_nobody_listens_is_refused_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf'ray_address "127\.0\.0\.1:{port}": cannot be reached .*ray start --head'
        ):
            reachable(f"127.0.0.1:{port}")


def test_engine_says_where_and_step_how():
    assert Config(engine="ray", ray_address="auto", step="eager").step == "eager"
    assert Config(engine="eager") == Config(step="eager") and Config(engine="traced").engine == "auto"
    assert Config(step="traced").with_options({"engine": "eager"}).step == "eager"
    with pytest.raises(ConfigError, match='engine "eager" and step "traced" contradict each other'):
        Config(engine="eager", step="traced")
    with pytest.raises(ConfigError, match=r"ray_address .* without Ray; add --engine ray"):
        Config(ray_address="10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"device gpu without Ray.*add --engine ray"):
        Config(device="gpu")


def test_a_run_of_a_cluster_can_be_resumed_without_it():
    begun = Config(engine="ray", ray_address="10.0.0.1:6379", device="gpu")
    assert begun.with_options({"engine": "auto"}) == Config()
    assert begun.with_options({"workers": 2}).ray_address == "10.0.0.1:6379"
    assert begun.identity() == Config().identity()
