"""Our number beside the paper's: cells, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkeep.experiment.statistics import Estimate, mean_interval
from fedkeep.papers.recipe import Number

DECIMALS = {"percent": 2, "share": 3, "count": 0, "plain": 3}
FACTORS = {"percent": 100.0}
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Cell:
    """One number per seed, and what the paper has in its place."""

    row: str
    column: str
    values: Mapping[int, float]  # by seed; nan where there is none
    paper: Number = field(default_factory=Number)
    unit: str = "percent"
    never: float | None = None  # what stands for a target that was not reached, in comparisons
    label: str = ""  # of the row, without its setting
    at: str = ""  # the row's setting
    text: str = ""  # said in place of a number

    @property
    def estimate(self) -> Estimate:
        return mean_interval(list(self.values.values()))

    @property
    def known(self) -> bool:
        return self.estimate.count > 0 or self.never is not None

    def compared(self) -> dict[int, float]:
        """The values for comparisons; a target never reached counts as one round more than there were."""
        filled = {s: self.never if math.isnan(v) and self.never is not None else v for s, v in self.values.items()}
        return {seed: value for seed, value in filled.items() if not math.isnan(value)}

    def ours(self) -> str:
        """Our number with its interval.

        >>> Cell("a", "b", {0: 50.0, 1: 52.0, 2: 51.0}).ours()
        '51.00 ± 2.48'
        """
        found = self.estimate
        if self.text:
            return self.text
        if not found.count:
            return "never" if self.never is not None and self.values else NOTHING
        decimals = DECIMALS[self.unit]
        often = f" ({found.count} of {len(self.values)} seeds)" if self.never is not None and found.missing else ""
        half = found.half_width
        return number(found.mean, decimals) + ("" if math.isnan(half) else f" ± {half:.{decimals}f}") + often

    def theirs(self) -> str:
        """The paper's number with its spread."""
        if self.paper.value is None:
            return self.paper.text or NOTHING
        decimals = DECIMALS[self.unit]
        spread = "" if self.paper.spread is None else f" ± {self.paper.spread:.{decimals}f}"
        return number(self.paper.value, decimals) + spread

    def document(self) -> dict[str, Any]:
        """The cell for result.json."""
        found = self.estimate
        return {
            "row": self.row,
            "column": self.column,
            "mean": rounded(found.mean),
            "low": rounded(found.low),
            "high": rounded(found.high),
            "values": {str(seed): rounded(value) for seed, value in self.values.items()},
            "paper": self.paper.value,
            "paper_spread": self.paper.spread,
            "paper_text": self.paper.text,
            "unit": self.unit,
            "never": self.never,
            "label": self.label,
            "at": self.at,
            "text": self.text,
        }

    @staticmethod
    def of(document: Mapping[str, Any]) -> Cell:
        """A cell from result.json."""
        values = {int(seed): math.nan if value is None else value for seed, value in document["values"].items()}
        paper = Number(document["paper"], document["paper_spread"], document["paper_text"])
        rest = {key: document[key] for key in ("row", "column", "unit", "never", "label", "at", "text")}
        return Cell(values=values, paper=paper, **rest)


@dataclass(frozen=True)
class Table:
    """Cells in the paper's layout."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]

    def document(self) -> dict[str, Any]:
        cells = [cell.document() for cell in self.cells.values()]
        return {"title": self.title, "rows": list(self.rows), "columns": list(self.columns), "cells": cells}

    @staticmethod
    def of(document: Mapping[str, Any]) -> Table:
        """A table from result.json."""
        cells = [Cell.of(entry) for entry in document["cells"]]
        by_place = {(cell.row, cell.column): cell for cell in cells}
        return Table(document["title"], document["rows"], document["columns"], by_place)

    @property
    def has_paper(self) -> bool:
        """Does the paper give any number for it?"""
        return any(cell.paper.value is not None or cell.paper.text for cell in self.cells.values())

    def filled(self) -> tuple[list[str], list[str]]:
        """The rows and the columns in which anything stands."""
        rows = [row for row in self.rows if any(key[0] == row for key in self.cells)]
        return rows, [column for column in self.columns if any(key[1] == column for key in self.cells)]


def number(value: float, decimals: int) -> str:
    """A number with a real minus sign."""
    return f"{value:.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def rounded(value: float) -> float | None:
    """Six digits that count; None where there is no number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
