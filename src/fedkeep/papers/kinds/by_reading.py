"""Tables, curves over rounds and lines over swept values: one reading per run and cell."""

from __future__ import annotations

from collections.abc import Sequence

from fedkeep.papers import figures
from fedkeep.papers.cells import Cell, Table
from fedkeep.papers.expand import Place, Row
from fedkeep.papers.kinds.base import Context, Outcome
from fedkeep.papers.readings import IN_WORDS, Asked, read

UNITS = {"rounds": "count", "stays": "count", "loss": "plain", "loss_change": "plain"}


def reading_of(context: Context, place: Place) -> str:
    return place.column.reading or context.recipe.reading


def value_cell(context: Context, row: Row, place: Place, reading: str) -> Cell:
    """The cell of a row and a column for one reading."""
    recipe, plan = context.recipe, context.plan
    main = reading == reading_of(context, place)
    unit = (place.column.unit if main else "") or UNITS.get(reading) or recipe.unit
    if place.name in plan.skipped:
        return context.missing(row, place.name, unit)
    arm = plan.arm(row, place)
    at = arm.here(place.column.at) if place.column.at else 0
    values = {}
    for seed, run in context.runs(row, place).items():
        held = run.held_share if recipe.held_classes else 1.0
        values[seed] = read(reading, run.rounds, Asked(plan.last, at, place.column.target, held))
    never = arm.config.rounds + 1.0 if reading in ("rounds", "stays") else None
    return context.cell(row, place.name, values, unit, never)


def reading_table(context: Context, title: str, places: Sequence[Place], reading: str = "") -> Table:
    """All rows and these columns; without a reading each column has its own."""
    cells = {}
    for row in context.plan.rows:
        for place in places:
            cells[row.name, place.name] = value_cell(context, row, place, reading or reading_of(context, place))
    return Table(title, [row.name for row in context.plan.rows], [place.name for place in places], cells)


def all_tables(context: Context) -> list[Table]:
    """The paper's table, and one for each further reading."""
    plan, recipe = context.plan, context.recipe
    tables = [reading_table(context, recipe.title, plan.all_places)]
    for reading in dict.fromkeys([*recipe.also, *(name for place in plan.places for name in place.column.also)]):
        places = [p for p in plan.places if reading in (*recipe.also, *p.column.also)]
        own = [place for place in places if reading != reading_of(context, place)]
        if own:
            words = IN_WORDS[reading].format(last=plan.last)
            made = reading_table(context, f"Also: {words}", own, reading)
            tables.append(without_paper(made))
    return tables


def without_paper(table: Table) -> Table:
    """The same without the paper's numbers, which are for the main reading."""
    cells = {place: Cell(**{**vars(cell), "paper": type(cell.paper)()}) for place, cell in table.cells.items()}
    return Table(table.title, table.rows, table.columns, cells)


def table(context: Context) -> Outcome:
    """Numbers, drawn as points with the paper's beside them."""
    tables = all_tables(context)
    return Outcome(tables, figures.points(tables[0], context.recipe.title), _remarks(context))


def curves(context: Context) -> Outcome:
    """A line per method over rounds, a panel per column or group of columns."""
    plan, recipe = context.plan, context.recipe
    panels: dict[str, Place] = {}
    for place in plan.places:
        panels.setdefault(place.column.panel or place.name, place)
    drawn = []
    for quantity in recipe.curve.split(","):
        for title, place in panels.items():
            lines = {row.name: figures.band(_curves(context, row, place, quantity)) for row in plan.rows}
            drawn.append(figures.Panel(title, "round", quantity.replace("_", " "), lines))
    return Outcome(all_tables(context), figures.over_rounds(drawn, recipe.title), _remarks(context))


def _curves(context: Context, row: Row, place: Place, quantity: str):
    curves = []
    for run in context.runs(row, place).values():
        share = run.held_share if context.recipe.held_classes and quantity == "accuracy" else 1.0
        curves.append(run.rounds.set_index("round")[quantity].astype(float).dropna() / share)
    return curves


def lines(context: Context) -> Outcome:
    """A line per method over the values of a swept option, a panel per option."""
    tables = all_tables(context)
    panels: dict[str, list[tuple[str, str]]] = {}
    for place in context.plan.places:
        value = place.name.rpartition("=")[2] if place.swept else place.name
        panels.setdefault(place.column.panel or place.column.label, []).append((value, place.name))
    figure = figures.over_values(tables[0], panels, context.recipe.title)
    return Outcome(tables, figure, _remarks(context))


def _remarks(context: Context) -> list[str]:
    """Which of our rounds stand for chosen rounds of the paper."""
    found = {}
    for arm in context.plan.arms:
        at = arm.place.column.at
        if at and arm.here(at) != at:
            found[at] = (
                f"round {at} of the paper's {arm.paper_rounds} stands as round {arm.here(at)} of {arm.config.rounds}"
            )
    return list(found.values())
