"""`fedkeep demo`, with fewer methods and rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.cli_runner import call, document, ok
from fedkeep import grammar
from fedkeep.cli import demo
from fedkeep.experiment import Config
from fedkeep.experiment.jobs import Event, Job


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(demo, "METHODS", ("fedavg", "fedavg+wsm"))
    monkeypatch.setattr(demo, "SEEDS", 2)
    monkeypatch.setattr(demo, "SETTING", replace(demo.SETTING, rounds=2, clients=4, limit=200, workers=1))
    monkeypatch.setattr("fedkeep.experiment.compare.cores", lambda: 1)


def test_the_demonstration_is_the_one_that_is_promised():
    asked = [
        "fedavg",
        "fedavg+tce",
        "fedavg+wsm",
        "fedwavg(alpha=0.3)",
        "fedwagg(clusters=3)",
        "importance",
        "scaffold",
    ]
    assert [name if "importance" not in name else "importance" for name in demo.METHODS] == asked
    for name in demo.METHODS:
        grammar.parse(name)
    assert (demo.SETTING.data, demo.SETTING.partition) == ("digits", "dirichlet(alpha=0.1)")
    assert demo.SETTING.forgetting == "cohort"


def test_it_ends_with_a_table_and_a_report_and_reuses_what_is_finished(small, tmp_path, monkeypatch):
    first = ok("demo", "--out", tmp_path / "demo")
    assert "fedavg+wsm" in first.stdout
    assert "forgetting" in first.stdout
    report = tmp_path / "demo" / "report.html"
    assert str(report) in first.stdout
    assert report.read_text().lstrip().lower().startswith("<!doctype html>")
    models = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("final.safetensors")}
    assert len(models) == 4
    monkeypatch.setattr(demo, "page", lambda report: "")
    again = ok("demo", "--out", tmp_path / "demo")
    assert again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("final.safetensors")} == models


def test_for_programs(small, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "page", lambda report: "")  # drawing takes longer than all the rest
    told = document("demo", "--out", tmp_path / "demo")
    assert [row["method"] for row in told["methods"]] == ["fedavg", "fedavg+wsm"]
    assert len(told["runs"]) == 4


def test_interrupted_it_says_how_to_go_on(small, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "compare", interrupted)
    result = call("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 130
    assert "Run the same command again" in result.stderr


def test_a_run_that_fails_is_said_and_the_others_are_shown(capsys, tmp_path):
    from fedkeep.cli.progress import Runs

    job = Job("fedavg/seed-0", Config(), tmp_path)
    with Runs(runs=2, rounds=3) as listen:
        listen(Event(job, "failed", text="too hot"))
        listen(Event(job, "done"))
    told = capsys.readouterr().err
    assert "note: fedavg/seed-0 failed: too hot" in told
    assert "run 2/2" in told
