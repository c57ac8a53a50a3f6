"""What a run directory accepts, refuses and says."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiment.kill_and_compare import assert_same_run, assert_same_tree, die_at, in_child, keep_last_state, small
from fedkeep.errors import ConfigError, FedKeepError, RunError
from fedkeep.experiment.config import Config, read_toml, with_method_option
from fedkeep.experiment.run import CHECKPOINT_SHARE, _Execution, execute, load_run
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.summary import summarise
from fedkeep.rounds import NoUsableUpdate
from fedkeep.simulate import RoundRecord


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_another_experiment_is_refused_and_left_alone(tmp_path, monkeypatch):
    execute(small(), tmp_path / "finished")

    def run():
        die_at(monkeypatch, ("rename",), 2)
        execute(small(), tmp_path / "unfinished")

    assert in_child(run) == 99
    for name in ("finished", "unfinished"):
        before = contents(tmp_path / name)
        with pytest.raises(RunError, match=r"holds another experiment \(lr is 0\.05 there, 0\.5 here\)"):
            execute(small(lr=0.5), tmp_path / name)
        assert contents(tmp_path / name) == before


def test_a_finished_run_says_so(tmp_path):
    first = execute(small(), tmp_path / "run")
    before = contents(tmp_path / "run")
    heard = []
    again = execute(small(workers=2, checkpoint_every=0), tmp_path / "run", heard.append)
    assert again.notes == [f"{tmp_path / 'run'}: finished after round 3 already; nothing was run"]
    assert not heard
    assert contents(tmp_path / "run") == before
    assert_same_tree({**first.params, **first.buffers}, again.params)
    assert repr(again.rounds) == repr(first.rounds)  # nan included
    assert again.summary() == pytest.approx(first.summary(), nan_ok=True)


def test_options_that_compute_nothing_may_differ(tmp_path):
    first = execute(small(), tmp_path / "run")
    accuracy = first.rounds[0]["accuracy"]
    again = execute(small(target=accuracy, data_root="elsewhere"), tmp_path / "run")
    assert again.summary()["rounds_to_target"] == 1


@pytest.mark.parametrize("name", ["notes.txt", "final.safetensors"])
def test_a_folder_of_somebody_else(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=f"holds other files \\({name}"):
        execute(small(), tmp_path)
    assert contents(tmp_path) == {name: b"mine"}


def test_a_config_of_somebody_else(tmp_path):
    (tmp_path / "config.toml").write_text('name = "my project"\n')
    before = contents(tmp_path)
    with pytest.raises(RunError, match='unknown option "name"'):
        execute(small(), tmp_path)
    assert contents(tmp_path).items() >= before.items()
    assert "sums.json" not in contents(tmp_path)


def test_a_file_in_place_of_a_directory(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="is a file"):
        execute(small(), tmp_path / "run")
    with pytest.raises(RunError, match="cannot be made"):
        execute(small(), tmp_path / "run" / "deeper")


def test_a_config_of_another_version(tmp_path):
    execute(small(), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("version = 1", "version = 2"))
    with pytest.raises(RunError, match="checksum"):
        load_run(tmp_path / "run")
    for name in ("sums.json", "outcome.json"):
        (tmp_path / "run" / name).unlink()
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match=r"version 2, this FedKeep reads version 1; use the release that wrote it"):
        execute(small(), tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_a_half_written_experiment_file(tmp_path):
    path = tmp_path / "exp.toml"
    path.write_text(small().to_toml()[:120] + '\nmethod = "fed')
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        read_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [("rounds = 3\nlocal_epoch = 2\n", 2), ('a = 1\n"lrr" = 0.1', 1), ("lr = 0.1\n\n[sett]\nlr = [1]", 3)],
)
def test_an_unknown_option_is_named_with_its_line(tmp_path, text, line):
    path = tmp_path / "exp.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"line {line}: unknown option"):
        read_toml(path)


def test_no_run_here(tmp_path):
    with pytest.raises(RunError, match="no such run directory"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match="has no config"):
        load_run(tmp_path)


def full_disk(monkeypatch, after: int) -> None:
    """Let the disk be full from the n-th file on; names can still be changed."""
    seen = [0]

    def fsync(handle: int) -> None:
        seen[0] += 1
        if seen[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("after", [0, 2, 4, 7, 12, 20, 25])
def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path, monkeypatch, after):
    keep_last_state(monkeypatch)
    execute(small(), tmp_path / "whole")
    with monkeypatch.context() as patch:
        full_disk(patch, after)
        with pytest.raises(RunError, match=r"No space left on device.*free some space"):
            execute(small(), tmp_path / "full")
    assert not list((tmp_path / "full").rglob("*.tmp"))
    execute(small(), tmp_path / "full")
    assert_same_run(tmp_path / "whole", tmp_path / "full")


def test_a_full_disk_for_the_log_alone_does_not_stop_a_run(tmp_path, monkeypatch):
    import builtins

    original = builtins.open

    def refuse(path, *arguments, **more):
        if str(path).endswith("log.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, *arguments, **more)

    monkeypatch.setattr(builtins, "open", refuse)
    done = execute(small(), tmp_path / "run")
    assert len(done.rounds) == 3
    assert any("log.txt could not be written" in note for note in done.notes)


def test_two_processes_on_one_directory(tmp_path):
    out = tmp_path / "run"
    seen = []

    def meanwhile(record: RoundRecord) -> None:
        if record.round == 2:
            with pytest.raises(RunError, match="another process is writing this run"):
                execute(small(), out)
            seen.append(in_child(lambda: execute(small(), out)))

    done = execute(small(), out, meanwhile)
    assert seen == [1] and len(done.rounds) == 3
    assert repr(execute(small(), out).rounds) == repr(done.rounds)


def test_the_lock_ends_with_its_process(tmp_path, monkeypatch):
    """Also when a forked worker of the killed process lives on for a while."""
    out, alive = tmp_path / "run", tmp_path / "alive"
    reading, writing = os.pipe()

    def run():
        def fork_and_die(record):
            if os.fork() == 0:
                os.close(writing)
                os.read(reading, 1)  # until the test lets go
                os._exit(0)
            alive.touch()
            os._exit(99)

        execute(small(), out, fork_and_die)

    assert in_child(run) == 99 and alive.exists()
    assert len(execute(small(), out).rounds) == 3
    os.close(writing)
    os.close(reading)


def test_a_refused_run_lets_go_of_the_directory(tmp_path):
    execute(small(), tmp_path / "run")
    with pytest.raises(RunError):
        execute(small(lr=0.5), tmp_path / "run")
    with open(tmp_path / "run" / "lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_data_that_changed_between_two_halves_is_refused(tmp_path, monkeypatch):
    def cut(order: int) -> None:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(80, 6)).astype("float32"), np.arange(80) % 2
        y[:order] = 0
        np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])

    config = small("fedavg", data=str(tmp_path / "data.npz"), limit=0, partition="iid")

    def run():
        die_at(monkeypatch, ("rename",), 2)
        execute(config, tmp_path / "run")

    cut(0)
    assert in_child(run) == 99
    cut(8)
    with pytest.raises(RunError, match="the data has changed"):
        execute(config, tmp_path / "run")
    cut(0)
    from fedkeep.experiment import build

    build.load_data.cache_clear()
    assert len(execute(config, tmp_path / "run").rounds) == 3


def test_a_run_without_a_usable_update_is_kept_with_its_end(tmp_path):
    config = small("fedavg", lr=1e30, rounds=5)
    with pytest.raises(NoUsableUpdate, match="Lower the learning rate"):
        execute(config, tmp_path / "run")
    outcome = RunDirectory(tmp_path / "run").outcome()
    assert outcome is not None and outcome["outcome"] == "stopped: no usable update"
    again = execute(config, tmp_path / "run")
    assert "stopped: no usable update after round" in again.notes[0]


def test_test_data_only_at_the_end(tmp_path):
    """The WSM paper judges on the union of validation parts while training, and on the test set at the end."""
    often, seldom = execute(small(rounds=12)), execute(small(rounds=12, judge_every=0))
    assert [r["accuracy"] for r in seldom.rounds[:-1]] == pytest.approx([np.nan] * 11, nan_ok=True)
    assert seldom.rounds[-1]["accuracy"] == often.rounds[-1]["accuracy"]
    assert [r["validation_accuracy"] for r in seldom.rounds] == [r["validation_accuracy"] for r in often.rounds]
    assert seldom.summary()["final"] == seldom.accuracy == often.accuracy
    last = [r["accuracy"] for r in often.rounds[-10:]]
    assert often.summary()["final"] == pytest.approx(sum(last) / 10)


def test_the_best_model_is_chosen_on_validation_data(tmp_path, monkeypatch):
    """Scores are replaced by known ones: validation is best after round 2, test accuracy after round 3."""
    from fedkeep.simulate import Simulation

    step = Simulation.step
    known = {1: (0.4, 0.1), 2: (0.9, 0.2), 3: (0.9, 0.99)}
    models = {}

    def scored(self):
        from dataclasses import replace

        record = step(self)
        models[record.round] = {**self.state.params}
        validation, test = known[record.round]
        return replace(record, validation_accuracy=validation, accuracy=test)

    monkeypatch.setattr(Simulation, "step", scored)
    for validation in (0.1, 0.0):
        execute(small("fedavg", validation=validation), tmp_path / f"run-{validation}")
        best = RunDirectory(tmp_path / f"run-{validation}").model("best")
        assert all(torch.equal(best[name], tensor) for name, tensor in models[2].items())


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("a_round", "a_save"), [(0.01, 0.004), (1.0, 0.5), (0.3, 30.0), (60.0, 2.0)])
def test_checkpoints_cost_two_percent_at_most(a_round, a_save, monkeypatch):
    import sys

    clock = Clock()
    monkeypatch.setattr(sys.modules["fedkeep.experiment.run"], "time", clock)
    execution = object.__new__(_Execution)
    execution.config = Config()  # checkpoint_every = 0
    execution.started, execution.spent, execution.cost = clock.now, 0.0, a_save
    saves, longest, since = 0, 0.0, clock.now
    for number in range(1, 20_001):
        clock.now += a_round
        if execution._due(number):
            longest, since = max(longest, clock.now - since), clock.now
            clock.now += a_save
            execution.spent += a_save
            saves += 1
        assert execution.spent <= CHECKPOINT_SHARE * (clock.now - execution.started) + 1e-9
    assert saves > 1
    # and no rarer than that share asks for, give or take a round
    assert longest <= a_save / CHECKPOINT_SHARE + 2 * a_round


def test_the_cost_of_a_checkpoint_is_measured(tmp_path, monkeypatch):
    import sys

    clock = Clock()
    monkeypatch.setattr(sys.modules["fedkeep.experiment.run"], "time", clock)
    checkpoint = RunDirectory.checkpoint

    def slow(self, *arguments):
        clock.now += 5.0
        checkpoint(self, *arguments)

    def tick(record):
        clock.now += 10.0

    monkeypatch.setattr(RunDirectory, "checkpoint", slow)
    execute(small("fedavg", checkpoint_every=0, rounds=60), tmp_path / "run", tick)
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    rounds = [int(line.split()[-1]) for line in log if "checkpoint after" in line]
    # the first when its cost was only guessed; 5 s each are 2 % of 250 s, so the second must wait for 500 s
    assert rounds[:2] == [2, 51]


def test_summary_by_hand():
    rounds = pd.DataFrame(
        {
            "round": range(1, 13),
            "accuracy": [0.1, np.nan, 0.5, np.nan, 0.7, np.nan, 0.6, np.nan, 0.8, np.nan, 0.7, 0.9],
            "validation_accuracy": [0.0, 0.0] + [0.5] * 10,
            "forgetting": [9.0, 9.0] + [0.25, np.nan] * 5,
            "bytes_up": [10.0] * 12,
            "bytes_down": [20.0] * 12,
            "seconds": [0.5] * 12,
        }
    )
    found = summarise(rounds, target=0.6)
    # judged among the last ten rounds: 0.5 0.7 0.6 0.8 0.7 0.9
    assert found["final"] == pytest.approx(4.2 / 6)
    assert (found["best"], found["last"], found["rounds_to_target"]) == (0.9, 0.9, 5)
    assert (found["validation"], found["forgetting"], found["seconds"]) == (0.5, 0.25, 6)
    assert (found["bytes_up"], found["bytes_down"]) == (10, 20)
    assert np.isnan(summarise(rounds, target=0.95)["rounds_to_target"])
    assert np.isnan(summarise(rounds)["rounds_to_target"])
    assert np.isnan(found["forgettable"])


def test_options_inside_a_part():
    config = Config(method="fedprox(mu=0.01)+wsm@adam(lr=0.1)")
    assert config.with_options({"method.mu": 1, "partition.alpha": 3}).method == "fedprox(mu=1)+wsm@adam(lr=0.1)"
    assert config.with_options({"partition.alpha": 3}).partition == "dirichlet(alpha=3)"
    assert with_method_option("fedavg@adam(lr=0.1)", "lr", 0.5) == "fedavg@adam(lr=0.5)"
    assert with_method_option("importance(lam=1e+05)", "lam", 10.0) == "importance(lam=10)"
    with pytest.raises(ConfigError, match='fedavg has no option "mu"'):
        config.with_options({"method": "fedavg", "method.mu": 1})
    with pytest.raises(ConfigError, match="only partition and method have options"):
        config.with_options({"model.width": 3})
    with pytest.raises(FedKeepError, match="unknown option"):
        config.with_options({"lrr": 3})
