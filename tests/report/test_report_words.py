"""The summary in words, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedkeep.report.findings import minority_share
from fedkeep.report.series import group
from fedkeep.report.words import Summary, summarise
from report.made_up import dealt, made_up, two_methods


def text(summary: Summary, title: str) -> str:
    return next((paragraph.text for paragraph in summary.paragraphs if paragraph.title == title), "")


def test_who_helps_and_by_how_much() -> None:
    """fedavg forgets .4 and .5 (mean .45), wsm .1; accuracies .65 and .75."""
    summary = summarise(two_methods())
    assert summary.lead == (
        "`fedavg+wsm` forgets least: a round of local training costs 10.0 points of accuracy on other clients' data, "
        "against 45.0 points under `fedavg`, and test accuracy is 10.0 points higher (75.0 % against 65.0 %)."
    )
    assert "45.0 points (40.0 to 50.0 points over 2 seeds) worse" in text(summary, "What is forgotten")
    assert text(summary, "Which method helps").splitlines() == [
        "Against `fedavg`, seed by seed; a difference holds in every seed unless said otherwise:",
        "`fedavg+wsm` forgets 10.0 points, 35.0 points less (78 % less), and reaches 75.0 % test accuracy, "
        "10.0 points more.",
    ]
    assert "of 2 seeds" in text(summary, "How sure this is")


def test_one_seed_is_called_one_seed() -> None:
    summary = summarise(two_methods(seeds=1))
    assert "from one seed: a difference of a few points may be chance" in text(summary, "How sure this is")
    assert "(75 % less, one seed)" in text(summary, "Which method helps")
    assert "in every seed" not in text(summary, "Which method helps")


def test_seeds_that_disagree_are_called_so_and_nobody_is_said_to_help() -> None:
    runs = [made_up("fedavg", s, accuracy=[0.5], forgetting=[0.4]) for s in (0, 1)]
    runs += [made_up("tce", s, accuracy=[0.5], forgetting=[f]) for s, f in ((0, 0.1), (1, 0.6))]
    summary = summarise(group(runs))
    assert summary.lead.startswith("None of the methods clearly forgets less than `fedavg`")
    assert "the 2 seeds disagree: \N{MINUS SIGN}30.0 to +20.0" in text(summary, "Which method helps")


def test_forgetting_little_by_knowing_little_is_not_praised() -> None:
    runs = [made_up("fedavg", accuracy=[0.9], forgetting=[0.4]), made_up("tce", accuracy=[0.3], forgetting=[0.0])]
    summary = summarise(group(runs))
    assert "None of the methods" in summary.lead
    assert "a model that knows less has less to forget" in text(summary, "Which method helps")


def test_who_helps_most_need_not_forget_least() -> None:
    runs = [made_up("fedavg", accuracy=[0.9], forgetting=[0.4]), made_up("wsm", accuracy=[0.8], forgetting=[0.05])]
    lead = summarise(group([*runs, made_up("scaffold", accuracy=[0.95], forgetting=[0.1])])).lead
    assert lead.startswith("`scaffold` forgets least of those that lose no accuracy: a round of local training costs")


def test_gaining_is_not_called_forgetting() -> None:
    runs = [made_up("fedavg", accuracy=[0.5], forgetting=[0.3]), made_up("tce", accuracy=[0.5], forgetting=[-0.1])]
    summary = summarise(group(runs))
    assert "a round of local training gains 10.0 points of accuracy" in summary.lead
    assert "`tce` gains 10.0 points instead of forgetting, 40.0 points less (one seed)" in text(
        summary, "Which method helps"
    )


def test_each_setting_is_set_beside_its_own_baseline() -> None:
    def run(method: str, alpha: float, forgetting: float):
        options = {"partition": f"dirichlet(alpha={alpha})"}
        return made_up(method, accuracy=[0.5], forgetting=[forgetting], options=options)

    runs = [run("tce", 10, 0.01), run("fedavg", 0.1, 0.5), run("fedavg", 10, 0.05), run("tce", 0.1, 0.2)]
    summary = summarise(group(runs))
    assert summary.lead.startswith("`tce, dirichlet(alpha=0.1)` helps most"), "0.3 less, against 0.04 less"
    assert [line.partition(" forgets")[0] for line in text(summary, "Which method helps").splitlines()] == [
        "Against `fedavg, dirichlet(alpha=0.1)`:",
        "`tce, dirichlet(alpha=0.1)`",
        "Against `fedavg, dirichlet(alpha=10)`:",
        "`tce, dirichlet(alpha=10)`",
    ]


def test_what_differs_besides_the_method_is_said() -> None:
    runs = [
        made_up("fedavg", accuracy=[0.5], forgetting=[0.4], options={"lr": 0.1}),
        made_up("scaffold", accuracy=[0.6], forgetting=[0.1], options={"lr": 0.2}),
    ]
    assert "They differ in lr too" in text(summarise(group(runs)), "Which method helps")


def test_a_shorter_run_is_compared_at_its_last_round_and_that_is_said() -> None:
    runs = [
        made_up("fedavg", accuracy=[0.5] * 3, forgetting=[0.4] * 3, options={"rounds": 5}),
        made_up("scaffold", accuracy=[0.5] * 5, forgetting=[0.1] * 5),
    ]
    assert "Both are taken at round 3" in text(summarise(group(runs)), "Which method helps")


def test_forgetting_that_was_not_recorded_says_how_to_record_it() -> None:
    summary = summarise(group([made_up("fedavg", accuracy=[0.8]), made_up("scaffold", accuracy=[0.9])]))
    assert summary.lead == (
        "`scaffold` is most accurate at 90.0 % test accuracy. Forgetting was not recorded; run with "
        "`--forgetting cohort` (or `all`) to record it."
    )
    assert [paragraph.title for paragraph in summary.paragraphs] == ["Which method helps", "How sure this is"]


def test_a_deployment_without_probe_is_told_of_it() -> None:
    deployed = replace(made_up("scaffold", accuracy=[0.9]), about={"deployment": {"names": ["a", "b"]}})
    assert summarise(group([deployed])).lead == (
        "`scaffold` ends at 90.0 % test accuracy. Forgetting between clients was not recorded; deploy with `--probe` "
        "to record it, which sends clients' trained models to each other."
    )
    off = replace(deployed, options={**deployed.options, "forgetting": "off"})
    assert "run with `--forgetting cohort`" in summarise(group([off])).lead


def test_without_test_examples_the_clients_judge() -> None:
    lead = summarise(group([made_up("scaffold", accuracy=[float("nan")], validation_accuracy=[0.75])])).lead
    assert lead.startswith("`scaffold` ends at 75.0 % accuracy on what clients hold out. Forgetting was not recorded")


def test_a_single_run_is_described_without_comparison() -> None:
    lead = summarise(group([made_up("scaffold", accuracy=[0.8], forgetting=[0.25])])).lead
    assert lead == (
        "Under `scaffold`, a round of local training costs 25.0 points of accuracy on other clients' data; the global "
        "model ends at 80.0 % test accuracy."
    )


FLOWS = {
    "right_before": [20.0],
    "learned_local": [9.0],
    "forgotten_local": [4.0],
    "regained": [3.0],
    "taught_by_others": [1.0],
    "forgotten_known": [2.0],
    "forgotten_new": [5.0],
    "right_after": [22.0],
}


def test_where_it_is_lost() -> None:
    summary = summarise(group([made_up(accuracy=[0.5], forgetting=[0.4], **FLOWS)]))
    assert text(summary, "Where it is lost") == (
        "Under `fedavg`, of the 20.0 examples that the round's clients have right before a round, their own training "
        "forgets 4.0, of which aggregation regains 3.0; aggregation in turn loses 7.0 that the client's own model has "
        "right, 5.0 of them just learned."
    )


def with_classes(forgetting: list[float]):
    zero = [0] * len(forgetting)
    table = {
        "round": [1] * len(forgetting),
        "class": range(len(forgetting)),
        "forgetting": forgetting,
        "accuracy_after": zero,
        **dict.fromkeys(
            ("learned_local", "taught_by_others", "forgotten_local", "forgotten_aggregation", "regained"), zero
        ),
    }
    return group([made_up(accuracy=[0.5], forgetting=[0.4], tables={"classes": table})])


def test_which_class() -> None:
    assert text(summarise(with_classes([0.1, 0.3, np.nan])), "Which class") == (
        "Under `fedavg`, class 1 is forgotten most: local models lose 30.0 points on it on average; class 0 least "
        "(10.0 points)."
    )
    assert "no class is forgotten by more than 2.0 points" in text(summarise(with_classes([0.01, 0.0])), "Which class")
    assert text(summarise(with_classes([np.nan, np.nan])), "Which class") == ""


def test_which_clients_and_the_minority() -> None:
    table = {
        "round": [2, 2, 2],
        "client": [0, 1, 2],
        "forgetting_by_data": [0.1, 0.5, 0.2],
        "forgettable": [10.0, 2.0, 4.0],
    }
    tables = {"clients": table, "partition": dealt([[20, 0], [0, 10], [0, 40]])}
    report = group([made_up(accuracy=[0.5] * 2, forgetting=[0.4] * 2, tables=tables)])
    assert text(summarise(report), "Which clients") == (
        "Under `fedavg` (seed 0), the data of client 1, mostly label 1, is forgotten most: the models of others lose "
        "50.0 points on it. Of a minority client's training examples 50.0 % are forgettable, of the others' 15.0 %."
    )
    assert minority_share(report.series[0]) == pytest.approx((10 / 20, (2 / 10 + 4 / 40) / 2))


def test_how_coarse_the_judging_is() -> None:
    tables = {"partition": dealt([[20], [30]], held_out=4)}
    sure = text(summarise(group([made_up(accuracy=[0.5], forgetting=[0.4], tables=tables)])), "How sure this is")
    assert "each client's own held-out examples, 4 examples in the median" in sure
    assert "one example moves one client's accuracy by 25.0 points" in sure
