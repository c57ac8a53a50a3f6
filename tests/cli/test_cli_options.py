"""Options of the command line come from the fields of Config, and override files."""

from __future__ import annotations

from dataclasses import fields

import pytest

from cli.cli_runner import SMALL, call, document, ok, refused
from fedkeep.cli.options import FIELDS, PANELS, SPEED, flag, panel_of, resolve
from fedkeep.errors import ConfigError
from fedkeep.experiment import Config


def test_every_field_stands_in_exactly_one_panel():
    placed = [name for names in PANELS.values() for name in names]
    assert sorted(placed) == sorted(item.name for item in fields(Config))


def test_a_field_without_a_panel_is_still_shown_somewhere():
    assert panel_of("something new") == "More"


def test_help_names_every_option_with_its_default():
    text = " ".join(ok("run", "--help", columns=200).stdout.replace("│", " ").split())
    for name, item in FIELDS.items():
        assert f"{flag(name)} " in text
        if item.default != "" and name != "method":
            assert f"[default: {item.default}]" in text
    for name in ("--data-root", "--local-epochs", "--local-steps", "--batch-size", "--weight-decay", "--out", "--json"):
        assert f"{name} " in text


def test_resume_takes_the_options_that_change_no_result():
    assert {"workers", "engine", "ray_address", "device", "step", "checkpoint_every"} <= set(SPEED)
    text = ok("resume", "--help").stdout
    assert "--workers" in text
    assert "--lr" not in text


def test_what_is_not_given_keeps_its_default():
    assert resolve("fedavg", {}) == Config()


def test_the_method_is_brought_into_canonical_form():
    assert resolve(" fedprox( mu=0.010 ) + wsm ", {}).method == "fedprox(mu=0.01)+wsm"


def test_command_line_over_file_over_default(tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text('method = "fedavg+wsm"\nlr = 0.5\nrounds = 7\n')
    config = resolve(str(file), {"lr": 0.25, "seed": 0})
    assert (config.method, config.lr, config.rounds, config.batch_size) == ("fedavg+wsm", 0.25, 7, 32)


def test_an_option_equal_to_the_default_still_overrides_the_file(tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text("lr = 0.5\n")
    assert resolve(str(file), {"lr": FIELDS["lr"].default}).lr == FIELDS["lr"].default


def test_a_file_runs_with_another_method(tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text('method = "fedavg"\n')
    assert resolve(str(file), {"method": "scaffold"}).method == "scaffold"


def test_two_methods_are_refused():
    with pytest.raises(ConfigError, match="two methods"):
        resolve("fedavg", {"method": "scaffold"})


def test_a_run_directory_is_no_method(tmp_path, monkeypatch):
    (tmp_path / "fedavg").mkdir()
    (tmp_path / "fedavg" / "config.toml").write_text("")
    with pytest.raises(ConfigError, match="fedkeep resume"):
        resolve(str(tmp_path / "fedavg"), {})
    monkeypatch.chdir(tmp_path)
    assert resolve("fedavg", {}) == Config()


def test_the_place_of_an_unknown_key_is_named(tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text('method = "fedavg"\nroundz = 3\n')
    message = refused("run", file)
    assert f"{file}, line 2" in message
    assert 'did you mean "rounds"?' in message


def test_a_bad_value_in_a_file_names_the_file(tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text("rounds = 0\n")
    message = refused("run", file)
    assert str(file) in message
    assert "rounds=0" in message


def test_a_missing_or_broken_file_is_refused(tmp_path):
    assert "no such file" in refused("run", tmp_path / "none.toml")
    (tmp_path / "half.toml").write_text('method = "fed')
    assert "half.toml" in refused("run", tmp_path / "half.toml")


def test_options_reach_the_run():
    config = document("run", "fedavg", *SMALL, "--lr", "0.25", "--optimizer", "adam", "--forgetting", "off")["config"]
    assert (config["lr"], config["optimizer"], config["forgetting"], config["clients"]) == (0.25, "adam", "off", 4)


def test_an_unknown_option_is_refused_with_a_hint():
    result = call("run", "fedavg", "--learning-rat", "0.1")
    assert result.exit_code == 2
    assert "--learning-rat" in result.stderr
