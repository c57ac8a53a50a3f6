"""Does the claim hold? Decided by rules that stand in the recipe, never by hand.

Forms of a check (columns: names or patterns; without them every column that has both sides):

    more = A, than = B                               A's number is larger than B's, row by row of equal setting
    less = A, than = B                               it is smaller
    alike = [A, B], within = x                       they differ by less than x
    gain = A, over = B, larger_at = P, than_at = Q   A gains more over B in column P than in column Q
    row = A, above = x   (or below = x)              the number itself is above (below) x

Each comparison is made seed by seed and comes out as one of

    holds    the 95 % interval is wholly on the right side
    leans    the mean is on the right side, but the interval is not (or one seed has none)
    against  the mean is on the wrong side, the interval not wholly
    fails    the interval is wholly on the wrong side

The claim is *reproduced* if nothing fails or goes against it and at least half of the comparisons hold; *partly* if at
least half hold or lean; otherwise *not*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from fedkeep.experiment.statistics import Estimate, mean_interval
from fedkeep.papers.cells import DECIMALS, NOTHING, Cell, Table, number
from fedkeep.papers.recipe import Check, Recipe

HOLDS, LEANS, AGAINST, FAILS = "holds", "leans", "against", "fails"
REPRODUCED, PARTLY, NOT, NOT_RUN = "reproduced", "partly", "not", "not run here"
RIGHT = (HOLDS, LEANS)


@dataclass(frozen=True)
class Finding:
    """What came out of one comparison."""

    says: str
    outcome: str
    text: str

    def document(self) -> dict[str, Any]:
        return asdict(self)


def judge(recipe: Recipe, tables: Sequence[Table]) -> list[Finding]:
    """All comparisons that can be made."""
    cells = [cell for table in reversed(tables) for cell in table.cells.values()]
    unique = {(cell.row, cell.column): cell for cell in cells if cell.known}  # the paper's table has the last word
    known = [
        unique[key] for key in dict.fromkeys((c.row, c.column) for t in tables for c in t.cells.values() if c.known)
    ]
    return [finding for check in recipe.checks for finding in _findings(check, known)]


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one word.

    >>> verdict([Finding("", "holds", ""), Finding("", "leans", "")]), verdict([Finding("", "against", "")])
    ('reproduced', 'not')
    >>> verdict([])
    'not run here'
    """
    outcomes = [finding.outcome for finding in findings]
    if not outcomes:
        return NOT_RUN
    if all(outcome in RIGHT for outcome in outcomes) and 2 * outcomes.count(HOLDS) >= len(outcomes):
        return REPRODUCED
    return PARTLY if 2 * sum(outcome in RIGHT for outcome in outcomes) >= len(outcomes) else NOT


def _findings(check: Check, cells: Sequence[Cell]) -> Iterator[Finding]:
    inside = [cell for cell in cells if _matches(cell.column, check.columns)]
    if check.more or check.less:
        sign = 1 if check.more else -1
        for left, right in _pairs(check.more or check.less, check.than, inside):
            found = _difference(left, right)
            yield Finding(check.says, _side(found, sign), _compared(left, right, found))
    elif check.alike:
        for left, right in _pairs(check.alike[0], check.alike[1], inside):
            found = _difference(left, right)
            yield Finding(check.says, _within(found, check.within), _compared(left, right, found))
    elif check.gain:
        yield from _gains(check, cells)
    elif check.row:
        for cell in inside:
            if check.row in (cell.row, cell.label):
                yield _threshold(check, cell)


def _matches(column: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(column, pattern) for pattern in patterns)


def _pairs(left: str, right: str, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Cells of two rows in the same column and with the same setting, or of two rows by their full names."""
    by_place = {(cell.label, cell.at, cell.column): cell for cell in cells}
    by_name = {(cell.row, cell.column): cell for cell in cells}
    for cell in cells:
        if cell.row == left and (right, cell.column) in by_name:
            yield cell, by_name[right, cell.column]
        elif cell.label == left and (right, cell.at, cell.column) in by_place:
            yield cell, by_place[right, cell.at, cell.column]


def _difference(left: Cell, right: Cell) -> Estimate:
    ours, theirs = left.compared(), right.compared()
    return mean_interval([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def _side(found: Estimate, sign: int) -> str:
    mean = sign * found.mean
    low, high = sorted((sign * found.low, sign * found.high)) if found.count > 1 else (math.nan, math.nan)
    if mean > 0:
        return HOLDS if low > 0 else LEANS
    return FAILS if high < 0 else AGAINST


def _within(found: Estimate, margin: float) -> str:
    """Alike: the interval lies inside of +- margin, or at least the mean does."""
    if abs(found.mean) < margin:
        return HOLDS if found.low > -margin and found.high < margin else LEANS
    return FAILS if found.low >= margin or found.high <= -margin else AGAINST


def _gains(check: Check, cells: Sequence[Cell]) -> Iterator[Finding]:
    here = [cell for cell in cells if cell.column == check.larger_at]
    there = {(c.label, c.at): c for c in cells if c.column == check.than_at}
    for left, right in _pairs(check.gain, check.over, here):
        other, base = (there.get((cell.label, cell.at)) for cell in (left, right))
        if other is None or base is None:
            continue
        large, small = _by_seed(left, right), _by_seed(other, base)
        found = mean_interval([large[seed] - small[seed] for seed in large if seed in small])
        mean, less = mean_interval(list(large.values())).mean, mean_interval(list(small.values())).mean
        decimals = max(1, DECIMALS[left.unit])
        text = (
            f"{left.row} against {right.row}: {_signed(mean, decimals)} at {left.column}, "
            f"{_signed(less, decimals)} at {other.column}"
        )
        yield Finding(check.says, _side(found, 1), text)


def _by_seed(left: Cell, right: Cell) -> dict[int, float]:
    ours, theirs = left.compared(), right.compared()
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def _threshold(check: Check, cell: Cell) -> Finding:
    limit, sign = (check.above, 1) if check.above is not None else (check.below or 0.0, -1)
    found = mean_interval([value - limit for value in cell.compared().values()])
    word = "above" if sign > 0 else "below"
    text = f"{cell.row}, {cell.column}: {cell.ours()}, to be {word} {limit:g}{_paper(cell.theirs())}"
    return Finding(check.says, _side(found, sign), text)


def _compared(left: Cell, right: Cell, found: Estimate) -> str:
    """A difference in words, the paper's beside it."""
    decimals = max(1, DECIMALS[left.unit])
    interval = "" if math.isnan(found.half_width) else f" ± {found.half_width:.{decimals}f}"
    paper = ""
    if left.paper.value is not None and right.paper.value is not None:
        paper = _signed(left.paper.value - right.paper.value, decimals)
    ours = f"{_signed(found.mean, decimals)}{interval}"
    return f"{left.column}: {left.row} against {right.row} {ours}{_paper(paper)}"


def _paper(text: str) -> str:
    return f" (paper {text})" if text and text != NOTHING else ""


def _signed(value: float, decimals: int) -> str:
    return ("+" if value >= 0 else "") + number(value, decimals)
