"""Runs in processes of their own: they fail alone, end with their parent, and compute the same."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import fedkeep
from experiment.kill_and_compare import assert_same_run, small
from fedkeep.experiment import jobs
from fedkeep.experiment.config import Config
from fedkeep.experiment.jobs import Job, run_jobs
from fedkeep.experiment.run import execute
from fedkeep.experiment.rundir import RunDirectory

pytestmark = pytest.mark.slow  # each process loads torch


def alive(pid: int) -> bool:
    """Whether a process that is not ours to wait for still works."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_failures_stay_alone(tmp_path, monkeypatch):
    """Of six runs at two at a time one is refused, one has its process killed; the others end as they would alone."""
    started: list[subprocess.Popen] = []
    popen = subprocess.Popen

    def remembered(*arguments, **more):
        started.append(popen(*arguments, **more))
        return started[-1]

    monkeypatch.setattr(jobs.subprocess, "Popen", remembered)
    configs = {
        "killed": small("fedavg", rounds=1000, checkpoint_every=1),
        "refused": small("fedavg", lr=1e30),
        "a": small("fedavg"),
        "b": small("scaffold+wsm", workers=2),
        "c": small("fedwavg(alpha=0.3)"),
        "d": small("fedprox(mu=0)"),
    }
    work = [Job(name, config, tmp_path / name) for name, config in configs.items()]
    heard = []

    def listen(event):
        heard.append(event)
        if event.job.name == "killed" and event.round == 3:
            holder = next(p for p in started if p.poll() is None and lock_of(tmp_path / "killed") == p.pid)
            os.kill(holder.pid, signal.SIGKILL)

    run_jobs(work, 2, listen)
    ends = {event.job.name: event for event in heard if event.kind in ("done", "failed")}
    assert {name for name, event in ends.items() if event.kind == "failed"} == {"killed", "refused"}
    assert "signal 9" in ends["killed"].text
    assert "none of the" in ends["refused"].text
    assert [e.round for e in heard if e.job.name == "a" and e.kind == "round"] == [1, 2, 3]
    for name in "abcd":
        execute(replace(configs[name], workers=1), tmp_path / f"{name}-alone")
        assert_same_run(tmp_path / name, tmp_path / f"{name}-alone", states=False)
    assert RunDirectory(tmp_path / "killed").latest() is not None  # can be resumed
    assert not any(alive(process.pid) for process in started)
    assert len(started) <= 3


def lock_of(out: Path) -> int:
    """The process that holds the lock of a run."""
    inode = os.stat(out / "lock").st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if "FLOCK" in words and words[5].endswith(f":{inode}"):
            return int(words[4])
    return 0


PROGRAM = """
import sys
from pathlib import Path
from fedkeep.experiment.config import Config, read_toml
from fedkeep.experiment.jobs import Job, run_jobs
config = Config(**read_toml(Path(sys.argv[1])))
out = Path(sys.argv[2])
try:
    run_jobs([Job(name, config, out / name) for name in "ab"], 2, lambda e: Path(out, f"{e.job.name}-{e.kind}").touch())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(how, tmp_path):
    """Ctrl-C or kill -9 of the parent: its processes save what they have and end; nothing is lost or left running."""
    config = small("scaffold+wsm", rounds=100_000, checkpoint_every=100_000)
    (tmp_path / "exp.toml").write_text(config.to_toml())
    source = str(Path(fedkeep.__file__).parents[1])
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "exp.toml"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    wait_until(lambda: all((tmp_path / f"{name}-round").exists() for name in "ab"))
    holders = [lock_of(tmp_path / name) for name in "ab"]
    assert all(alive(pid) for pid in holders) and parent.pid not in holders
    parent.send_signal(how)
    assert parent.wait(60) == (130 if how == signal.SIGINT else -9)
    wait_until(lambda: not any(alive(pid) for pid in holders))
    for name in "ab":
        found = RunDirectory(tmp_path / name).latest()
        assert found is not None and found[1]["round"] >= 1  # saved by Ctrl-C, not by --checkpoint-every
    assert lock_of(tmp_path / "a") == 0


def test_a_process_that_cannot_be_started_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    heard: queue.SimpleQueue = queue.SimpleQueue()
    work = [Job(name, Config(), tmp_path / name) for name in "abc"]
    run_jobs(work, 2, heard.put)
    events = [heard.get() for _ in range(heard.qsize())]
    assert sorted(e.job.name for e in events if e.kind == "failed") == ["a", "b", "c"]
    assert all("could not be used" in e.text for e in events if e.kind == "failed")
