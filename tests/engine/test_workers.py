"""Worker processes: the same bits as the serial engine, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeep as fk
from fedkeep import grammar
from fedkeep.engine.arena import Arena
from fedkeep.engine.serial import SerialEngine
from fedkeep.engine.workers import WorkerEngine
from fedkeep.errors import RunError
from fedkeep.experiment.build import prepare, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.experiment.run import quiet_torch

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="worker processes need Linux")

TINY = {"data": "digits", "limit": 200, "clients": 7, "fraction": 0.7, "rounds": 3, "batch_size": 8, "local_epochs": 1}
METHODS = [
    "fedavg",
    "fedprox(mu=0.1)+tce",
    "scaffold+wsm",
    "fednova+fedrs(alpha=0.5)@momentum",
    "fedwavg(alpha=0.3)+fedlc(tau=1.0)",
    "fedwagg(clusters=2)@yogi(lr=0.01)",
    "importance(lam=10)+wsm",
    "importance(lam=10, walk=true)@adam(lr=0.01)",
]


def assert_same(a, b) -> None:
    assert a.params.keys() == b.params.keys()
    for name, tensor in a.params.items():
        assert torch.equal(tensor, b.params[name]), name
    for table in ("rounds", "clients", "classes", "forgetting"):
        left, right = a.frame(table), b.frame(table)
        assert left.drop(columns="seconds", errors="ignore").equals(right.drop(columns="seconds", errors="ignore"))


@pytest.mark.parametrize("method", METHODS)
def test_serial_and_workers_agree_bitwise(method):
    serial = fk.run(method, workers=1, **TINY)
    for workers in (2, 3):
        assert_same(serial, fk.run(method, workers=workers, **TINY))


def test_batch_norm_buffers_agree_bitwise():
    options = {**TINY, "model": "resnet-shallow", "limit": 60, "clients": 3, "rounds": 2, "step": "eager"}
    assert_same(fk.run("fedavg", workers=1, **options), fk.run("fedavg", workers=2, **options))


def children() -> set[int]:
    """The processes this one has started and that still run."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.add(int(folder.name))
    return found


class KillOnce:
    """Stands in for a population: the first worker that asks for client 3's examples is killed, once."""

    def __init__(self, real, mark: Path):
        self._real, self._mark = real, mark

    def __getattr__(self, name):
        return getattr(self._real, name)

    def __len__(self):
        return len(self._real)

    def examples(self, client):
        if client == 3 and os.getpid() != PARENT and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._real.examples(client)


PARENT = os.getpid()


def test_a_killed_worker_is_replaced_and_the_result_is_the_same(tmp_path, capfd):
    from dataclasses import replace

    config = Config(method="scaffold", workers=2, **TINY)
    prepared = prepare(config)
    calm = simulation_of(prepared, SerialEngine)
    rough = simulation_of(
        prepared, lambda b: WorkerEngine(replace(b, population=KillOnce(b.population, tmp_path / "x")), 2)
    )
    try:
        with quiet_torch():
            for _ in range(3):
                calm.step()
                rough.step()
    finally:
        rough.engine.close()
    assert (tmp_path / "x").exists(), "nobody was killed: the test shows nothing"
    for name, tensor in calm.state.params.items():
        assert torch.equal(tensor, rough.state.params[name])
    for client, memory in calm.memories.items():
        for name, tensor in memory["scaffold"]["c"].items():
            assert torch.equal(tensor, rough.memories[client]["scaffold"]["c"][name])
    assert capfd.readouterr().err.count("a worker process died") == 1


class AlwaysKill(KillOnce):
    def examples(self, client):
        if os.getpid() != PARENT:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._real.examples(client)


def test_work_that_kills_every_worker_stops_the_run(tmp_path):
    from dataclasses import replace

    prepared = prepare(Config(workers=2, **TINY))
    rough = simulation_of(
        prepared, lambda b: WorkerEngine(replace(b, population=AlwaysKill(b.population, tmp_path)), 2)
    )
    try:
        with pytest.raises(RunError, match="died 3 times"):
            rough.step()
    finally:
        rough.engine.close()
    assert not children()


class Raises(KillOnce):
    def examples(self, client):
        raise ZeroDivisionError("a bug in somebody's loader")


def test_an_error_in_a_worker_reaches_the_caller_and_leaves_nothing(tmp_path):
    from dataclasses import replace

    prepared = prepare(Config(workers=2, **TINY))
    rough = simulation_of(prepared, lambda b: WorkerEngine(replace(b, population=Raises(b.population, tmp_path)), 2))
    try:
        with pytest.raises(RunError, match="a bug in somebody's loader"):
            rough.step()
    finally:
        rough.engine.close()
    assert not children()


def test_two_runs_at_once_do_not_disturb_each_other():
    alone = [fk.run("scaffold", workers=1, seed=seed, **TINY) for seed in (0, 1)]
    code = (
        "import fedkeep as fk,sys,torch; r=fk.run('scaffold', workers=2, seed=int(sys.argv[1]), out=sys.argv[2], **{})"
    )
    together = []
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen([sys.executable, "-c", code.format(TINY), str(seed), f"{folder}/{seed}"])
            for seed in (0, 1)
        ]
        assert [process.wait(timeout=120) for process in running] == [0, 0]
        together = [fk.load_run(Path(folder) / str(seed)) for seed in (0, 1)]
        for a, b in zip(alone, together, strict=True):
            for name, tensor in a.params.items():
                assert torch.equal(tensor, b.params[name])


LONG = """
import fedkeep as fk, sys
fk.run("scaffold", data="digits", clients=10, rounds=100000, workers=2, listen=lambda r: print(r.round, flush=True))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_and_no_segment_is_left_behind(how):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    process = subprocess.Popen(
        [sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    assert process.stdout.readline().strip() == "1"
    workers = _children_of(process.pid)
    assert len(workers) == 2
    process.send_signal(how)
    process.wait(timeout=30)
    watchdog.cancel()
    process.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(_alive(pid) for pid in workers):
        time.sleep(0.05)
    assert not [pid for pid in workers if _alive(pid)]
    assert (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) <= before


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_workers_are_gone_after_success():
    fk.run("fedavg", workers=2, **TINY)
    assert not children()


def test_arena_carries_tensors_of_every_kind_and_grows():
    arena = Arena(64)
    small = {"a": {"x": torch.arange(5), "empty": torch.zeros(0, 3)}, "nothing": {}}
    large = {"w": torch.randn(1000, 7), "mask": torch.tensor([True, False]), "half": torch.randn(3).half()}
    for nested in (small, large, small):
        got = arena.read(*arena.write(nested))
        assert str(got) == str(nested)
    arena.close()


def test_score_asks_each_evaluator_about_its_model():
    prepared = prepare(Config(method="fedwagg(clusters=2)", workers=2, **TINY))
    serial, parallel = simulation_of(prepared, SerialEngine), simulation_of(prepared, lambda b: WorkerEngine(b, 2))
    try:
        params, buffers = prepared.model.initial()
        models = [(params, buffers), ({k: -v for k, v in params.items()}, buffers)]
        asked = [[0, 3, 2], [1]]
        assert serial.engine.score(models, asked) == parallel.engine.score(models, asked)
        assert parallel.engine.score([], []) == []
        rows = np.array([5, 1, 9])
        a, b = (
            serial.engine.judge(params, buffers, "train", rows),
            parallel.engine.judge(params, buffers, "train", rows),
        )
        assert (a.correct == b.correct).all() and a.loss == b.loss
    finally:
        parallel.engine.close()


def test_every_method_of_this_file_is_in_the_grammar():
    assert all(grammar.name_of(grammar.parse(method)) for method in METHODS)
