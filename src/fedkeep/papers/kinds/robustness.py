"""How many learning rates come near the best one (TCE paper, Table 2)."""

from __future__ import annotations

import math

from fedkeep.papers import figures
from fedkeep.papers.cells import Cell, Table
from fedkeep.papers.expand import Row
from fedkeep.papers.kinds.base import Context, Outcome
from fedkeep.papers.kinds.by_reading import reading_table

NEAR = (2, 3, 5)  # points of accuracy below the best


def robustness(context: Context) -> Outcome:
    """Per method and data set the best accuracy, and how many learning rates are within 2, 3 and 5 points of it.

    Each seed is judged by itself. "Within x %" is read as x points, which is what the paper's own lists fit.
    """
    plan, recipe = context.plan, context.recipe
    whole = reading_table(context, "Accuracy by learning rate", plan.places)
    labels = list(dict.fromkeys(row.label for row in plan.rows))
    columns = [f"{place.name}, {what}" for place in plan.all_places for what in ("best", *map(_within, NEAR))]
    cells: dict[tuple[str, str], Cell] = {}
    for label in labels:
        for place in plan.all_places:
            mine = [cell for (_, column), cell in whole.cells.items() if column == place.name and cell.label == label]
            cells |= _cells(context, Row(label), place.name, mine)
    tables = [Table(recipe.title, labels, columns, cells), whole]
    return Outcome(tables, figures.points(tables[1], recipe.title))


def _within(points: int) -> str:
    return f"within {points} %"


def _cells(context: Context, row: Row, place: str, mine: list[Cell]) -> dict[tuple[str, str], Cell]:
    best, near = f"{place}, best", {points: f"{place}, {_within(points)}" for points in NEAR}
    if place in context.plan.skipped:
        missing = [
            context.missing(row, best, "share"),
            *(context.missing(row, name, "count") for name in near.values()),
        ]
        return {(row.name, cell.column): cell for cell in missing}
    by_seed = {seed: [cell.values.get(seed, math.nan) for cell in mine] for seed in context.plan.seeds}
    known = {seed: [v for v in values if not math.isnan(v)] for seed, values in by_seed.items()}
    top = {seed: max(values) for seed, values in known.items() if values}
    cells = {(row.name, best): context.cell(row, best, top, "share")}
    for points, name in near.items():
        often = {seed: float(sum(v >= top[seed] - points / 100 - 1e-9 for v in known[seed])) for seed in top}
        cells[row.name, name] = context.cell(row, name, often, "count")
    return cells
