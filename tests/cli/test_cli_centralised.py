from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from fedkeep.centralised import centralised
from fedkeep.cli.centralised import register
from fedkeep.errors import ConfigError
from fedkeep.experiment import Config

OPTIONS = ["--data", "digits", "--limit", "100", "--clients", "2", "--lr", "0.2", "--seed", "3"]


def invoke(*arguments: str):
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, [*OPTIONS, *arguments])


def test_json_holds_what_python_gives() -> None:
    result = invoke("--epochs", "3", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    done = centralised(Config(limit=100, clients=2, lr=0.2, seed=3), epochs=3)
    assert document["config"]["lr"] == 0.2
    assert [row["accuracy"] for row in document["epochs"]] == done.frame()["accuracy"].tolist()
    assert document["summary"]["accuracy_events"] == done.events.accuracy
    assert document["summary"]["margin_events"] == done.events.margin


def test_the_table_names_both_kinds_of_events() -> None:
    result = invoke("--rounds", "2", "--local-epochs", "1", "--fraction", "1")
    assert result.exit_code == 0, result.output
    assert "2 over " in result.stdout
    assert "forgetting events, by accuracy" in result.stdout and "forgetting events, by margin" in result.stdout


def test_bad_values_are_refused() -> None:
    result = invoke("--epochs", "0")
    assert isinstance(result.exception, ConfigError)
    assert "epochs=0 is too small" in str(result.exception)
    assert invoke("--method", "fedavg").exit_code == 2  # there is no method to choose


@pytest.mark.parametrize("name", ["--epochs", "--batch-size", "--optimizer", "--model"])
def test_the_help_shows_the_options(name: str) -> None:
    assert name in invoke("--help").stdout
