"""Two nodes of one core: the same bits as in one process, whatever happens to a node, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import fedkeep as fk
from engine import ray_programs
from engine.ray_scene import ADDRESS, Scene, environment, scene, wait_until, why_not
from experiment.kill_and_compare import assert_same_run, assert_same_tree
from fedkeep.experiment.build import prepare, simulation_of
from fedkeep.experiment.compare import compare
from fedkeep.experiment.config import Config
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.packing import from_bytes

REASON = why_not()
pytestmark = [
    pytest.mark.ray,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(REASON), reason=REASON),
]
EXAMPLES = Path(__file__).parents[2] / "examples" / "ray"
PROGRAMS = str(Path(ray_programs.__file__))
SECOND = "127.0.0.2"


@pytest.fixture(scope="module")
def nodes():
    with scene("127.0.0.1", SECOND) as made:
        yield made


def test_the_same_bits_as_the_serial_engine(nodes: Scene, tmp_path):
    done = nodes.run(PROGRAMS, "methods", ADDRESS, str(tmp_path), seconds=300)
    assert done.returncode == 0, done.stderr
    assert "failed as it should: round 1: none of the" in done.stdout
    for number, method in enumerate(ray_programs.CASES):
        fk.run(method, workers=1, out=tmp_path / f"{number}-alone", **ray_programs.options(method))
        assert_same_run(tmp_path / str(number), tmp_path / f"{number}-alone", states=False)
    wait_until(lambda: not nodes.workers(), 20)


def test_an_experiment_file_names_the_cluster_and_stdout_is_json(nodes: Scene, tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text(f'engine = "ray"\nray_address = "{ADDRESS}"\nlimit = 100\nrounds = 2\n')
    done = nodes.run("-m", "fedkeep", "run", str(file), "--json", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["config"]["engine"] == "ray"
    here = fk.run("fedavg", limit=100, rounds=2, workers=1)
    there = fk.load_run(tmp_path / "run")
    assert all(torch.equal(tensor, there.params[name]) for name, tensor in here.params.items())


def test_a_comparison_is_that_of_one_machine(nodes: Scene, tmp_path):
    words = ["compare", "fedavg", "scaffold+wsm", "--seeds", "2", "--rounds", "3", "--limit", "200", "--clients", "7"]
    words += ["--set", "lr=0.05,0.1"]
    there, here = tmp_path / "there", tmp_path / "here"
    done = nodes.run("-m", "fedkeep", *words, "--engine", "ray", "--ray-address", ADDRESS, "--out", str(there))
    assert done.returncode == 0, done.stderr
    base = Config(rounds=3, limit=200, clients=7)
    found = compare(["fedavg", "scaffold+wsm"], 2, base, here, 1, {"lr": [0.05, 0.1]})
    assert len(found.paths) == 8
    for path in found.paths:
        run = there / path.relative_to(here)
        assert_same_run(run, path, states=False)
        assert not (run / "segments").exists()
        assert tomllib.loads((run / "config.toml").read_text())["engine"] == "auto"
    # a second time there is nothing left to do
    again = nodes.run("-m", "fedkeep", *words, "--engine", "ray", "--ray-address", ADDRESS, "--out", str(there))
    assert again.returncode == 0 and not nodes.workers()


def test_an_interrupted_comparison_goes_on(nodes: Scene, tmp_path):
    """Ctrl-C: what came home can be used, and the rest of the rounds is the same wherever they are run."""
    words = ["-m", "fedkeep", "compare", "fedavg", "scaffold", "--seeds", "1", "--rounds", "4000", "--limit", "200"]
    words += ["--checkpoint-every", "20", "--forgetting", "off", "--judge-every", "0", "--out", str(tmp_path / "c")]
    process = nodes.begin(*words, "--engine", "ray", "--ray-address", ADDRESS, stderr=subprocess.PIPE)
    runs = [tmp_path / "c" / "runs" / method / "seed-0" for method in ("fedavg", "scaffold")]
    try:
        wait_until(lambda: all(len(RunDirectory(run).segments.folders()) > 2 for run in runs), 120)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 130, said
    assert "interrupted; what is done is saved" in said
    wait_until(lambda: not nodes.workers(), 20)
    for run in runs:
        found = RunDirectory(run).latest()
        assert found is not None and found[1]["round"] >= 40
        config = RunDirectory(run).config()
        simulation = simulation_of(prepare(config))
        for _ in range(found[1]["round"]):
            simulation.step()
        assert all(torch.equal(t, found[0]["params"][name]) for name, t in simulation.state.params.items())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_actor_is_left_behind(nodes: Scene, how, tmp_path):
    words = ["run", "scaffold", "--rounds", "100000", "--engine", "ray", "--ray-address", ADDRESS]
    process = nodes.begin("-m", "fedkeep", *words, "--out", str(tmp_path / "run"), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: list((tmp_path / "run" / "segments").glob("0*")) and len(nodes.workers()) == 2, 120)
        process.send_signal(how)
        process.wait(30)
    finally:
        process.kill()
        process.wait(10)
    wait_until(lambda: not nodes.workers(), 30)
    assert all(node.poll() is None for node in nodes.nodes.values())  # the cluster is not ours to end


def test_a_cluster_of_its_own_ends_with_the_run(nodes: Scene, tmp_path):
    before = set(nodes.processes())
    done = nodes.run("-m", "fedkeep", "run", "scaffold", "--rounds", "2", "--limit", "100", "--engine", "ray",
                     "--workers", "2", "--out", str(tmp_path / "run"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    wait_until(lambda: set(nodes.processes()) <= before, 30)
    here = fk.run("scaffold", limit=100, rounds=2, workers=1)
    there = fk.load_run(tmp_path / "run")
    assert all(torch.equal(tensor, there.params[name]) for name, tensor in here.params.items())


def test_a_lost_node_and_a_new_one_change_nothing(nodes: Scene, tmp_path):
    """The second node ends in the middle of a round; later it comes back, and gets work again."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = nodes.begin(PROGRAMS, "rounds", ADDRESS, str(tmp_path), SECOND, **pipes)
    assert process.stdin and process.stdout and process.stderr

    def order() -> None:
        process.stdin.write("\n")
        process.stdin.flush()

    def second_is_used() -> bool:
        order()
        return SECOND in json.loads(process.stdout.readline())["places"]

    try:
        wait_until(second_is_used, 60, pause=0.3)
        (tmp_path / "order").touch()
        order()
        wait_until((tmp_path / "working").exists, 60)
        nodes.lose(SECOND)
        (tmp_path / "order").unlink()
        assert SECOND not in json.loads(process.stdout.readline())["places"]
        nodes.start(SECOND)
        wait_until(second_is_used, 90, pause=0.5)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=10)
    assert process.returncode == 0, said
    assert said.count("note: ") == 1 and f"node {SECOND} no longer answers; its clients are trained elsewhere" in said
    state, meta = from_bytes((tmp_path / "state").read_bytes(), "state")
    alone = simulation_of(prepare(Config(**ray_programs.CHANGING)))
    for _ in range(meta["round"]):
        alone.step()
    assert_same_tree(state["params"], alone.state.params)
    assert_same_tree(state["memories"], {str(client): memory for client, memory in alone.memories.items()})


SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do node=${1#--nodelist=}; shift; done
[ "$node$1" = secondray ] && set -- "$@" --node-ip-address=127.0.0.2
exec "$@"
"""


def test_the_script_for_slurm(tmp_path):
    """With stand-ins for Slurm's commands, in a namespace: both nodes start, the run ends, nothing is left."""
    tools = tmp_path / "bin"
    tools.mkdir()
    stand_ins = {"srun": SRUN, "scontrol": "#!/bin/sh\necho first\necho second\n"}
    stand_ins |= {
        "hostname": "#!/bin/sh\necho 127.0.0.1\n",
        "activate": f'PATH="{Path(sys.executable).parent}:$PATH"\n',
    }
    for name, text in stand_ins.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "first,second", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "7"}
    words = ["scaffold", "--limit", "100", "--rounds", "2", "--workers", "2", "--out", str(tmp_path / "run")]
    with scene() as empty:
        variables = [f"{name}={value}" for name, value in slurm.items()]
        variables += [f"PATH={tools}:{os.environ['PATH']}", f"FEDKEEP_VENV={tmp_path}", f"RAY_TMPDIR={empty.folder}"]
        command = ["env", *variables, "bash", str(EXAMPLES / "slurm.sh"), *words]
        done = subprocess.run(
            empty.inside(*command), env=environment(), capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        wait_until(lambda: not empty.processes(), 30)
    assert "127.0.0.2" in done.stdout  # the second node has said that it started
    here = fk.run("scaffold", limit=100, rounds=2, workers=1)
    there = fk.load_run(tmp_path / "run")
    assert all(torch.equal(tensor, there.params[name]) for name, tensor in here.params.items())


def test_the_file_for_a_cloud_is_one_that_ray_accepts():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(yaml.safe_load((EXAMPLES / "aws.yaml").read_text())))
