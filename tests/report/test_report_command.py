"""`fedkeep report` and `fedkeep figure`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedkeep.cli.report import register
from fedkeep.errors import RunError

app = typer.Typer()
register(app)


def call(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_report_is_written_and_its_path_is_said(runs: Path, tmp_path: Path) -> None:
    done = call("report", runs, "-o", tmp_path / "r.html")
    assert done.exit_code == 0 and "r.html" in done.stdout.replace("\n", "")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_text_and_json_write_no_file(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Who forgets whom" in call("report", runs, "--text").stdout
    document = json.loads(call("report", runs / "fedavg-0", runs / "fedavg+wsm-0", "--json").stdout)
    base, other = document["series"]
    assert (base["series"], base["baseline"], other["baseline"]) == ("fedavg", None, "fedavg")
    gain = other["accuracy_gain"]["mean"]
    assert gain == pytest.approx(other["accuracy"]["mean"] - base["accuracy"]["mean"])
    assert other["accuracy_gain"]["seeds"] == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    done = call("report", tmp_path / "nothing")
    assert isinstance(done.exception, RunError) and "nothing" in str(done.exception)


def test_a_figure_is_written(runs: Path, tmp_path: Path) -> None:
    done = call("figure", runs / "fedavg-0", "--kind", "heatmap", "--round", 2, "-o", tmp_path / "f.html")
    assert done.exit_code == 0 and (tmp_path / "f.html").exists()
