"""Clients that fail, lie or attack: named, left out, and never in the model."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from flwr.app import Array, ConfigRecord, Error, Message, RecordDict

from deploy.loopback import Deployment
from fedkeep.deploy import exchange as exchange_module
from fedkeep.deploy.server import TooFewReplies
from fedkeep.deploy.wire import array_of
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.rounds import NoUsableUpdate

torch.set_num_threads(1)
EVERYONE = {"fraction": 1.0, "clients": 3}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Time passes only when somebody sleeps."""
    now = [0.0]
    build = exchange_module.Exchange.__init__

    def patched(self, *args, **kwargs):
        kwargs.setdefault("clock", lambda: now[0])
        kwargs.setdefault("sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
        build(self, *args, **kwargs)

    monkeypatch.setattr(exchange_module.Exchange, "__init__", patched)
    return now


def without(tmp_path, client, method="fedavg", **config):
    """The same federation in which a client simply is not there."""
    deployment = Deployment(tmp_path / "without", method, **{**EVERYONE, **config})
    deployment.grid.offline = {client}
    return deployment.serve()


def attack(tmp_path, change, method="fedavg", kind="train", **config):
    """A federation in which client 1 changes its replies; gives the deployment and its run."""
    deployment = Deployment(tmp_path / "attacked", method, **{**EVERYONE, **config})

    def tamper(client, request, reply):
        if client == 1 and request.metadata.message_type == kind and reply.has_content():
            return change(request, reply)
        return reply

    deployment.grid.tamper = tamper
    return deployment, deployment.serve()


def first_tensor(record):
    return next(iter(record))


def edit(function):
    def change(request, reply):
        function(reply.content)
        return reply

    return change


def _nan(content):
    record = content["delta"]
    name = first_tensor(record)
    record[name] = array_of(torch.full(record[name].shape, math.nan))


def _shape(content):
    record = content["delta"]
    record[first_tensor(record)] = array_of(torch.zeros(3, 3))


def _missing(content):
    del content["delta"][first_tensor(content["delta"])]


def _giant(content):
    record = content["delta"]
    name = first_tensor(record)
    record[name] = Array(record[name].dtype, record[name].shape, record[name].stype, b"\0" * 50_000_000)


def _promised_giant(content):
    record = content["delta"]
    name = first_tensor(record)
    record[name] = Array("float32", (2**40, 2**20), record[name].stype, record[name].data)


def _pickle(content):
    record = content["delta"]
    name = first_tensor(record)
    record[name] = Array("object", record[name].shape, "pickle", b"cos\nsystem\n(S'false'\ntR.")


def _stranger(content):
    content["delta"]["backdoor"] = array_of(torch.zeros(1))


def _examples(content):
    content["numbers"]["examples"] = 10**8


def _version(content):
    content["about"]["wire"] = 7


def _nothing(content):
    for key in list(content):
        del content[key]


HOSTILE = {
    "NaN": (_nan, "NaN or infinity"),
    "shape": (_shape, "has shape (3, 3)"),
    "missing tensor": (_missing, "is missing"),
    "gigantic": (_giant, "50000000 bytes"),
    "promised gigantic": (_promised_giant, "has shape"),
    "pickle": (_pickle, "packed as 'pickle'"),
    "extra tensor": (_stranger, "unexpected"),
    "weight": (_examples, "100000000 examples"),
    "version": (_version, "version 7"),
    "empty": (_nothing, "does not come from FedKeep"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_reply_is_refused_named_and_never_in_the_model(tmp_path, what):
    change, words = HOSTILE[what]
    deployment, run = attack(tmp_path, edit(change), rounds=1, forgetting="off")
    assert deployment.said("client 1 (client-1)", "refused", words), deployment.lines
    rows = run.frame("rounds")
    assert rows["refused"].tolist() == [1] and rows["missing"].tolist() == [0]
    clean = without(tmp_path, 1, rounds=1, forgetting="off")
    torch.testing.assert_close(run.params, clean.params, rtol=0, atol=0)
    outcome = RunDirectory(run.directory).outcome()
    assert outcome["failures"][0]["client"] == 1 and words in outcome["failures"][0]["what"]
    assert "refused" in (run.directory / "log.txt").read_text()


def test_uploads_of_mechanisms_are_checked_too(tmp_path):
    def spoil(content):
        record = content["uploads/scaffold/dc"]
        record[first_tensor(record)] = array_of(torch.full(record[first_tensor(record)].shape, math.inf))

    deployment, run = attack(tmp_path, edit(spoil), "scaffold", rounds=2, forgetting="off")
    assert deployment.said("client 1", "uploads/scaffold/dc", "NaN or infinity")
    clean = without(tmp_path, 1, "scaffold", rounds=2, forgetting="off")
    torch.testing.assert_close(run.params, clean.params, rtol=0, atol=0)


def test_a_client_that_reports_divergence_is_left_out(tmp_path):
    def diverged(request, reply):
        about = ConfigRecord({"wire": 1, "finite": False, "memory": "new"})
        return Message(RecordDict({"about": about, "numbers": reply.content["numbers"]}), reply_to=request)

    _deployment, run = attack(tmp_path, diverged, rounds=1, forgetting="off")
    assert run.frame("rounds")["left_out"].tolist() == [1]
    torch.testing.assert_close(run.params, without(tmp_path, 1, rounds=1, forgetting="off").params, rtol=0, atol=0)


def test_nobody_has_a_usable_update(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", **EVERYONE, lr=1e30, forgetting="off")
    with pytest.raises(NoUsableUpdate):
        deployment.serve()
    assert RunDirectory(tmp_path / "run").outcome()["outcome"] == "stopped: no usable update"


def test_a_client_that_raises_is_named_with_its_error(tmp_path):
    def crash(request, reply):
        return Message(Error(2, "<class 'ZeroDivisionError'>:<'division by zero'>"), reply_to=request)

    deployment, run = attack(tmp_path, crash, rounds=1, forgetting="off")
    assert deployment.said("client 1", "its app raised an error", "ZeroDivisionError")
    assert run.frame("rounds")["missing"].tolist() == [1]


def test_a_dead_node_is_mapped_by_message_although_flower_names_itself(tmp_path):
    def dead(request, reply):
        gone = Message(Error(5, "Node Unavailable"), reply_to=request)
        gone.metadata.__dict__["_src_node_id"] = 1  # as Flower's SuperLink does
        return gone

    deployment, run = attack(tmp_path, dead, rounds=1, forgetting="off")
    assert deployment.said("client 1 (client-1)", "its node is not reachable")
    torch.testing.assert_close(run.params, without(tmp_path, 1, rounds=1, forgetting="off").params, rtol=0, atol=0)


def test_a_reply_from_somebody_else_is_refused(tmp_path):
    def forged(request, reply):
        reply.metadata.__dict__["_src_node_id"] = 1002
        return reply

    deployment, _ = attack(tmp_path, forged, rounds=1, forgetting="off")
    assert deployment.said("client 1", "comes from another node")


def test_silence_ends_with_the_time_limit(tmp_path, no_waiting):
    deployment = Deployment(tmp_path, "fedavg", {"time_limit": 30.0}, **EVERYONE, rounds=1, forgetting="off")
    deployment.grid.tamper = lambda client, request, reply: None if client == 1 else reply
    run = deployment.serve()
    assert deployment.said("client 1", "no reply within 30 s") and 30 <= no_waiting[0] < 40
    assert run.frame("rounds")["missing"].tolist() == [1]


def test_too_few_replies_stop_the_run_and_it_can_go_on(tmp_path):
    deployment = Deployment(tmp_path, "scaffold", {"min_replies": 3, "time_limit": 5.0}, **EVERYONE, rounds=3)

    def silent(client, request, reply):
        return None if client == 1 and request.content["about"]["round"] == 2 else reply

    deployment.grid.tamper = silent
    with pytest.raises(TooFewReplies, match=r"round 2: 2 of 3 clients answered, min_replies is 3.*go on from round 1"):
        deployment.serve()
    deployment.grid.tamper = None
    resumed = deployment.serve()
    assert deployment.said("3 rounds") and resumed.frame("rounds")["round"].tolist() == [1, 2, 3]
    steady = Deployment(tmp_path / "steady", "scaffold", **EVERYONE, rounds=3).serve()
    torch.testing.assert_close(resumed.params, steady.params, rtol=0, atol=0)


def test_missing_stop_means_stop(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", {"missing": "stop"}, **EVERYONE)
    deployment.grid.offline = {2}
    with pytest.raises(TooFewReplies, match=r"client 2 \(client-2\): it is not connected; the run stops"):
        deployment.serve()


def test_a_node_that_comes_back_is_used_again(tmp_path):
    deployment = Deployment(tmp_path, "scaffold", **EVERYONE, rounds=3)
    trained = []

    def tamper(client, request, reply):
        kind, number = request.metadata.message_type, request.content["about"].get("round")
        if kind == "train":
            trained.append((number, client))
            deployment.grid.offline = {1} if (number, client) == (1, 2) else set()
        return reply

    deployment.grid.tamper = tamper
    rows = deployment.serve().frame("rounds")
    assert rows["missing"].tolist() == [0, 1, 0]
    assert [client for number, client in trained if number == 3] == [0, 1, 2]


def test_a_restarted_node_with_another_id_takes_its_place_again(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", **EVERYONE, rounds=2, forgetting="off")
    grid = deployment.grid
    grid.registered = False
    moved = {}
    plain = grid.node_id
    grid.node_id = lambda client: moved.get(client, plain(client))
    push = grid._push

    def pushed(message):
        back = {node: client for client, node in moved.items()}
        if message.metadata.dst_node_id in back:
            message.metadata.dst_node_id = plain(back[message.metadata.dst_node_id])
            number = push(message)
            client, _request, reply = grid.replies[number]
            reply.metadata.__dict__["_src_node_id"] = moved[client]
            return number
        number = push(message)
        if message.metadata.message_type == "train" and not moved:
            moved[1] = 5001
        return number

    grid._push = pushed
    rows = deployment.serve().frame("rounds")
    assert rows["missing"].tolist() == [0, 0] and [k for k, kind, _ in grid.log if kind == "query.hello"] == [
        0,
        1,
        2,
        1,
    ]


def test_strangers_are_left_alone(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", **EVERYONE, rounds=1, forgetting="off")
    deployment.grid.names.append("mallory")
    deployment.serve()
    assert deployment.said("'mallory'", "none of this federation's clients")
    assert 3 not in {client for client, *_ in deployment.grid.log}


def test_a_node_cannot_say_it_is_another(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", **EVERYONE, rounds=1, forgetting="off")
    deployment.grid.registered = False

    def claims(reply):
        return reply.content["about"].__setitem__("name", "client-0")

    def tamper(client, request, reply):
        if client == 1 and request.metadata.message_type == "query.hello":
            claims(reply)
        return reply

    deployment.grid.tamper = tamper
    deployment.serve()
    assert deployment.said("says it is 'client-0'", "here already")
    assert (1, "train") not in {(client, kind) for client, kind, _ in deployment.grid.log}


def test_a_registered_node_must_say_its_registered_name(tmp_path):
    text = "import numpy as np\ndef load(name):\n    return np.zeros((20, 1, 2, 2)), np.arange(20) % 2\n"
    (tmp_path / "own.py").write_text(text)
    options = {"load": f"{tmp_path / 'own.py'}:load", "shape": "1,2,2", "classes": 2}
    deployment = Deployment(tmp_path, "fedavg", options, **EVERYONE, rounds=1)

    def tamper(client, request, reply):
        if client == 1 and request.metadata.message_type == "query.hello":
            reply.content["about"]["name"] = "client-2"
        return reply

    deployment.grid.tamper = tamper
    deployment.serve()
    assert deployment.said("says it is 'client-2'", "registered as 'client-1'")


def test_wrong_scores_and_missing_evaluators_of_fedwagg(tmp_path):
    def lie(request, reply):
        for key in reply.content["scores"]:
            reply.content["scores"][key] = 17.0
        return reply

    deployment, run = attack(tmp_path, lie, "fedwagg(clusters=2, evaluators=3)", "query.score", rounds=2)
    assert deployment.said("client 1", "refused (query.score)", "are no accuracies")
    assert np.isfinite(run.frame("rounds")["accuracy"]).all()


def test_wrong_counts_spoil_only_their_own_row(tmp_path):
    def lie(request, reply):
        reply.content["counts"]["after"] = [10**6] * 10
        return reply

    deployment, run = attack(tmp_path, lie, kind="query.judge", rounds=1)
    assert deployment.said("client 1", "refused (query.judge)", "more right examples")
    assert run.frame("clients")["client"].tolist() == [0, 2]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_spoiled_bytes_never_crash_the_server(tmp_path_factory, seed):
    random = Random(seed)  # ours, not Hypothesis's: how much is drawn depends on the bytes, and those hold a time
    folder = tmp_path_factory.mktemp("fuzz")
    deployment = Deployment(folder, "fedavg", {"out": ""}, **EVERYONE, rounds=1, forgetting="off", limit=60)

    def spoil(client, request, contents):
        if client != 1:
            return
        key = random.choice(sorted(contents))
        data = bytearray(contents[key])
        for _ in range(random.randint(1, 8)):
            action = random.randint(0, 2)
            place = random.randrange(len(data)) if data else 0
            if action == 0 and data:
                data[place] ^= random.randint(1, 255)
            elif action == 1:
                del data[place : place + random.randint(1, 40)]
            else:
                data[place:place] = random.randbytes(random.randint(1, 40))
        contents[key] = bytes(data)

    deployment.grid.spoil = spoil
    run = deployment.serve()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.params.values())


def test_impossible_policies_are_refused_before_round_1(tmp_path):
    with pytest.raises(ConfigError, match="min_replies=4: a round asks 3 clients"):
        Deployment(tmp_path, "fedavg", {"min_replies": 4}, **EVERYONE).serve()
    with pytest.raises(ConfigError, match="nothing to measure"):
        Deployment(tmp_path, "fedavg", {"probe": True}, forgetting="off").serve()
    with pytest.raises(ConfigError, match='"importance" is sent'):
        Deployment(tmp_path, "fedavg", {"encode": "importance=int8"}).serve()


def test_probe_warns_in_plain_words(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", {"probe": True}, rounds=1)
    deployment.serve()
    assert deployment.said("--probe", "sends each client's trained model to every other client", "trust each other")


def test_a_client_refuses_what_it_did_not_agree_to(tmp_path):
    """The server's messages are checked on the client as well."""
    from flwr.app import Context

    from deploy.loopback import through_the_wire
    from fedkeep.deploy import messages
    from fedkeep.deploy.client import make_app

    deployment = Deployment(tmp_path, "fedavg", forgetting="off", rounds=1)
    context = Context(1, 1000, {"name": "client-0", "store": str(tmp_path / "s")}, RecordDict(), deployment.run_config)
    app = make_app()
    judge = messages.request(RecordDict(), experiment="abc", round=1, models=0, before=False)
    with pytest.raises(RunError, match="forgetting is not measured here"):
        app(through_the_wire(Message(judge, 1000, "query.judge")), context)
    nameless = Context(1, 1000, {}, RecordDict(), deployment.run_config)
    with pytest.raises(ConfigError, match="this node has no name"):
        app(through_the_wire(Message(judge, 1000, "query.judge")), nameless)
    stranger = Context(1, 1000, {"name": "eve"}, RecordDict(), deployment.run_config)
    with pytest.raises(ConfigError, match='"eve" is not one of this federation'):
        app(through_the_wire(Message(judge, 1000, "query.judge")), stranger)
