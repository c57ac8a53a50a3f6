"""Which runs belong together, and what is compared with what."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedkeep.report.compare import compare, helps
from fedkeep.report.curves import at_end, band
from fedkeep.report.series import differences, group
from fedkeep.report.style import GREY, pens
from report.made_up import made_up, two_methods


def test_seeds_are_one_series_and_methods_are_several() -> None:
    report = two_methods(seeds=3)
    assert [series.label for series in report.series] == ["fedavg", "fedavg+wsm"]
    assert [run.seed for run in report.series[0].runs] == [0, 1, 2]
    assert report.notes == ()


def test_swept_options_split_a_series_and_name_it() -> None:
    low = made_up(accuracy=[0.5], options={"partition": "dirichlet(alpha=0.1)", "lr": 0.1})
    high = made_up(accuracy=[0.5], options={"partition": "iid", "lr": 0.2})
    labels = [series.label for series in group([low, high]).series]
    assert labels == ["fedavg, dirichlet(alpha=0.1), lr=0.1", "fedavg, iid, lr=0.2"]


@pytest.mark.parametrize("option", ["forgetting", "judge_every", "workers", "engine", "data_root", "target"])
def test_options_that_change_no_result_do_not_split_a_series(option: str) -> None:
    runs = [made_up(seed=0, accuracy=[0.5], options={option: 1}), made_up(seed=1, accuracy=[0.5], options={option: 2})]
    assert len(group(runs).series) == 1


def test_the_baseline_is_fedavg_and_comes_first() -> None:
    report = group([made_up("scaffold", accuracy=[0.5]), made_up("fedavg", accuracy=[0.5])])
    assert [series.method for series in report.series] == ["fedavg", "scaffold"]
    assert report.baseline.method == "fedavg"
    assert group([made_up("scaffold", accuracy=[0.5])]).baseline.method == "scaffold"


def test_each_setting_has_its_own_baseline() -> None:
    runs = [
        made_up(method, accuracy=[0.5], options={"lr": lr}) for lr in (0.1, 0.2) for method in ("fedavg", "scaffold")
    ]
    report = group(runs)
    last = report.series[-1]
    assert last.label == "scaffold, lr=0.2"
    assert report.baseline_of(last).label == "fedavg, lr=0.2"
    assert differences(last, report.baseline) == ["lr"]


def test_the_same_seed_twice_counts_once_and_the_longer_run_stays() -> None:
    report = group([made_up(accuracy=[0.5]), made_up(accuracy=[0.5, 0.6], options={"rounds": 1})])
    assert [run.last_round for run in report.series[0].runs] == [2]
    assert "seed 0 is there twice" in report.notes[0]


def test_a_seed_that_is_behind_is_left_out_of_the_averages() -> None:
    report = group([made_up(seed=0, accuracy=[0.0, 1.0]), made_up(seed=1, accuracy=[0.0], options={"rounds": 2})])
    series = report.series[0]
    assert [run.seed for run in series.complete] == [0]
    assert at_end(series, "accuracy").mean == 0.5
    assert "seed 1: has 1 rounds, others 2" in report.notes[0]


def test_a_band_runs_from_the_lowest_seed_to_the_highest() -> None:
    series = group([made_up(seed=s, accuracy=a) for s, a in enumerate(([0.1, 0.2], [0.3, 0.8], [0.2, np.nan]))]).series[
        0
    ]
    found = band(series, "accuracy")
    np.testing.assert_allclose(found.mean, [0.2, 0.5])
    np.testing.assert_allclose(found.low, [0.1, 0.2])
    np.testing.assert_allclose(found.high, [0.3, 0.8])
    assert found.seeds == 3 and not band(series, "forgetting").known


def test_the_end_is_the_mean_of_the_last_ten_rounds() -> None:
    series = group([made_up(accuracy=[100.0, *range(10)])]).series[0]
    assert at_end(series, "accuracy").mean == 4.5
    assert at_end(series, "accuracy", until=2).mean == 50.0


def test_the_end_of_a_metric_that_is_rarely_judged_is_its_last_value() -> None:
    series = group([made_up(accuracy=[0.3, *[np.nan] * 20])]).series[0]
    assert at_end(series, "accuracy").mean == pytest.approx(0.3)
    assert not at_end(series, "loss").known and math.isnan(at_end(series, "loss").mean)


def test_a_value_that_is_not_finite_is_not_averaged() -> None:
    assert at_end(group([made_up(loss=[1.0, float("inf"), 3.0])]).series[0], "loss").mean == 2.0


def test_seeds_are_compared_one_by_one() -> None:
    report = two_methods()
    found = compare(report.series[1], report.series[0], "forgetting")
    assert found.paired.by_seed == pytest.approx({0: -0.3, 1: -0.4})
    assert found.difference == pytest.approx(-0.35) and found.agreed and found.evidence == "in both seeds"


def test_runs_of_different_length_are_compared_at_the_same_round() -> None:
    short = made_up("fedavg", accuracy=[0.2] * 10, options={"rounds": 20})
    long = made_up("scaffold", accuracy=[*[0.4] * 10, *[0.9] * 10])
    base, other = group([short, long]).series
    assert compare(other, base, "accuracy").difference == pytest.approx(0.2)


def test_without_a_common_seed_means_are_compared() -> None:
    base, other = group([made_up(seed=0, accuracy=[0.2]), made_up("scaffold", seed=1, accuracy=[0.5])]).series
    found = compare(other, base, "accuracy")
    assert found.difference == pytest.approx(0.3) and found.evidence == "no seed in common"


def test_help_is_less_forgetting_in_every_seed_at_no_loss_of_accuracy() -> None:
    def report(accuracy: float, forgetting: tuple[float, float]):
        base = [made_up("fedavg", s, accuracy=[0.8], forgetting=[0.4]) for s in (0, 1)]
        return group([*base, *(made_up("tce", s, accuracy=[accuracy], forgetting=[forgetting[s]]) for s in (0, 1))])

    assert helps(report(0.8, (0.1, 0.2))).label == "tce"  # type: ignore[union-attr]
    assert helps(report(0.5, (0.1, 0.2))) is None, "it lost accuracy"
    assert helps(report(0.8, (0.1, 0.5))) is None, "the seeds disagree"


def test_every_series_has_one_colour_and_the_baseline_is_grey() -> None:
    report = group([made_up(m, accuracy=[0.5]) for m in ("scaffold", "fedavg", "tce", "wsm")])
    drawn = pens(report)
    assert drawn[report.baseline].colour == GREY
    assert len({pen.colour for pen in drawn.values()}) == 4
    many = group([made_up("fedavg", accuracy=[0.5], options={"lr": lr}) for lr in range(20)])
    assert len({(pen.colour, pen.dash) for pen in pens(many).values()}) == 20
