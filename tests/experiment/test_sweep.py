"""Grids, what is chosen from them, and the sensitivity view."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from fedkeep.errors import ConfigError
from fedkeep.experiment.config import Config
from fedkeep.experiment.sweep import Arm, checked_sets, choose, grid, is_tuned, parse_sets, sensitivity, slug

BASE = Config()


def test_every_method_with_every_combination():
    arms = grid(["fedavg", "fedavg+wsm"], {"lr": [0.1, 1], "partition.alpha": [0.5, 5]}, BASE)
    assert len(arms) == 8
    assert [arm.label for arm in arms] == ["fedavg"] * 4 + ["fedavg+wsm"] * 4
    assert arms[1].setting == (("lr", 0.1), ("partition.alpha", 5))
    assert (arms[3].config.lr, arms[3].config.partition) == (1.0, "dirichlet(alpha=5)")
    assert arms[1].condition == (("partition.alpha", 5),)
    assert len({arm.folder for arm in arms}) == 8


def test_options_of_a_method_are_swept_where_it_has_them():
    arms = grid(["fedavg", "fedprox(mu=0.5)+wsm"], {"method.mu": [0.1, 10]}, BASE)
    assert [(arm.label, arm.config.method) for arm in arms] == [
        ("fedavg", "fedavg"),
        ("fedprox(mu=*)+wsm", "fedprox(mu=0.1)+wsm"),
        ("fedprox(mu=*)+wsm", Config(method="fedprox(mu=10)+wsm").method),
    ]
    with pytest.raises(ConfigError, match="no method here has mu"):
        grid(["fedavg"], {"method.mu": [1]}, BASE)


def test_a_method_given_twice_keeps_its_runs_and_gets_a_number():
    arms = grid(["fedavg", "fedavg", " fedavg "], {}, BASE)
    assert [arm.label for arm in arms] == ["fedavg", "fedavg (2)", "fedavg (3)"]
    assert {arm.folder for arm in arms} == {"fedavg"}


def test_folders_are_readable_and_harmless():
    assert slug("fedprox(mu=0.01)+tce@adam(lr=0.1, tau=1e-05)") == "fedprox-mu-0.01+tce@adam-lr-0.1-tau-1e-05"
    hostile = slug("../../etc, $(rm -r *)\n/")
    assert re.fullmatch(r"[A-Za-z0-9._+@,-]+", hostile) and "/" not in hostile
    assert slug("a/b") != slug("a_b") and slug("a/b") != slug("a:b")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"lrr": [1]}, 'unknown option "lrr": did you mean "lr"'),
        ({"method": ["fedavg"]}, "method cannot be swept; name several methods instead"),
        ({"seed": [1, 2]}, "seed cannot be swept; use seeds instead"),
        ({"workers": [1, 2]}, "changes nothing that is computed"),
        ({"target": [0.5]}, "changes nothing that is computed"),
        ({"lr": [0.1, 0.1]}, "a value twice"),
        ({"lr": []}, "no value"),
    ],
)
def test_senseless_sets_are_refused(sets, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked_sets(sets)


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["lr"], "names no values"), (["lr="], "names no values"), (["lr=1", "lr=2"], "given twice")],
)
def test_senseless_set_options_are_refused(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_sets(texts)


def test_values_that_a_config_refuses():
    with pytest.raises(ConfigError, match="fraction=2"):
        grid(["fedavg"], {"fraction": [0.5, 2.0]}, BASE)
    with pytest.raises(ConfigError, match="rounds='many'"):
        grid(["fedavg"], {"rounds": ["many"]}, BASE)
    with pytest.raises(ConfigError, match="no method to compare"):
        grid([], {}, BASE)


def test_tables_of_a_file_are_taken_apart():
    assert checked_sets({"partition": {"alpha": [0.1, 1]}, "lr": 0.1}) == {"partition.alpha": [0.1, 1], "lr": [0.1]}


def test_what_may_be_chosen():
    assert all(is_tuned(key) for key in ("lr", "weight_decay", "method.mu"))
    assert not any(is_tuned(key) for key in ("partition.alpha", "local_epochs", "fraction", "clients", "data", "model"))


def arms_of(*settings: dict) -> list[Arm]:
    return [Arm("fedavg", tuple(setting.items()), BASE) for setting in settings]


def test_the_best_on_validation_data_is_chosen():
    arms = arms_of({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3})
    assert choose(arms, {0: [0.5, 0.6], 1: [0.7, 0.6], 2: [0.1, 0.9]}) == [1]
    assert choose(arms, {0: [0.5, 0.5], 1: [0.5, 0.5], 2: [0.5, 0.5]}) == [0]  # a tie goes to the first
    assert choose(arms, {0: [0.5, 0.5], 1: [0.9], 2: []}) == [0]  # a lucky survivor does not win
    assert choose(arms, {1: [0.2]}) == [1]
    assert choose(arms, {}) == []


def test_conditions_are_never_chosen():
    arms = arms_of({"lr": 1, "clients": 5}, {"lr": 2, "clients": 5}, {"lr": 1, "clients": 9}, {"lr": 2, "clients": 9})
    assert choose(arms, {0: [0.1], 1: [0.2], 2: [0.9], 3: [0.8]}) == [1, 2]


def test_sensitivity_by_hand():
    arms = arms_of({"lr": 1, "clients": 5}, {"lr": 2, "clients": 5}, {"lr": 1, "clients": 9}, {"lr": 2, "clients": 9})
    frame = pd.DataFrame(
        {
            "arm": [0, 0, 1, 1, 2, 2, 3, 3],
            "validation": [0.1, 0.1, 0.2, 0.2, 0.9, 0.9, 0.8, 0.8],
            "final": [0.3, 0.5, 0.1, 0.1, 0.6, 0.6, 0.7, 0.7],
        }
    )
    table = sensitivity(arms, frame)
    lr = table[table["option"] == "lr"]
    assert lr[["value", "at", "final"]].values.tolist() == [
        [1, "clients=5", 0.4],
        [2, "clients=5", 0.1],
        [1, "clients=9", 0.6],
        [2, "clients=9", 0.7],
    ]
    clients = table[table["option"] == "clients"]
    # lr is chosen on validation data, although the test data would have it otherwise
    assert clients[["value", "chosen", "at", "final"]].values.tolist() == [[5, "lr=2", "", 0.1], [9, "lr=1", "", 0.6]]
    assert lr["final_high"].iloc[0] == pytest.approx(0.4 + 12.706 * 0.1, abs=1e-3)  # t(1) = 12.706, s = sqrt(0.02)
    assert set(table["seeds"]) == {2}
