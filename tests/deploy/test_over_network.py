"""The real thing on loopback: SuperLink, SuperNodes, TLS and node authentication, processes killed and restarted."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl

import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from deploy.loopback import Deployment
from deploy.real import SMALL, fence, real
from fedkeep.deploy.certificates import write_node_key
from fedkeep.deploy.processes import free_ports
from fedkeep.experiment import execute
from fedkeep.experiment.run import load_run

torch.set_num_threads(1)
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(2400)]


def with_the_same_losses(folder, run, method, **config):
    """The same federation without a network, in which the replies are lost that were lost in this run."""
    outcome = json.loads((run.directory / "outcome.json").read_text())
    lost = {(failure["round"], failure["client"]) for failure in outcome["failures"]}
    deployment = Deployment(folder, method, {"time_limit": 0.5}, **{**SMALL, **config})

    def lose(client, request, reply):
        return None if (request.content["about"]["round"], client) in lost else reply

    deployment.grid.tamper = lose
    return deployment.serve()


def assert_same(run, reference):
    assert run.frame("rounds")["missing"].tolist() == reference.frame("rounds")["missing"].tolist()
    torch.testing.assert_close(run.params, {**reference.params, **reference.buffers}, rtol=1e-5, atol=1e-6)


HOSTILE = """
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from fedkeep.deploy.client import client_of
from fedkeep.deploy.wire import put

app = ClientApp()

@app.train()
def train(message, context):
    if context.node_config["name"] == "client-0":
        raise ValueError("the scanner is broken")
    answer = client_of(context).answer("train", message.content)
    if context.node_config["name"] == "client-1":
        put(answer, "delta", {"huge": torch.zeros(10_000_000)})
    return Message(answer, reply_to=message)
"""


def let_in_through_a_fence(deployment, port):
    """client-0 comes in through the fence of the guide, which passes on the fleet API only; at first as a stranger."""
    local = deployment.federation
    local.processes.kill("client-0")
    folder, keys = local.folder / "nodes" / "client-0", local.superlink / "nodes"
    for key in keys.glob("*.pub"):
        key.unlink()  # these are registered
    write_node_key(folder / "node.key", keys / "client-0.pub", "client-0")
    command = ["sh", str(folder / "start-supernode.sh")]
    variables = {"SUPERLINK": f"localhost:{port}", "NODE_PORT": str(free_ports(1)[0]), "NODE_CONFIG": "threads=1"}
    local.processes.start("stranger", command, variables)
    deployment.wait(lambda: "stranger" in local.processes.dead(), 300, "the refusal of a key that nobody registered")
    assert local.processes.running.pop("stranger").returncode != 0
    local.register()
    local.processes.start("client-0", command, variables)


def test_three_methods_end_as_in_the_simulator_and_neither_strangers_nor_hostile_clients_do_harm(tmp_path):
    with real(tmp_path) as deployment, fence(deployment.federation.superlink, deployment.federation.ports[0]) as fenced:
        superlink = deployment.federation.superlink
        let_in_through_a_fence(deployment, fenced.port)
        probed = {"probe": True, "encode": "broadcast=as-is"}
        for name, method, options, config in (
            ("a", "scaffold", {}, {}),
            ("b", "importance(lam=10)+wsm", probed, {"forgetting": "cohort", "rounds": 1}),
            ("c", "fedwagg(clusters=2)", {}, {"rounds": 1}),
        ):
            run, config_of = deployment.run(name, method, options, **config)
            simulated = execute(config_of)
            wanted = {**simulated.params, **simulated.buffers}
            torch.testing.assert_close(run.params, wanted, rtol=1e-5, atol=1e-6)
            assert run.frame("rounds")["missing"].sum() == 0
            assert run.frame("rounds")["accuracy"].tolist() == simulated.frame("rounds")["accuracy"].tolist()
        context = ssl.create_default_context(cafile=str(superlink / "certificates" / "ca.crt"))
        outside = http.client.HTTPSConnection("localhost", fenced.port, context=context, timeout=60)
        outside.request("POST", "/v1/control/list-runs", b"")
        assert outside.getresponse().status == 403 and "/v1/control/list-runs" in fenced.refused
        outside.close()
        (superlink / "app" / "fedkeep_app" / "client.py").write_text(HOSTILE)
        run, _ = deployment.run("d", "fedavg", rounds=1)
        log = deployment.log_of("d")
        assert "client 0 (client-0): no answer (train): its app raised an error" in log
        assert "the scanner is broken" in log
        assert 'client 1 (client-1): refused (train): tensor "' in log and "of delta is missing" in log
    reference = with_the_same_losses(tmp_path / "reference", run, "fedavg", rounds=1)
    torch.testing.assert_close(run.params, {**reference.params, **reference.buffers}, rtol=1e-5, atol=1e-6)


def test_a_run_goes_on_while_its_superlink_is_restarted(tmp_path):
    with real(tmp_path) as deployment:
        local = deployment.federation
        deployment.prepare("run", "scaffold", rounds=3)
        deployment.begin()
        deployment.wait(lambda: "checkpoint after round 1" in deployment.log_of("run"), 600, "round 1")
        local.processes.kill("superlink")
        local.start_superlink()
        deployment.wait(lambda: deployment.finished("run"), 900, "the end")
        assert "went on" not in deployment.log_of("run") and not local.processes.dead()
    run = load_run(tmp_path / "run")
    assert run.frame("rounds")["round"].tolist() == [1, 2, 3]
    assert_same(run, with_the_same_losses(tmp_path / "reference", run, "scaffold", rounds=3))


def test_a_node_and_then_the_server_app_are_killed_and_come_back(tmp_path):
    """The node is skipped in round 2. In round 3 it is used again, with the memory it had after round 1."""
    with real(tmp_path) as deployment:
        local = deployment.federation
        deployment.prepare("run", "scaffold", {"min_replies": 2}, rounds=3)
        deployment.begin()
        deployment.wait(lambda: "ROUND 2]" in local.processes.tail("client-2", 200), 600, "round 2 at client-2")
        local.processes.kill("client-2")
        deployment.wait(lambda: "checkpoint after round 2" in deployment.log_of("run"), 600, "a round without client-2")
        assert "client 2 (client-2): no answer (train)" in deployment.log_of("run")
        for pid in deployment.server_apps():
            os.kill(pid, signal.SIGKILL)
        deployment.prepare("run", "scaffold", {"min_replies": 3}, rounds=3)
        deployment.begin()

        def supervised():
            """The node is started again, as a supervisor would do, until Flower takes it back."""
            if "client-2" not in local.processes.running or "client-2" in local.processes.dead():
                local.start_node(2)
            return deployment.finished("run")

        deployment.wait(supervised, 900, "a round with client-2 again")
        assert "went on from round 2" in deployment.log_of("run") and "memory was lost" not in deployment.log_of("run")
    run = load_run(tmp_path / "run")
    assert run.frame("rounds")["missing"].tolist() == [0, 1, 0]
    assert_same(run, with_the_same_losses(tmp_path / "reference", run, "scaffold", rounds=3))
