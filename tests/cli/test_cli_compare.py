"""`fedkeep compare` as a user sees it."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import fedkeep.report
from fedkeep.cli import Commands
from fedkeep.cli import compare as command
from fedkeep.cli.console import keep_whole, table
from fedkeep.simulate import Simulation

SMALL = ("--clients", "4", "--rounds", "2", "--local-epochs", "1", "--limit", "200", "--step", "eager", "--jobs", "1")


def call(*words: object, columns: int = 200) -> Any:
    app = typer.Typer(cls=Commands)
    command.register(app)

    @app.command()
    def nothing() -> None:
        """A second command, so that the first keeps its name."""

    result = CliRunner().invoke(app, ["compare", *map(str, words)], env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No questions to git, and no report but in the one test that looks for it."""
    module = sys.modules["fedkeep.experiment.run"]
    monkeypatch.setattr(module, "about", lambda command=None: {"command": command})
    monkeypatch.setattr(fedkeep.report, "write_report", lambda paths, out: out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def shown(folder):
    result = call("fedavg", "fedavg+wsm", "--seeds", 2, "--target", 0.05, "--out", folder, *SMALL)
    assert result.exit_code == 0, result.output
    return result


def test_the_table_and_where_everything_is(shown, folder):
    lines = shown.stdout.splitlines()
    heads = ["method", "final", "best", "rounds to 0.05", "forgetting", "up / down", "time", "vs fedavg", "p"]
    assert lines[0].split() == " ".join(heads).split()
    assert lines[1].startswith("fedavg ") and lines[2].startswith("fedavg+wsm ")
    assert "(2 of 2)" in lines[1] and "±" in lines[1] and "[" not in lines[1]
    assert "[" in lines[2]
    assert "mean of the last 2 rounds; 2 seeds" in shown.stdout
    summary = pd.read_csv(folder / "summary.csv")
    assert f"{summary['final'][0]:.3f}" in lines[1]
    assert f"{summary['difference'][1]:+.3f}" in lines[2]
    for name in ("comparison.csv", "summary.csv", "report.html"):
        assert str(folder / name) in shown.stdout
        assert (folder / name).stat().st_size > 100
    assert "run 4/4" in shown.stderr
    assert "sensitivity" not in shown.stdout


def test_a_narrow_terminal_gets_fewer_columns(shown, folder):
    result = call("fedavg", "fedavg+wsm", "--seeds", 2, "--out", folder, *SMALL, columns=80)
    assert result.stdout.splitlines()[0].split() == ["method", "final", "forgetting", "vs", "fedavg", "p"]


def test_json(shown, folder):
    result = call("fedavg", "fedavg+wsm", "--seeds", 2, "--out", folder, "--json", *SMALL)
    document = json.loads(result.stdout)
    assert [row["method"] for row in document["methods"]] == ["fedavg", "fedavg+wsm"]
    assert document["methods"][0]["p"] is None and 0 <= document["methods"][1]["p"] <= 1
    assert len(document["runs"]) == 4 and document["failures"] == {} and document["chosen_on"] is None
    assert Path(document["files"]["report"]).exists()


def test_a_sweep_says_how_settings_were_chosen(tmp_path):
    sweep = ("--set", "lr=0.05,0.2", "--set", "partition.alpha=0.1,10")
    result = call("fedavg", "fedavg+wsm", *sweep, "--seeds", 1, "--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.stdout.splitlines() if line.startswith("fedavg")]
    assert len(rows) == 4  # for each method and each condition the lr that validation data chose
    assert "lr of each method: the best on validation data" in result.stdout
    assert "one seed, so no intervals and no p-values" in result.stdout
    assert (tmp_path / "sensitivity.html").stat().st_size > 1000
    assert len(pd.read_csv(tmp_path / "sensitivity.csv")) == 12
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 8


def test_an_experiment_file_and_what_overrides_it(tmp_path):
    path = tmp_path / "exp.toml"
    path.write_text('methods = ["fedavg", "scaffold"]\nseeds = [4]\nrounds = 9\nclients = 4\n[set]\nlr = [0.1, 0.2]\n')
    result = call(path, "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 0, result.output
    saved = tomllib.loads((tmp_path / "out" / "comparison.toml").read_text())
    assert (saved["methods"], saved["seeds"], saved["rounds"]) == (["fedavg", "scaffold"], [4], 2)
    assert saved["set"] == {"lr": [0.1, 0.2]} and saved["limit"] == 200
    again = call(tmp_path / "out" / "comparison.toml", "--out", tmp_path / "out", "--jobs", 1)
    assert again.exit_code == 0
    assert [line for line in again.stdout.splitlines() if "±" in line] == [
        line for line in result.stdout.splitlines() if "±" in line
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fedagv",), 'did you mean "fedavg"'),
        (("fedavg", "--set", "lrr=1"), 'unknown option "lrr"'),
        (("fedavg", "--set", "lr"), "names no values"),
        (("fedavg", "--seeds", "0"), "seeds=0"),
        (("fedavg", "--jobs", "-1"), "jobs=-1"),
        (("exp.toml", "fedavg"), "give one experiment file, or methods, not both"),
        (("none.toml",), "no such file"),
    ],
)
def test_refusals(words, message, tmp_path):
    result = call(*words, "--out", tmp_path / "out")
    assert result.exit_code == 2 and message in result.stderr and result.stdout == ""
    assert not (tmp_path / "out" / "runs").exists()


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    for text, message in (
        ("rounds = 0", "rounds=0 is too small"),
        ("seeds = 0", "seeds=0"),
        ("[set]\nlrr = [1]", 'unknown option "lrr"'),
        ("round = 3", 'line 2: unknown option "round"'),
    ):
        (tmp_path / "exp.toml").write_text(f'methods = ["fedavg"]\n{text}')
        result = call(tmp_path / "exp.toml", "--out", tmp_path / "out")
        assert result.exit_code == 2 and message in result.stderr and "exp.toml" in result.stderr


def test_failures_are_named_and_the_rest_is_shown(tmp_path):
    result = call("fedavg", "--set", "lr=0.1,1e30", "--seeds", 1, "--out", tmp_path, *SMALL)
    assert result.exit_code == 1
    assert "1 run failed, not in the numbers:" in result.stdout
    assert "Lower the learning rate" in result.stdout
    assert "fedavg " in result.stdout
    nothing = call("fedavg", "--lr", "1e30", "--seeds", 1, "--out", tmp_path / "all", *SMALL)
    assert nothing.exit_code == 2 and "no run came to an end" in nothing.stderr


def test_interrupted_says_how_to_go_on(tmp_path, monkeypatch):
    step, calls = Simulation.step, []

    def interrupted(self):
        calls.append(self.seed)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", interrupted)
        result = call("fedavg", "scaffold", "--seeds", 2, "--out", tmp_path, *SMALL)
    assert result.exit_code == 130
    assert "Run the same command again" in result.stderr
    assert f"fedkeep compare {tmp_path}/comparison.toml --out {tmp_path}" in result.stderr
    again = call(tmp_path / "comparison.toml", "--out", tmp_path, "--jobs", 1)
    assert again.exit_code == 0
    assert "went on from round 1" in again.stderr


def test_labels_are_not_broken_where_others_can_be(capsys):
    labels = ["fedavg", "fedprox(mu=0.1)+tce"]
    for whole in (True, False):
        shown = table("method", "a", "b", numbers=("a", "b"))
        for label in labels:
            shown.add_row(label, "0.512 ± 0.013", "+0.104 [-0.021, +0.229]")
        keep_whole(shown, most=30 if whole else 10)
        Console(width=40).print(shown)
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith(labels[1]) for line in lines) == whole
        assert all(len(line) <= 40 for line in lines)
