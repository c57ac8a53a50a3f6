"""What leaves a client is said, in the run and in the report."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from deploy.loopback import Deployment
from fedkeep.deploy.wire import size_of
from fedkeep.report import text_summary, write_report
from fedkeep.report.sections import costs
from fedkeep.report.series import load_report

torch.set_num_threads(1)


def sent(tmp_path, *arguments, **config):
    deployment = Deployment(tmp_path, *arguments, **config)
    run = deployment.serve()
    return deployment, run, costs(load_report([run.directory]))[0]["sends"]


def test_the_report_lists_what_the_deployment_sends(tmp_path):
    options = {"encode": "delta=float16, importance=top(q=10, then=int8)", "probe": True}
    _, _, lines = sent(tmp_path, "importance(lam=1)", options)
    text = "\n".join(lines)
    for words in (
        "importance of each weight",
        "Delta is sent as float16",
        "largest 10 %, as 8-bit",
        "--probe",
        "meter",
    ):
        assert words in text


def test_the_report_says_how_private_a_run_was(tmp_path):
    pytest.importorskip("dp_accounting", reason='dp-accounting is not installed; pip install "fedkeep[flower]"')
    options = {"dp_clip": 1.0, "dp_noise": 8.0}
    _, run, lines = sent(tmp_path, "fedavg(weights=uniform)", options, forgetting="off")
    epsilon = run.frame("rounds")["epsilon"].iloc[-1]
    assert any(f"epsilon {epsilon:.3g} at delta 1e-05 after 2 rounds" in line for line in lines)
    assert not any("number of examples" in line for line in lines)


@pytest.mark.parametrize(
    ("encode", "share"),
    [
        ("", 1.0),
        ("delta=float16, importance=float16", 0.5),
        ("importance=int8", 5 / 8),
        ("importance=top(q=10)", (4 + 0.4 + 1 / 8) / 8),
    ],
)
def test_encodings_save_what_they_say(tmp_path, encode, share):
    deployment, run, _ = sent(tmp_path, "importance(lam=1)", {"encode": encode}, rounds=1, forgetting="off")
    numbers = sum(tensor.numel() for tensor in run.params.values())
    for _, kind, content in deployment.grid.uploads:
        assert kind == "train" and size_of(content) == pytest.approx(8 * numbers * share, rel=0.02)
    sizes = run.frame("rounds")["bytes_up"] / run.frame("rounds")["clients"]
    assert sizes.tolist() == pytest.approx([8 * numbers * share], rel=0.02)


def test_a_float16_broadcast_halves_what_clients_receive(tmp_path):
    plain = Deployment(tmp_path / "a", "fedavg", forgetting="off").serve()
    small = Deployment(tmp_path / "b", "fedavg", {"encode": "broadcast=float16"}, forgetting="off").serve()
    ratio = small.frame("rounds")["bytes_down"] / plain.frame("rounds")["bytes_down"]
    assert ratio.tolist() == pytest.approx([0.5, 0.5], rel=0.01)
    torch.testing.assert_close(small.params, plain.params, rtol=0.05, atol=0.005)


@pytest.mark.parametrize(
    ("options", "forgetting"),
    [({}, "off"), ({}, "cohort"), ({"probe": True}, "cohort"), ({"time_limit": 0.3}, "cohort")],
    ids=["off", "own numbers", "probe", "nobody judges"],
)
@pytest.mark.parametrize("own", [False, True], ids=["digits", "own data"])
def test_the_same_report_as_of_a_simulation(tmp_path, options, forgetting, own):
    if own:
        text = "import numpy as np\ndef load(name):\n    return np.zeros((20, 1, 2, 2)), np.arange(20) % 2\n"
        (tmp_path / "own.py").write_text(text)
        options = {**options, "load": f"{tmp_path / 'own.py'}:load", "shape": "1,2,2", "classes": 2}
    deployment = Deployment(tmp_path, "fedavg", options, forgetting=forgetting)
    if "time_limit" in options:

        def silent(k, request, reply):
            return None if request.metadata.message_type == "query.judge" else reply

        deployment.grid.tamper = silent
    directory = deployment.serve().directory
    write_report([directory], tmp_path / "page.html")
    page, words = (tmp_path / "page.html").read_text(), io.StringIO()
    assert "fedavg" in page
    text_summary([directory], Console(file=words))
    probed = "probe" in options
    assert ('id="round"' in page) == probed  # a slider over F_ki
    assert ("<code>--probe</code>" in page) == (forgetting == "cohort" and not probed)
    assert ("stayed with them" in page) == own and ("fedkeep run again.toml" in page) != own
    assert ("--probe" in words.getvalue()) == (forgetting == "cohort" and not probed)


def test_the_report_says_what_did_not_arrive_and_knows_the_clients_names(tmp_path):
    options = {"time_limit": 0.5, "names": "north,south", "min_replies": 1}
    deployment = Deployment(tmp_path, "fedavg", options, clients=2, fraction=1.0, rounds=3)

    def lost(k, request, reply):
        return (
            None if (k, request.metadata.message_type, request.content["about"]["round"]) == (1, "train", 2) else reply
        )

    deployment.grid.tamper = lost
    write_report([deployment.serve().directory], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "in 1 of 3 rounds not all clients counted (replies missing: 1, refused: 0)" in page
    assert "<th>0 north</th>" in page
