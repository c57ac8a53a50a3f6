"""Paired comparisons: equal where they must be, never run twice, and honest about what failed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiment.kill_and_compare import small
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.build import prepare
from fedkeep.experiment.compare import NUMBERS, Comparison, compare, share_cores
from fedkeep.experiment.comparison_file import default_out, read_comparison, seeds_of, to_toml
from fedkeep.experiment.config import Config
from fedkeep.experiment.run import execute
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.sweep import Arm
from fedkeep.simulate import Simulation

BASE = small("fedavg", rounds=2, checkpoint_every=0)


def quick(methods, out: Path, seeds=2, **more) -> Comparison:
    return compare(methods, seeds, more.pop("base", BASE), out, jobs=1, **more)


def test_equal_methods_differ_by_exactly_nothing(tmp_path):
    """fedprox(mu=0) is FedAvg, written otherwise and run by itself; the third is the first once more."""
    found = quick(["fedavg", "fedprox(mu=0)", "fedavg", "fedavg+wsm"], tmp_path, seeds=3)
    table = found.table().set_index("method")
    first, *others = table.index
    for other in others[:2]:
        row = table.loc[other]
        assert (row["difference"], row["difference_low"], row["difference_high"], row["p"]) == (0, 0, 0, 1)
        for name in set(NUMBERS) - {"seconds"}:
            assert row[name] == table.loc[first, name] or math.isnan(row[name])
    assert table.loc["fedavg+wsm", "difference"] != 0
    assert math.isnan(table.loc[first, "difference"]) and math.isnan(table.loc[first, "p"])
    assert len(list((tmp_path / "runs").glob("*/seed-*"))) == 9  # the repeated method is not run again
    assert found.frame.groupby("method")["seed"].apply(list).tolist() == [[0, 1, 2]] * 4


def test_methods_with_one_seed_share_partition_weights_and_cohorts(tmp_path, monkeypatch):
    methods = ("fedavg", "scaffold+wsm", "fedwavg(alpha=0.3)", "fedprox(mu=1)+tce@adam(lr=0.1)", "importance(lam=10)")
    for seed in (0, 7):
        made = [prepare(replace(BASE, method=method, seed=seed)) for method in methods]
        for one in made[1:]:
            for client in range(len(made[0].population)):
                assert (one.population.train.indices(client) == made[0].population.train.indices(client)).all()
                assert (one.population.held_out.indices(client) == made[0].population.held_out.indices(client)).all()
            for left, right in zip(one.model.initial(), made[0].model.initial(), strict=True):
                assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    cohorts: dict[str, list] = {}
    step = Simulation.step

    def remember(self):
        record = step(self)
        cohorts.setdefault(str(self.method), []).append(record.cohort)
        return record

    monkeypatch.setattr(Simulation, "step", remember)
    quick(methods, tmp_path, seeds=1)
    schedules = list(cohorts.values())
    assert len(schedules) == len(methods) and all(schedule == schedules[0] for schedule in schedules)
    assert len(set(schedules[0])) == 2  # and they do change from round to round


def test_seeds_differ():
    one, other = (prepare(replace(BASE, seed=seed)) for seed in (0, 1))
    left, right = one.model.initial()[0], other.model.initial()[0]
    assert any(not torch.equal(left[name], right[name]) for name in left)


def test_budgets_are_equal(tmp_path):
    found = quick(["fedavg", "scaffold"], tmp_path, seeds=1, sets={"local_epochs": [1, 2]})
    configs = [RunDirectory(path).config() for path in found.paths]
    plans = {(c.method, c.local_epochs): (c.plan, c.rounds, c.fraction) for c in configs}
    assert plans["fedavg", 1] == plans["scaffold", 1] and plans["fedavg", 2] == plans["scaffold", 2]


def test_finished_runs_are_not_run_again_and_interrupted_ones_go_on(tmp_path, monkeypatch):
    quick(["fedavg"], tmp_path)
    rounds = []
    step = Simulation.step

    def interrupt_wsm(self):
        record = step(self)
        rounds.append((type(self.method.loss).__name__, self.seed, record.round))
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return record

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", interrupt_wsm)
        with pytest.raises(KeyboardInterrupt):
            quick(["fedavg", "fedavg+wsm"], tmp_path)
    # the run of seed 0 ended; that of seed 1 was interrupted in its first round
    heard = []
    found = quick(["fedavg", "fedavg+wsm"], tmp_path, listen=heard.append)
    assert {name for name, *_ in rounds} == {"WeightedSoftmax"}
    again = [(event.job.name, event.round) for event in heard if event.kind == "round"]
    assert again == [("fedavg+wsm/seed-1", 1), ("fedavg+wsm/seed-1", 2)]
    ended = [(event.job.name, event.text) for event in heard if event.kind == "done"]
    assert len(ended) == 4 and ("fedavg/seed-0", "finished already") in ended
    alone = quick(["fedavg+wsm"], tmp_path / "alone")
    ours = found.frame[found.frame["method"] == "fedavg+wsm"].drop(columns=["arm", "seconds"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(ours, alone.frame.drop(columns=["arm", "seconds"]), check_exact=True)


def test_a_failing_run_does_not_stop_the_others(tmp_path):
    heard = []
    found = quick(["fedavg", "fedavg+wsm"], tmp_path, sets={"lr": [0.1, 1e30]}, listen=heard.append)
    assert sum(name.startswith("fedavg,lr-1e") for name in found.failures) == 2
    assert all("lr-1e" in name and "finite" in why for name, why in found.failures.items())
    table = found.table()
    assert table.loc[table["lr"] == 0.1, "seeds"].tolist() == [2, 2]
    assert table.loc[table["chosen"], "lr"].tolist() == [0.1, 0.1]
    assert {event.kind for event in heard} == {"begun", "round", "done", "failed"}
    again = quick(["fedavg", "fedavg+wsm"], tmp_path, sets={"lr": [0.1, 1e30]})
    assert again.failures.keys() == found.failures.keys()
    assert all("no usable update" in why for why in again.failures.values())


def test_a_defect_in_a_part_is_a_failure_with_its_traceback_in_the_log(tmp_path, monkeypatch):
    step = Simulation.step

    def broken(self):
        if self.seed == 1:
            raise ZeroDivisionError("a defect")
        return step(self)

    monkeypatch.setattr(Simulation, "step", broken)
    found = quick(["fedavg"], tmp_path)
    assert found.failures.keys() == {"fedavg/seed-1"}
    assert "ZeroDivisionError: a defect" in found.failures["fedavg/seed-1"]
    assert "Traceback" in (tmp_path / "runs" / "fedavg" / "seed-1" / "log.txt").read_text()
    assert found.table()["seeds"].tolist() == [1] and found.table()["failed"].tolist() == [1]


def test_a_damaged_run_is_named(tmp_path):
    quick(["fedavg", "scaffold"], tmp_path)
    (tmp_path / "runs" / "scaffold" / "seed-1" / "rounds.parquet").write_bytes(b"")
    (tmp_path / "runs" / "scaffold" / "seed-0" / "sums.json").write_bytes(b"{}")
    found = quick(["fedavg", "scaffold"], tmp_path)
    assert found.failures.keys() == {"scaffold/seed-0", "scaffold/seed-1"}
    assert "sums.json" in found.failures["scaffold/seed-0"]
    assert "rounds.parquet" in found.failures["scaffold/seed-1"]
    assert found.table()["seeds"].tolist() == [2, 0]


def test_what_cannot_run_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="clusters"):
        quick(["fedavg", "fedwagg(clusters=50)"], tmp_path / "a")
    assert not (tmp_path / "a" / "runs").exists()
    quick(["fedavg"], tmp_path / "b")
    with pytest.raises(RunError, match="holds another experiment"):
        quick(["scaffold", "fedavg"], tmp_path / "b", base=replace(BASE, lr=0.7))
    assert not (tmp_path / "b" / "runs" / "scaffold").exists()


def test_a_folder_of_somebody_else(tmp_path):
    (tmp_path / "summary.csv").write_text("mine")
    with pytest.raises(RunError, match=r"holds other files \(summary\.csv"):
        quick(["fedavg"], tmp_path)
    assert (tmp_path / "summary.csv").read_text() == "mine"
    with pytest.raises(RunError, match="is a file"):
        quick(["fedavg"], tmp_path / "summary.csv")


def made_up(finals: dict[str, list[float]], validation: dict[str, list[float]] | None = None, **columns) -> Comparison:
    """A comparison with known numbers; keys are "method" or "method|lr"."""
    arms, rows = [], []
    for place, (key, values) in enumerate(finals.items()):
        label, _, lr = key.partition("|")
        setting = (("lr", float(lr)),) if lr else ()
        arms.append(Arm(label, setting, BASE))
        judged = (validation or {}).get(key, values)
        for seed, (final, held) in enumerate(zip(values, judged, strict=True)):
            numbers = {name: math.nan for name in NUMBERS} | {"final": final, "validation": held}
            rows.append(
                {"arm": place, "method": label, "seed": seed, "directory": f"{key}/{seed}", **numbers, **dict(setting)}
            )
    frame = pd.DataFrame(rows).assign(**columns)
    return Comparison(tuple(arms), tuple(range(len(values))), BASE, Path("nowhere"), frame.dropna(subset="final"), {})


def test_the_table_by_hand():
    found = made_up(
        {"a": [0.5, 0.6, 0.7, 0.6], "b": [0.53, 0.62, 0.74, 0.61], "c": [0.5, 0.6, 0.7, 0.6]},
        rounds_to_target=[3, 5, math.nan, math.nan] * 3,
    )
    table = found.table().set_index("method")
    # b - a is 0.03 0.02 0.04 0.01: mean 0.025, s^2 = 0.0005/3, t = 0.025 / sqrt(s^2/4) = 3.873, p = 0.0305
    assert table.loc["b", "difference"] == pytest.approx(0.025)
    assert table.loc["b", "p"] == pytest.approx(2 * 0.0305, abs=2e-4)  # two comparisons
    assert table.loc["c", "p"] == 1
    assert table.loc["a", ["final", "rounds_to_target", "reached_target"]].tolist() == pytest.approx([0.6, 4, 2])
    half = 3.1824 * np.std([0.5, 0.6, 0.7, 0.6], ddof=1) / 2
    assert table.loc["a", "final_high"] - 0.6 == pytest.approx(half, abs=1e-5)


def test_pairs_are_of_one_seed():
    """A seed that is missing on one side is left out on both."""
    found = made_up({"a": [0.5, 0.6, math.nan, 0.1], "b": [math.nan, 0.7, 0.9, 0.3]})
    row = found.table().set_index("method").loc["b"]
    assert row["pairs"] == 2 and row["difference"] == pytest.approx(0.15)
    assert row["failed"] == 1


def test_one_seed_has_numbers_but_no_intervals():
    row = made_up({"a": [0.5], "b": [0.6]}).table().set_index("method").loc["b"]
    assert row["difference"] == pytest.approx(0.1)
    assert all(math.isnan(row[name]) for name in ("difference_low", "p", "final_low", "final_high"))


def test_settings_are_chosen_on_validation_data_and_reported_on_test_data():
    """a is better on the test data with lr=2, but validation data says 1; the difference is that of the chosen ones."""
    found = made_up(
        {"a|1": [0.5, 0.5], "a|2": [0.9, 0.9], "b|1": [0.1, 0.1], "b|2": [0.7, 0.6]},
        validation={"a|1": [0.8, 0.8], "a|2": [0.7, 0.7], "b|1": [0.2, 0.2], "b|2": [0.3, 0.3]},
    )
    table = found.table()
    assert table["chosen"].tolist() == [True, False, False, True]
    assert table["difference"].tolist() == pytest.approx([math.nan, math.nan, math.nan, 0.15], nan_ok=True)
    assert "lr of each method: the best on validation data" in found.how_chosen
    assert "test data" in found.how_chosen
    assert found.chosen_paths == [
        Path("nowhere/a|1/0"),
        Path("nowhere/a|1/1"),
        Path("nowhere/b|2/0"),
        Path("nowhere/b|2/1"),
    ]


def test_conditions_are_compared_each_by_itself(tmp_path):
    found = quick(["fedavg", "fedavg+wsm"], tmp_path, sets={"partition.alpha": [0.1, 10]})
    table = found.table()
    assert table["chosen"].all() and found.how_chosen == ""
    finals = found.frame.pivot_table(index="seed", columns=["method", "partition.alpha"], values="final")
    for alpha in (0.1, 10):
        row = table[(table["method"] == "fedavg+wsm") & (table["partition.alpha"] == alpha)].iloc[0]
        gap = finals["fedavg+wsm", alpha] - finals["fedavg", alpha]
        assert row["difference"] == pytest.approx(gap.mean())


def test_tables_on_disk(tmp_path):
    found = quick(["fedavg", "fedavg+wsm"], tmp_path, sets={"lr": [0.1, 0.2]})
    paths = found.to_csv()
    assert [path.name for path in paths] == ["comparison.csv", "summary.csv", "sensitivity.csv"]
    runs, summary, sensitivity = (pd.read_csv(path) for path in paths)
    assert (len(runs), len(summary), len(sensitivity)) == (8, 4, 4)
    assert list(runs.columns[:4]) == ["method", "name", "lr", "seed"]
    assert runs["final"].tolist() == found.frame["final"].tolist()
    assert summary["chosen"].sum() == 2
    row = found.frame.iloc[0]
    again = execute(replace(BASE, method="fedavg", lr=0.1), tmp_path / row["directory"])
    assert again.summary()["final"] == row["final"]


def test_a_comparison_is_a_file(tmp_path):
    first = quick(
        ["fedavg", "fedprox( mu = 0.10 )"], tmp_path / "a", seeds=[3, 1], sets={"partition": {"alpha": [1, 2]}}
    )
    table = read_comparison(tmp_path / "a" / "comparison.toml")
    assert table["seeds"] == [3, 1] and table["set"] == {"partition.alpha": [1, 2]}
    methods, seeds, sets = table.pop("methods"), table.pop("seeds"), table.pop("set")
    second = quick(methods, tmp_path / "b", seeds=seeds, sets=sets, base=Config(**table))
    drop = ["seconds"]
    pd.testing.assert_frame_equal(first.frame.drop(columns=drop), second.frame.drop(columns=drop), check_exact=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('methods = "fedavg"', "give a list of names"),
        ("methods = []", "give a list of names"),
        ("rounds = 3", "give a list of names"),
        ('methods = ["fedavg"]\nmethod = "fedavg"', "both method and methods"),
        ('methods = ["fedavg"]\nset = 3', "write a table"),
        ('methods = ["fedavg"]\nseed_s = 3', 'line 2: unknown option "seed_s": did you mean "seeds"'),
    ],
)
def test_senseless_files_are_refused(tmp_path, text, message):
    (tmp_path / "exp.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        table = read_comparison(tmp_path / "exp.toml")
        quick(table["methods"], tmp_path / "out")


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], [-1], ["1"], 2.5, "3", True, [True]])
def test_senseless_seeds_are_refused(seeds):
    with pytest.raises(ConfigError, match="seeds="):
        seeds_of(seeds, BASE)


def test_cores_are_shared():
    assert share_cores(runs=10, jobs=0, workers=0, available=4) == (4, 1)
    assert share_cores(runs=2, jobs=0, workers=0, available=8) == (2, 4)
    assert share_cores(runs=10, jobs=3, workers=0, available=8) == (3, 2)
    assert share_cores(runs=10, jobs=50, workers=0, available=4) == (4, 1)
    assert share_cores(runs=10, jobs=0, workers=2, available=8) == (4, 2)
    assert share_cores(runs=10, jobs=4, workers=4, available=8) == (2, 4)
    assert share_cores(runs=10, jobs=4, workers=16, available=8) == (1, 16)  # as asked for
    assert share_cores(runs=0, jobs=0, workers=0, available=2) == (1, 2)
    with pytest.raises(ConfigError, match="jobs=-1"):
        share_cores(1, -1, 0, 2)


def test_the_default_folder_is_that_of_everything_shared():
    one = default_out(BASE)
    assert one.parts[0] == "runs" and one.name.startswith("compare-digits-")
    assert one == default_out(replace(BASE, method="scaffold", seed=9, workers=3, target=0.5))
    assert one != default_out(replace(BASE, lr=0.7))
    assert default_out(replace(BASE, data="some/where/mine.npz")).parent == Path("runs")


def test_an_option_added_later_leaves_the_names_of_earlier_experiments():
    @dataclass(frozen=True)
    class Later(Config):
        novelty: str = "as ever"

    known = {f.name: getattr(BASE, f.name) for f in fields(BASE)}
    assert default_out(Later(**known)) == default_out(BASE)
    assert default_out(Later(**known, novelty="on")) != default_out(BASE)


def test_layouts_are_decided_once(tmp_path, monkeypatch):
    """What `auto` came to for the first run of a model holds for all: rounding must not differ between methods."""
    import sys

    module = sys.modules["fedkeep.experiment.compare"]
    answers = iter(["rows", "channels-last", "rows"])
    monkeypatch.setattr(
        module, "resolved", lambda made: replace(made, config=replace(made.config, layout=next(answers)))
    )
    found = quick(["fedavg", "fedavg+wsm"], tmp_path)
    quick(["fedavg", "fedavg+wsm", "scaffold"], tmp_path)
    configs = [RunDirectory(path).config() for path in [*found.paths, tmp_path / "runs" / "scaffold" / "seed-0"]]
    assert {config.layout for config in configs} == {"rows"}
    assert next(answers) == "channels-last"


def test_to_toml_keeps_every_option():
    base = replace(BASE, lr=0.123, layout="rows")
    text = to_toml(["fedavg"], [0], {}, base)
    for key in asdict(base).keys() - {"method", "seed"}:
        assert f"\n{key} = " in text
