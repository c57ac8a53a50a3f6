"""A recipe at a scale -> rows, columns, and a config for each pair of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkeep.calls import format_value
from fedkeep.data import available
from fedkeep.errors import ConfigError, nearest
from fedkeep.experiment.config import Config
from fedkeep.papers.recipe import SCALES, Column, Line, Recipe, Scale
from fedkeep.papers.shrink import shrunk_name

OF_A_COLUMN = ("at", "target", "reading", "also")
NO_OPTIONS = (*OF_A_COLUMN, "shrink")  # of what a scale may change in a column


@dataclass(frozen=True)
class Row:
    """A row of a table: its label, and what tells it from others of the same label."""

    label: str
    at: str = ""

    @property
    def name(self) -> str:
        return ", ".join(word for word in (self.label, self.at) if word)


@dataclass(frozen=True)
class Place:
    """A column of a table."""

    name: str
    column: Column
    swept: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Arm:
    """What stands in one cell: a config to be run with every seed."""

    row: Row
    place: Place
    config: Config
    paper_rounds: int

    def here(self, round: int) -> int:
        """The round that stands for a round of the paper: itself, or as far through the training."""
        return scaled_round(round, self.paper_rounds, self.config.rounds)


@dataclass(frozen=True)
class Plan:
    """Everything that is to be run, and what cannot be."""

    recipe: Recipe
    scale_name: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    all_places: tuple[Place, ...]
    arms: tuple[Arm, ...]
    skipped: Mapping[str, str]  # column -> why

    @property
    def places(self) -> tuple[Place, ...]:
        """The columns that can be run."""
        return tuple(place for place in self.all_places if place.name not in self.skipped)

    @property
    def scale(self) -> Scale:
        return self.recipe.scales[self.scale_name]

    @property
    def last(self) -> int:
        """Rounds that "final" is the mean of."""
        return self.scale.last or self.recipe.last

    def arm(self, row: Row, place: Place) -> Arm:
        return next(arm for arm in self.arms if arm.row == row and arm.place == place)


def scaled_round(round: int, of: int, rounds: int) -> int:
    """A round of `of` rounds as a round of `rounds`.

    >>> scaled_round(1200, 4000, 200), scaled_round(1, 4000, 200), scaled_round(10, 100, 100)
    (60, 1, 10)
    """
    return round if of == rounds else max(1, (2 * round * rounds + of) // (2 * of))


def plan(recipe: Recipe, scale_name: str, seeds: int | None, root: Path | None, only: str = "") -> Plan:
    """Lay out a recipe. Columns whose data is not under `root`, or that `only` does not name, are skipped."""
    if scale_name not in SCALES:
        raise ConfigError(f'scale "{scale_name}" is unknown: {nearest(scale_name, SCALES)}')
    scale = recipe.scales[scale_name]
    number = scale.seeds if seeds is None else seeds
    if number < 1:
        raise ConfigError(f"seeds={number} is too small; choose at least 1")
    chosen = [column for column in recipe.columns if scale_name in column.scales]
    places = [place for column in chosen for place in _places(_patched(column, scale), scale)]
    lines = [(row, line, swept) for line in recipe.lines for row, swept in _rows(line, scale)]
    arms, skipped = [], {}
    for place in places:
        made = [_arm(recipe, scale_name, row, line, swept, place) for row, line, swept in lines]
        if why := _why_not(place, {arm.config.data for arm in made}, root, only):
            skipped[place.name] = why
        else:
            shrink = scale.columns.get(place.column.label, {}).get("shrink", scale.shrink)
            arms += [replace(arm, config=_with_data(arm.config, shrink, root)) for arm in made]
    return Plan(
        recipe=recipe,
        scale_name=scale_name,
        seeds=tuple(range(number)),
        rows=tuple(row for row, _, _ in lines),
        all_places=tuple(places),
        arms=tuple(arms),
        skipped=skipped,
    )


def _why_not(place: Place, data: set[str], root: Path | None, only: str) -> str:
    if only and only.lower() not in f"{place.column.panel} {place.name}".lower():
        return f'left out with --only "{only}"'
    found = {row.name: row.found for row in available(root)}
    for name in sorted(data):
        if not found.get(name, False):
            return f"data set {name} not found " + ("under the data root" if root else "(no --data-root was given)")
    return ""


def _patched(column: Column, scale: Scale) -> Column:
    """A column with what a scale changes of its readings."""
    changes = {key: value for key, value in scale.columns.get(column.label, {}).items() if key in OF_A_COLUMN}
    return replace(column, **changes)


def _combinations(sweep: Mapping[str, list[Any]], scale: Scale) -> list[tuple[tuple[str, Any], ...]]:
    values = {key: scale.sweep.get(key, given) for key, given in sweep.items()}
    return [tuple(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def _words(swept: tuple[tuple[str, Any], ...]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={format_value(value)}" for key, value in swept)


def _rows(line: Line, scale: Scale) -> list[tuple[Row, tuple[tuple[str, Any], ...]]]:
    return [(Row(line.label, _words(swept)), swept) for swept in _combinations(line.sweep, scale)]


def _places(column: Column, scale: Scale) -> list[Place]:
    found = []
    for swept in _combinations(column.sweep, scale):
        name = ", ".join(word for word in (column.label, _words(swept)) if word)
        found.append(Place(name, column, swept))
    return found


def _arm(
    recipe: Recipe, scale_name: str, row: Row, line: Line, swept: tuple[tuple[str, Any], ...], place: Place
) -> Arm:
    scale, column = recipe.scales[scale_name], place.column
    settings: dict[str, Any] = {**recipe.scales["paper"].settings, **column.settings, **line.settings}
    settings |= line.columns.get(column.label, {})
    paper_rounds = int({**settings, **dict(place.swept), **dict(swept)}["rounds"])
    if scale_name != "paper":
        changes = scale.columns.get(column.label, {})
        settings |= scale.settings
        settings |= {key: value for key, value in changes.items() if key not in NO_OPTIONS}
        settings |= scale.lines.get(line.label, {})
    settings |= dict(place.swept) | dict(swept)
    settings["method"] = line.method.format(**column.words)
    inner_last = dict(sorted(settings.items(), key=lambda item: "." in item[0]))
    try:
        config = Config().with_options(inner_last)
    except ConfigError as error:
        raise ConfigError(f"recipe {recipe.name}, [{scale_name}], {row.name}, {place.name}: {error}") from None
    return Arm(row, place, config, paper_rounds)


def _with_data(config: Config, shrink: Mapping[str, int], root: Path | None) -> Config:
    """The config with its data where it lies; shrunk data lies beside the runs, see `store`."""
    if shrink and config.data != "digits":
        return replace(config, data=shrunk_name(config.data, shrink), limit=0)
    return replace(config, data_root=str(root) if root else "")
