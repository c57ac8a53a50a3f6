"""Verdicts follow from rules; every expected outcome here is worked by hand."""

from __future__ import annotations

import pytest

from fedkeep.papers.cells import Cell, Table
from fedkeep.papers.checks import AGAINST, FAILS, HOLDS, LEANS, Finding, judge, verdict
from fedkeep.papers.recipe import Check, Number, parse

HEAD = """
name = "wsm/x"
where = "Table 9"
title = "t"
kind = "table"
claim = "c"
[paper]
[small]
[smoke]
"""


def cell(label, column, *values, at="", never=None, paper=None, unit="percent"):
    row = f"{label}, {at}" if at else label
    by_seed = dict(enumerate(values))
    return Cell(row, column, by_seed, Number(paper), unit, never, label, at)


def outcomes(check, *cells):
    recipe = parse(HEAD, "test")
    table = Table("t", [c.row for c in cells], [c.column for c in cells], {(c.row, c.column): c for c in cells})
    object.__setattr__(recipe, "checks", (Check("it does", **check),))
    return [finding.outcome for finding in judge(recipe, [table])]


MORE = {"more": "new", "than": "old"}


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [
        # half of the interval is 4.303 s / sqrt(3) = 2.484 s
        ((2.0, 2.5, 1.5), HOLDS),  # mean 2, s 0.5: 0.76 to 3.24
        ((1.0, 2.0, 3.0), LEANS),  # mean 2, s 1: -0.48 to 4.48
        ((-1.0, -2.0, -3.0), AGAINST),
        ((-2.0, -2.5, -1.5), FAILS),
        ((0.0, 0.0, 0.0), AGAINST),  # no difference is not more
        ((0.3,), LEANS),  # one seed has no interval
        ((-0.3,), AGAINST),
    ],
)
def test_more_than(differences, outcome):
    old = [50.0 + 7 * seed for seed in range(len(differences))]  # what the seed does to both cancels
    new = [base + difference for base, difference in zip(old, differences, strict=True)]
    assert outcomes(MORE, cell("new", "a", *new), cell("old", "a", *old)) == [outcome]
    turned = {"less": "old", "than": "new"}
    mirrored = cell("old", "a", *old), cell("new", "a", *new)
    assert outcomes(turned, *mirrored) == [outcome]


def test_rows_are_paired_by_setting_and_column():
    cells = [
        cell("new", "a", 2.0, at="lr=0.1"),
        cell("old", "a", 1.0, at="lr=0.1"),
        cell("new", "a", 1.0, at="lr=1"),
        cell("old", "a", 2.0, at="lr=1"),
        cell("new", "b", 9.0, at="lr=0.1"),  # nothing to pair with
        cell("old", "c", 9.0, at="lr=0.1"),
    ]
    assert outcomes(MORE, *cells) == [LEANS, AGAINST]
    assert outcomes(MORE | {"columns": ["b", "c"]}, *cells) == []
    by_name = {"more": "new, lr=0.1", "than": "old, lr=1"}
    assert outcomes(by_name, *cells) == [AGAINST]  # 2 is not more than 2


def test_a_target_never_reached_counts_as_one_round_more():
    nan = float("nan")
    check = {"less": "new", "than": "old"}
    fast, slow = cell("new", "a", 10.0, 12.0, never=101.0), cell("old", "a", 99.0, nan, never=101.0)
    assert slow.compared() == {0: 99.0, 1: 101.0}
    assert outcomes(check, fast, slow) == [HOLDS]  # -89 and -89: no spread
    both = cell("new", "a", nan, never=101.0), cell("old", "a", nan, never=101.0)
    assert outcomes(check, *both) == [AGAINST]


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ((51.0, 51.5, 50.5), LEANS),  # 1 +- 1.242: up to 2.24
        ((51.0, 51.2, 50.8), HOLDS),  # 1 +- 0.497
        ((53.0, 53.2, 52.8), FAILS),  # 3 +- 0.497
        ((52.5, 53.5, 51.5), AGAINST),  # 2.5 +- 2.48
    ],
)
def test_alike(values, outcome):
    check = {"alike": ["new", "old"], "within": 2.0}
    assert outcomes(check, cell("new", "a", *values), cell("old", "a", 50.0, 50.0, 50.0)) == [outcome]


def test_a_gain_is_larger_in_one_column():
    check = {"gain": "new", "over": "old", "larger_at": "skewed", "than_at": "iid"}
    cells = [
        cell("new", "skewed", 30.0, 31.0),
        cell("old", "skewed", 20.0, 21.0),
        cell("new", "iid", 51.0, 52.0),
        cell("old", "iid", 50.0, 51.0),
    ]
    assert outcomes(check, *cells) == [HOLDS]  # 10 against 1, twice
    assert outcomes({**check, "larger_at": "iid", "than_at": "skewed"}, *cells) == [FAILS]
    assert outcomes(check, *cells[:3]) == []


def test_thresholds():
    share = cell("FedAvg", "minority", 0.9, 0.95, 0.92, at="round 100")
    assert outcomes({"row": "FedAvg", "columns": ["minor*"], "above": 0.5}, share) == [HOLDS]
    assert outcomes({"row": "FedAvg, round 100", "below": 0.5}, share) == [FAILS]
    assert outcomes({"row": "other", "below": 0.5}, share) == []


def test_the_paper_table_has_the_last_word():
    """Cells of later tables ("also") do not stand in for those of the first."""
    recipe = parse(HEAD, "test")
    object.__setattr__(recipe, "checks", (Check("it does", **MORE),))
    main = [cell("new", "a", 1.0), cell("old", "a", 2.0)]
    also = [cell("new", "a", 2.0), cell("old", "a", 1.0)]
    tables = [Table("t", ["new", "old"], ["a"], {(c.row, c.column): c for c in cells}) for cells in (main, also)]
    assert [finding.outcome for finding in judge(recipe, tables)] == [AGAINST]


def test_cells_without_numbers_are_left_out():
    missing = Cell("new", "a", {}, text="not run", label="new")
    assert outcomes(MORE, missing, cell("old", "a", 1.0)) == []


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ([HOLDS], "reproduced"),
        ([HOLDS, LEANS], "reproduced"),
        ([HOLDS, LEANS, LEANS], "partly"),
        ([LEANS], "partly"),
        ([HOLDS, AGAINST], "partly"),
        ([HOLDS, HOLDS, HOLDS, FAILS], "partly"),
        ([HOLDS, FAILS, AGAINST], "not"),
        ([FAILS], "not"),
        ([], "not run here"),
    ],
)
def test_verdict(found, word):
    assert verdict([Finding("", outcome, "") for outcome in found]) == word


def test_words_of_a_finding():
    recipe = parse(HEAD, "test")
    object.__setattr__(recipe, "checks", (Check("it does", **MORE),))
    cells = [cell("new", "a", 53.0, 55.0, paper=60.0), cell("old", "a", 50.0, 50.0, paper=57.5)]
    table = Table("t", ["new", "old"], ["a"], {(c.row, c.column): c for c in cells})
    (finding,) = judge(recipe, [table])
    # differences 3 and 5: mean 4, s sqrt 2, half 12.706 * sqrt 2 / sqrt 2
    assert finding.text == "a: new against old +4.00 ± 12.71 (paper +2.50)"
