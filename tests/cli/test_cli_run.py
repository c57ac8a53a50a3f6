"""`fedkeep run` and `fedkeep resume`: the same as in Python, interrupted and resumed, and what they say."""

from __future__ import annotations

import json
import math
import signal
import sys

import numpy as np
import pytest

import fedkeep as fk
from cli.cli_runner import SMALL, call, document, ok, process, refused
from fedkeep.cli.progress import Watcher
from fedkeep.simulate import RoundRecord

OPTIONS = {"clients": 4, "rounds": 2, "local_epochs": 1, "limit": 200, "workers": 1}


def same_but_for_time(ours, theirs):
    """Rounds are equal in every number that is not a time."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for key in mine.keys() - {"seconds"}:
            left, right = (math.nan if value is None else value for value in (mine[key], other[key]))
            assert left == right or (math.isnan(left) and math.isnan(right)), key


def test_command_line_file_and_python_run_the_same_experiment(tmp_path):
    in_python = fk.run("fedavg+wsm", seed=3, **OPTIONS)
    on_command_line = document("run", "fedavg+wsm", *SMALL, "--seed", "3")
    file = tmp_path / "exp.toml"
    file.write_text(in_python.config.to_toml())
    from_file = document("run", file)
    same_but_for_time(on_command_line["rounds"], in_python.rounds)
    same_but_for_time(from_file["rounds"], in_python.rounds)
    assert on_command_line["config"]["seed"] == 3


def test_json_is_all_there_is_and_strict():
    result = ok("run", "fedavg", *SMALL, "--json")
    told = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(told) == {"config", "summary", "rounds", "directory", "notes", "peak_memory"}
    assert told["summary"]["rounds_to_target"] is None
    assert result.stderr == ""


def test_a_million_clients_on_the_command_line():
    given = ("--population", "1000000", "--cohort", "4", "--online", "0.5", "--dropout", "0.1", "--slow", "0.2")
    result = ok("run", "scaffold+wsm", *given, "--rounds", "2", "--cache-mb", "0.1", "--workers", "1")
    assert "4 of 1000000 clients" in result.stderr
    assert "peak memory" in result.stdout


def test_the_summary_shows_what_the_records_hold():
    result = ok("run", "fedavg", *SMALL, "--target", "0.99")
    done = fk.run("fedavg", **OPTIONS)
    assert f"{np.mean([row['accuracy'] for row in done.rounds]):.4f}" in result.stdout
    assert f"{max(row['accuracy'] for row in done.rounds):.4f}" in result.stdout
    assert f"{np.mean([row['forgetting'] for row in done.rounds]):.4f}" in result.stdout
    assert "rounds to 0.99" in result.stdout
    assert "never" in result.stdout
    assert "--out DIR" in result.stdout


def test_progress_shows_each_round_with_accuracy_and_forgetting():
    lines = ok("run", "fedavg", *SMALL).stderr.splitlines()
    assert lines[0] == "fedavg on digits, dirichlet(alpha=0.1): 2 rounds, 2 of 4 clients in each"
    assert lines[1].startswith("fedavg: round 1/2, accuracy ")
    assert "forgetting" in lines[1]
    assert lines[1].endswith(" left")
    assert not lines[2].endswith(" left")


def test_without_measuring_nothing_is_said_of_forgetting():
    result = ok("run", "fedavg", *SMALL, "--forgetting", "off")
    assert "forgetting" not in result.stdout
    assert "forgett" not in result.stderr


def test_a_finished_run_says_so_and_is_not_run_again(tmp_path):
    out = tmp_path / "run"
    first = ok("run", "fedavg", *SMALL, "--out", out)
    assert f"fedkeep report {out}" in first.stdout
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    lines = [line for line in first.stdout.splitlines() if not line.startswith("peak memory")]
    assert len(lines) == len(first.stdout.splitlines()) - 1  # what it took was not written down
    for words in (("run", "fedavg", *SMALL, "--out", out), ("resume", out)):
        again = ok(*words)
        assert again.stdout.splitlines() == lines
        assert "nothing was run" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")} == before


def test_another_experiment_in_the_same_directory_is_refused(tmp_path):
    ok("run", "fedavg", *SMALL, "--out", tmp_path / "run")
    message = refused("run", "fedavg", *SMALL, "--lr", "0.5", "--out", tmp_path / "run")
    assert "another experiment" in message
    assert "lr" in message


def interrupt_after(monkeypatch, round):
    shown = Watcher.__call__

    def listen(self, record):
        shown(self, record)
        if record.round == round:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watcher, "__call__", listen)


@pytest.mark.parametrize("again", ("run", "resume"))
def test_interrupted_says_how_to_go_on_and_ends_equal(tmp_path, monkeypatch, again):
    words = ("run", "scaffold", *SMALL, "--rounds", "4", "--out")
    ok(*words, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        stopped = call(*words, tmp_path / "cut")
    assert stopped.exit_code == 130
    assert "interrupted after round 2" in stopped.stderr
    assert "Run the same command again" in stopped.stderr
    assert f"fedkeep resume {tmp_path / 'cut'}" in stopped.stderr
    went_on = ok(*words, tmp_path / "cut") if again == "run" else ok("resume", tmp_path / "cut")
    assert "round 3/4" in went_on.stderr
    assert "round 2/4" not in went_on.stderr
    for name in ("final.safetensors", "best.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_interrupted_without_a_directory_says_what_would_have_helped(monkeypatch):
    interrupt_after(monkeypatch, 1)
    stopped = call("run", "fedavg", *SMALL)
    assert stopped.exit_code == 130
    assert "nothing was saved" in stopped.stderr
    assert "--out DIR" in stopped.stderr


def test_what_parts_warn_of_is_one_note():
    told = ok("run", "scaffold", *SMALL, "--momentum", "0.9", "--json")
    notes = [line for line in told.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert "momentum=0.9" in notes[0]


def test_a_client_without_a_finite_update_is_named_as_it_happens(capsys):
    with Watcher("fedavg", 2, quiet=True) as watch:
        for left_out in ((3,), (1, 4)):
            watch(RoundRecord(1, (1, 3, 4), 0.5, 1.0, 0.5, 0.1, 0, 0, left_out))
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "note: round 1: client 3 left out, the update was not finite"
    assert "clients 1, 4 left out" in told[1]


def test_when_all_updates_are_useless_the_run_stops_and_keeps_the_last_good_model(tmp_path):
    result = call("run", "fedavg", *SMALL, "--lr", "1e30", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "Lower the learning rate" in result.stderr
    assert f"in {tmp_path / 'run'}" in result.stderr
    assert (tmp_path / "run" / "final.safetensors").exists()


def test_a_real_interrupt_of_a_real_process(tmp_path):
    words = ("run", "fedavg", "--clients", "4", "--limit", "200", "--rounds", "100000", "--workers", "1")
    with process(*words, "--out", tmp_path / "run") as running:
        assert running.stderr is not None
        line = running.stderr.readline()  # the headline comes when the first round is done
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    assert "100000 rounds" in line
    assert running.returncode == 130
    assert "interrupted after round" in told
    assert "Traceback" not in told


def test_a_real_process_refuses_without_a_traceback():
    with process("run", "fedagv") as bad:
        out, told = bad.communicate(timeout=60)
    assert (bad.returncode, out) == (2, "")
    assert told.startswith('error: unknown method "fedagv"')


def test_it_says_its_version():
    assert ok("--version").stdout == f"fedkeep {fk.__version__}\n"


def test_a_reader_that_leaves_early_is_no_error():
    with process("methods") as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        told = listing.stderr.read()
        listing.wait(timeout=60)
    assert "Traceback" not in told
    assert "Exception" not in told


def test_an_unknown_tracker_or_a_missing_one_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert 'did you mean "tensorboard"?' in refused("run", "fedavg", *SMALL, "--track", "tensorbord")
    assert "fedkeep[wandb]" in refused("run", "fedavg", *SMALL, "--track", "wandb")
