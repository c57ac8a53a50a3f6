"""The options of a deployment."""

from __future__ import annotations

import pytest

from fedkeep.deploy.options import Options, deployed, from_run_config, to_run_config
from fedkeep.errors import ConfigError
from fedkeep.experiment import Config


def test_experiment_and_deployment_travel_together():
    config, options = Config(method="scaffold", clients=3), Options(min_replies=2, encode="dc=int8", names="a,b,c")
    table = to_run_config(config, options)
    assert all(isinstance(value, str | int | float | bool) for value in table.values())
    back = from_run_config(table)
    assert back == (deployed(config, options), options)
    assert back[0].identity() == config.identity()  # over a network the same is computed
    assert from_run_config(to_run_config(*back)) == back


def test_unknown_options_are_refused():
    with pytest.raises(ConfigError, match='did you mean "min_replies"'):
        from_run_config({"min_reples": 3})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_replies": 0}, "at least 1"),
        ({"min_replies": True}, "type bool"),
        ({"time_limit": 0}, "seconds above 0"),
        ({"time_limit": float("nan")}, "seconds above 0"),
        ({"start_wait": -1.0}, "seconds above 0"),
        ({"missing": "ignore"}, "known: skip, stop"),
        ({"probe": 1}, "type int"),
        ({"encode": "delta=zip"}, "zip"),
    ],
)
def test_nonsense_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        Options(**given)


@pytest.mark.parametrize(
    ("names", "words"),
    [("a,b", "lists 2 clients"), ("a,a,b", "given twice"), ("a,b,../c", "letters"), ("a,b,", "letters")],
)
def test_names_are_one_for_each_client(names, words):
    with pytest.raises(ConfigError, match=words):
        Options(names=names).client_names(3)
    assert Options(names="x, y,z").client_names(3) == ("x", "y", "z")
    assert Options().client_names(2) == ("client-0", "client-1")


def test_a_deployment_needs_a_number_of_clients():
    with pytest.raises(ConfigError, match="clients=0"):
        deployed(Config(clients=0), Options())


def test_own_examples_are_named_in_the_config():
    config = deployed(Config(clients=3), Options(load="data.py:load", shape="2", classes=2))
    assert (config.data, config.partition) == ("own:data.py:load", "natural")
