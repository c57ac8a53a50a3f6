"""Killed at any moment and started again, a run ends as if it had never been killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiment.kill_and_compare import METHODS, assert_same_run, die_at, in_child, keep_last_state, small
from fedkeep.experiment.config import Config, read_toml
from fedkeep.experiment.run import execute
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.rng import stream
from fedkeep.simulate import Simulation


@pytest.fixture(autouse=True)
def states(monkeypatch):
    keep_last_state(monkeypatch)


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_random_moments(method, tmp_path):
    config = small(method, rounds=6)
    execute(config, tmp_path / "first")  # loads the data and wakes torch, so that its time says nothing
    started = time.perf_counter()
    execute(config, tmp_path / "whole")
    longest = time.perf_counter() - started
    random = stream(0, "kill", client=METHODS.index(method))
    kills, life = 0, 0
    for attempt in range(10):
        delay = random.uniform(0, longest) if attempt else 0.0
        if in_child(lambda out=tmp_path / f"killed-{life}": execute(config, out), delay) == 0:
            assert_same_run(tmp_path / "whole", tmp_path / f"killed-{life}")  # it ended before the kill came
            life, longest = life + 1, longest / 2
        else:
            kills += 1
    execute(config, tmp_path / f"killed-{life}")
    assert kills > 0
    assert_same_run(tmp_path / "whole", tmp_path / f"killed-{life}")


@pytest.mark.parametrize(("what", "step"), [("instead of a rename", 1), ("in the middle of a file", 3)])
def test_killed_at_every_write(what, step, tmp_path, monkeypatch):
    config = small(rounds=2)
    execute(config, tmp_path / "whole")
    for number in range(1, 100, step):
        out = tmp_path / f"killed-{number}"

        def run(number=number, out=out):
            if what == "instead of a rename":
                die_at(monkeypatch, ("replace", "rename"), number)
            else:
                die_at(monkeypatch, ("fsync",), number, mutilate=True)
            execute(config, out)

        code = in_child(run)
        assert code in (0, 99)
        execute(config, out)
        assert_same_run(tmp_path / "whole", out, states=code == 99)
        assert not list(out.rglob("*.tmp"))
        if code == 0:
            break
    assert number > 15


def test_killed_twice_in_the_same_place(tmp_path, monkeypatch):
    config = small("fedwavg(alpha=0.3)+wsm")
    execute(config, tmp_path / "whole")

    def run():
        die_at(monkeypatch, ("rename",), 2)
        execute(config, tmp_path / "killed")

    assert in_child(run) == 99  # after the checkpoint of round 1
    assert in_child(run) == 99  # after that of round 2
    done = execute(config, tmp_path / "killed")
    assert done.notes == ["went on from round 2"]
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_a_program_of_its_own(tmp_path):
    config = small("fedwavg(alpha=0.3)+scaffold@adam(lr=0.01)", rounds=400)
    (tmp_path / "exp.toml").write_text(config.to_toml())
    program = (
        "import sys; from pathlib import Path; from fedkeep.experiment import Config, execute\n"
        "from fedkeep.experiment.config import read_toml\n"
        "execute(Config(**read_toml(Path(sys.argv[1]))), Path(sys.argv[2]))"
    )
    source = str(Path(sys.modules["fedkeep"].__file__ or "").parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "exp.toml"), str(tmp_path / "killed")],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "segments" / "000003").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    reached = int(RunDirectory(tmp_path / "killed").segments.folders()[-1].name)
    assert reached >= 3
    # the rest of 400 rounds would take too long here: the state that was reached is compared
    short = small(config.method, rounds=reached)
    execute(short, tmp_path / "whole")
    whole = RunDirectory(tmp_path / "whole")
    state, meta, tables = RunDirectory(tmp_path / "killed").latest() or ({}, {}, {})
    assert meta["round"] == reached
    final = {**state["params"], **state["buffers"]}
    assert all(final[name].equal(tensor) for name, tensor in whole.model("final").items())
    for name in ("rounds", "clients"):
        ours, theirs = tables[name], whole.table(name)
        assert theirs is not None
        keep = [c for c in ours.column_names if c != "seconds"]
        assert repr(ours.select(keep).to_pydict()) == repr(theirs.select(keep).to_pydict())


@pytest.mark.parametrize("moment", ["server_round", "measure", "ask"])
def test_interrupted_inside_a_round(moment, tmp_path, monkeypatch):
    """Ctrl-C saves the last whole round, wherever inside the next one it comes."""
    config = small(checkpoint_every=1000)
    execute(small(), tmp_path / "whole")
    import fedkeep.simulate as simulate

    original, calls = getattr(simulate, moment), [0]

    def interrupted(*arguments, **more):
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return original(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(simulate, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(config, tmp_path / "stopped")
    done = execute(small(), tmp_path / "stopped")
    assert done.notes == ["went on from round 1"]
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize(("call", "kept"), [(3, 1), (4, 2)])
def test_interrupted_between_a_round_and_its_record(call, kept, tmp_path, monkeypatch):
    """A round is kept with its records or not at all; what was finished before it is kept."""
    execute(small(), tmp_path / "whole")
    from fedkeep.experiment.tables import History

    add, calls = History.add, [0]

    def interrupted(self, record):
        calls[0] += 1
        if calls[0] == call:  # round 2 has the third and the fourth: the records to save, those in memory
            raise KeyboardInterrupt
        add(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(History, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(small(checkpoint_every=1000), tmp_path / "stopped")
    done = execute(small(), tmp_path / "stopped")
    assert done.notes == [f"went on from round {kept}"]
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_interrupted_while_saving(tmp_path, monkeypatch):
    execute(small(), tmp_path / "whole")
    from fedkeep.experiment.segments import Segments

    write, calls = Segments.write, [0]

    def interrupted(self, *arguments):
        write(self, *arguments)
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(small(), tmp_path / "stopped")
    done = execute(small(), tmp_path / "stopped")
    assert done.notes == ["went on from round 2"]
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_the_saved_config_gives_the_same_run(tmp_path):
    execute(small("fedwavg(alpha=0.3)", lr=0.1 + 0.2, seed=7), tmp_path / "first")
    saved = Config(**read_toml(tmp_path / "first" / "config.toml"))
    assert saved.layout in ("rows", "channels-last")  # what "auto" came to
    assert saved == small("fedwavg(alpha=0.3)", lr=0.1 + 0.2, seed=7, layout=saved.layout)
    execute(saved, tmp_path / "second")
    assert_same_run(tmp_path / "first", tmp_path / "second")


def test_a_moved_run_goes_on(tmp_path, monkeypatch):
    config = small()
    execute(config, tmp_path / "whole")

    def run():
        die_at(monkeypatch, ("rename",), 3)
        execute(config, tmp_path / "here")

    assert in_child(run) == 99
    (tmp_path / "far").mkdir()
    (tmp_path / "here").rename(tmp_path / "far" / "there")
    execute(config, tmp_path / "far" / "there")
    assert_same_run(tmp_path / "whole", tmp_path / "far" / "there")


def test_speed_options_may_change_between_the_two_halves(tmp_path, monkeypatch):
    execute(small(), tmp_path / "whole")
    steps = Simulation.step

    def stop(self):
        if self.state.round == 2:
            raise KeyboardInterrupt
        return steps(self)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            execute(small(checkpoint_every=2), tmp_path / "other")
    execute(small(workers=2), tmp_path / "other")
    assert_same_run(tmp_path / "whole", tmp_path / "other")
