"""Forgettable examples of each client at chosen rounds, in the layout of the FedWAvg paper."""

from __future__ import annotations

import math

import numpy as np

from fedkeep.data.partition import parse as parse_partition
from fedkeep.papers import figures
from fedkeep.papers.cells import Cell, Table
from fedkeep.papers.expand import Arm, Row
from fedkeep.papers.kinds.base import Context, Outcome, chosen_rounds
from fedkeep.papers.recipe import Number
from fedkeep.papers.store import Finished

GROUPS = ("minority", "majority")


def counts(context: Context) -> Outcome:
    """A row per method and chosen round, a column per client; below it the mean share of each group of clients."""
    plan, recipe = context.plan, context.recipe
    if not plan.arms:
        return Outcome([])
    clients = _names(plan.arms[0], recipe.minority)
    cells: dict[tuple[str, str], Cell] = {}
    shares: dict[tuple[str, str], Cell] = {}
    rows = []
    for arm in plan.arms:
        runs = context.runs(arm.row, arm.place)
        for number in recipe.rounds:
            row = Row(arm.row.label, f"round {number}")
            rows.append(row.name)
            found = {seed: _at(run, arm.here(number)) for seed, run in runs.items()}
            for client, name in enumerate(clients):
                values = {seed: float(counted[client]) for seed, counted in found.items()}
                cells[row.name, name] = context.cell(row, name, values, "count")
            shares |= _shares(context, row, found, runs, clients)
    tables = [
        Table(recipe.title, rows, clients, cells),
        Table("Share of a client's examples that is forgettable, mean over clients", rows, GROUPS, shares),
    ]
    return Outcome(
        tables, figures.over_rounds(_panels(context), recipe.title), chosen_rounds(plan.arms[0], recipe.rounds)
    )


def _names(arm: Arm, minority: int) -> list[str]:
    total = arm.config.clients
    return [f"Minor{k + 1}" if k < minority else f"Major{k + 1 - minority}" for k in range(total)]


def _at(run: Finished, round: int) -> np.ndarray:
    """Counts of all clients in one round."""
    table = run.clients[run.clients["round"] == round].set_index("client")["forgettable"]
    return table.reindex(range(run.config.clients)).to_numpy(dtype=float)


def _shares(context: Context, row: Row, found, runs, clients: list[str]) -> dict[tuple[str, str], Cell]:
    minority = context.recipe.minority
    cells = {}
    for group, chosen in zip(GROUPS, (slice(0, minority), slice(minority, None)), strict=True):
        values = {s: _mean(found[s][chosen] / run.holdings.sum(1)[chosen]) for s, run in runs.items()}
        cell = context.cell(row, group, values, "share")
        paper = _paper_share(context, row, clients[chosen])
        cells[row.name, group] = Cell(**{**vars(cell), "paper": paper})
    return cells


def _paper_share(context: Context, row: Row, clients: list[str]) -> Number:
    partition = parse_partition(context.recipe.scales["paper"].settings["partition"])
    samples = float(dict(partition.options)["samples"])
    known = [context.number(row.name, client).value for client in clients]
    numbers = [value for value in known if value is not None]
    return Number(sum(numbers) / len(numbers) / samples) if numbers else Number()


def _panels(context: Context) -> list[figures.Panel]:
    """The mean share of each group over rounds."""
    panels = []
    for group, first in zip(GROUPS, (True, False), strict=True):
        lines = {}
        for arm in context.plan.arms:
            curves = [_curve(run, context.recipe.minority, first) for run in context.runs(arm.row, arm.place).values()]
            lines[arm.row.label] = figures.band(curves)
        panels.append(figures.Panel(group, "round", "forgettable share", lines))
    return panels


def _curve(run: Finished, minority: int, first: bool):
    sizes = run.holdings.sum(1)
    table = run.clients.dropna(subset=["forgettable"])
    table = table[(table["client"] < minority) == first]
    share = table["forgettable"] / sizes[table["client"].to_numpy()]
    return share.groupby(table["round"]).mean()


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
