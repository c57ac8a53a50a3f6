"""`fedkeep deploy` on the command line; what it starts is tested in tests/deploy."""

from __future__ import annotations

import tomllib

import pytest

import fedkeep.cli.deploy as commands
from cli.cli_runner import ok, refused

SMALL = ("--clients", "3", "--limit", "100")


def test_help_lists_both_commands():
    text = ok("deploy", "--help").stdout
    assert "init" in text and "local" in text
    text = ok("deploy", "local", "--help").stdout
    for option in ("--probe", "--min-replies", "--dp-clip", "--encode", "--insecure", "--rounds", "--lr"):
        assert option in text


def test_without_flower_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    for words in (("init", tmp_path / "new", "fedavg"), ("local", "fedavg")):
        assert 'pip install "fedkeep[flower]"' in refused("deploy", *words)


def test_init_writes_a_folder_and_says_what_is_sent(tmp_path):
    pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')
    encodings = ("--encode", "delta=float16", "--encode", "dc=int8")
    text = ok("deploy", "init", tmp_path / "new", "scaffold", *SMALL, *encodings, "--min-replies", "2").stdout
    assert "control variate" in text and "dc is sent as 8-bit numbers" in text
    table = tomllib.loads((tmp_path / "new" / "superlink" / "app" / "pyproject.toml").read_text())
    config = table["tool"]["flwr"]["app"]["config"]
    assert (config["method"], config["clients"], config["min_replies"]) == ("scaffold", 3, 2)
    assert config["encode"] == "delta=float16, dc=int8"


def test_nonsense_is_refused_without_a_traceback(tmp_path):
    pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')
    assert 'did you mean "fedavg"' in refused("deploy", "init", tmp_path / "new", "fedagv")
    assert "this machine only" in refused(
        "deploy", "init", tmp_path / "new", "fedavg", "--insecure", "--address", "example.org:80"
    )
    assert "HOST:PORT" in refused("deploy", "init", tmp_path / "new", "fedavg", "--address", "example.org")
    assert "does not cover" in refused(
        "deploy", "local", "scaffold", *SMALL, "--dp-clip", "1", "--dp-noise", "1", "--forgetting", "off"
    )
