"""Kill the server, lose a reply, lose a disk: both sides stay in step."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from deploy.loopback import Deployment
from fedkeep.errors import RunError
from fedkeep.experiment import execute
from fedkeep.tree import add, scale

torch.set_num_threads(1)
EVERYONE = {"fraction": 1.0, "clients": 3, "rounds": 4}


class Killed(BaseException):
    """The power is cut."""


def kill_at(deployment, number, kind, client=0):
    """Cut the power when this client is asked this in this round, after it has done its work."""

    def tamper(k, request, reply):
        about = request.content["about"]
        if (k, request.metadata.message_type, about.get("round")) == (client, kind, number):
            deployment.grid.tamper = None
            raise Killed
        return reply

    deployment.grid.tamper = tamper


@pytest.mark.parametrize("method", ["scaffold", "fedwavg(alpha=0.5)", "importance(lam=10)", "fedavg@adam(lr=0.01)"])
@pytest.mark.parametrize(("number", "kind"), [(1, "train"), (3, "train"), (2, "query.judge")])
def test_a_killed_server_goes_on_and_ends_as_if_nothing_had_happened(tmp_path, method, number, kind):
    deployment = Deployment(tmp_path, method, **EVERYONE)
    kill_at(deployment, number, kind, client=1)
    with pytest.raises(Killed):
        deployment.serve()
    resumed, simulated = deployment.serve(), execute(deployment.config)
    torch.testing.assert_close(resumed.params, simulated.params, rtol=1e-5, atol=1e-6)
    assert resumed.frame("rounds")["round"].tolist() == [1, 2, 3, 4]
    same = ["round", "accuracy", "validation_accuracy", "forgettable", "right_after", "forgotten_local"]
    assert resumed.frame("rounds")[same].equals(simulated.frame("rounds")[same])


def test_a_finished_run_is_not_run_again(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", rounds=1)
    first = deployment.serve()
    asked = len(deployment.grid.log)
    again = deployment.serve()
    assert len(deployment.grid.log) == asked and deployment.said("finished after round 1 already")
    torch.testing.assert_close(again.params, {**first.params, **first.buffers})


def test_a_damaged_checkpoint_goes_back_one_and_the_clients_with_it(tmp_path):
    deployment = Deployment(tmp_path, "scaffold", **EVERYONE)
    kill_at(deployment, 4, "train", client=2)
    with pytest.raises(Killed):
        deployment.serve()
    newest = sorted((tmp_path / "run" / "segments").iterdir())[-1]
    (newest / "state.safetensors").write_bytes(b"spoiled")
    resumed, simulated = deployment.serve(), execute(deployment.config)
    assert deployment.said("client") or resumed.notes
    torch.testing.assert_close(resumed.params, simulated.params, rtol=1e-5, atol=1e-6)


def controls(deployment, run):
    """SCAFFOLD's control variates as the clients keep them, and the server's."""
    from fedkeep.store import Store

    experiment = json.loads((run.directory / "about.json").read_text())["deployment"]["experiment"]
    stores = [Store.of(deployment.grid.store, experiment, name) for name in deployment.grid.names]
    return [{int(key[7:]): store.get(key) for key in store if key.startswith("memory-")} for store in stores]


def test_a_lost_reply_leaves_scaffold_consistent(tmp_path):
    """c is the mean of the c_k that belong to updates the server used; a lost one does not count on either side."""
    deployment = Deployment(tmp_path, "scaffold", {"time_limit": 0.5}, **EVERYONE, forgetting="off")

    def lost(k, request, reply):
        return None if (k, request.content["about"]["round"]) == (1, 3) else reply

    deployment.grid.tamper = lost
    broadcasts = []
    answer = deployment.grid._answer

    def watched(client, request):
        broadcasts.append((request.content["about"]["round"], client, request.content))
        return answer(client, request)

    deployment.grid._answer = watched
    run = deployment.serve()
    assert run.frame("rounds")["missing"].tolist() == [0, 0, 1, 0]
    accepted = {k: content["about"]["accepted"] for number, k, content in broadcasts if number == 4}
    assert accepted == {0: 3, 1: 2, 2: 3}
    from fedkeep.deploy.wire import take_any

    content = next(content for number, k, content in broadcasts if number == 4)
    server = take_any(content, "slots/scaffold/c")
    kept = [memory[accepted[k]]["scaffold"]["c"] for k, memory in enumerate(controls(deployment, run))]
    mean = scale(add(add(kept[0], kept[1]), kept[2]), 1 / 3)
    torch.testing.assert_close(server, mean, rtol=1e-4, atol=1e-5)


def test_what_went_wrong_before_the_server_was_killed_is_not_forgotten(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", {"time_limit": 0.5}, **EVERYONE, forgetting="off")

    def tamper(k, request, reply):
        number = request.content["about"]["round"]
        if (k, number) == (0, 3):
            deployment.grid.tamper = None
            raise Killed
        return None if (k, number) in ((2, 1), (1, 2), (2, 2)) else reply

    deployment.grid.tamper = tamper
    with pytest.raises(Killed):
        deployment.serve()
    run = deployment.serve()
    failures = json.loads((run.directory / "outcome.json").read_text())["failures"]
    assert [(each["round"], each["client"]) for each in failures] == [(1, 2), (2, 1), (2, 2)]
    assert all(each["what"] == "no answer (train): no reply within 0.5 s" for each in failures)
    assert run.frame("rounds")["missing"].tolist() == [1, 2, 0, 0]


def test_a_client_keeps_few_versions(tmp_path):
    deployment = Deployment(tmp_path, "scaffold", **{**EVERYONE, "rounds": 6})
    run = deployment.serve()
    for memory in controls(deployment, run):
        assert sorted(memory) == [4, 5, 6]
    names = {path.name for path in deployment.grid.store.rglob("judged-*")}
    assert len(names) <= 4


def test_a_lost_disk_is_noticed_and_named(tmp_path):
    deployment = Deployment(tmp_path, "scaffold", **EVERYONE)

    def tamper(k, request, reply):
        if (k, request.content["about"].get("round"), request.metadata.message_type) == (2, 2, "query.judge"):
            for path in deployment.grid.store.glob("*/client-1"):
                shutil.rmtree(path)
        return reply

    deployment.grid.tamper = tamper
    deployment.serve()
    assert deployment.said("round 3", "client 1 (client-1)", "its memory was lost")


def test_another_experiment_in_the_same_place_is_refused(tmp_path):
    Deployment(tmp_path, "fedavg", rounds=1).serve()
    with pytest.raises(RunError, match="holds another experiment"):
        Deployment(tmp_path, "scaffold", rounds=1).serve()


def test_another_deployment_of_the_same_experiment_is_refused(tmp_path):
    deployment = Deployment(tmp_path, "fedavg", fraction=1.0)
    kill_at(deployment, 2, "train")
    with pytest.raises(Killed):
        deployment.serve()
    with pytest.raises(RunError, match="holds another deployment \\(encode"):
        Deployment(tmp_path, "fedavg", {"encode": "delta=float16"}, fraction=1.0).serve()


def test_two_runs_of_the_same_experiment_do_not_share_memory(tmp_path):
    first = Deployment(tmp_path / "a", "scaffold", rounds=2)
    first.serve()
    second = Deployment(tmp_path / "b", "scaffold", rounds=2)
    second.grid.store = first.grid.store
    torch.testing.assert_close(second.serve().params, execute(second.config).params, rtol=1e-5, atol=1e-6)
    assert len(list(first.grid.store.iterdir())) == 2
