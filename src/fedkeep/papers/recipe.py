"""A recipe: one table or figure of a paper, as a small TOML file.

    name, title, where, claim            what it is, where it stands, what the paper says with it
    kind                                 how it is laid out and drawn, see KINDS
    unit, reading, also, last, rounds    what is read from a run, see `readings`
    [[lines]]                            the rows: label, method, and the options that belong to it
    [[columns]]                          data sets, models, settings or readings side by side
    [paper] [small] [smoke]              the paper's settings exactly; a stated reduction of them; seconds
    [numbers]                            the paper's numbers: row = { column = value, or [value, spread], or "text" }
    [[checks]]                           what must hold for the claim to count as reproduced, see `checks`

A line or a column with `sweep` stands for one row or column per combination of values. `small` and `smoke` change the
paper's settings: what they do not name stays.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from typing import Any

from fedkeep.errors import ConfigError, nearest

SCALES = ("smoke", "small", "paper")
KINDS = ("table", "curves", "lines", "counts", "events", "heatmap", "partition", "personalised", "robustness")
UNITS = ("percent", "share", "count", "plain")
PAPERS = {
    "fedwavg": "FedWAvg: Hong et al. 2022, weighted averaging based on example forgetting events",
    "fedwagg": "FedWAgg: Song et al. 2023, federated learning based on weighted aggregation",
    "wsm": "WSM: Legate et al. 2023, re-weighted softmax cross-entropy to control forgetting",
    "importance": "Importance: Kim et al. 2020, overcoming forgetting via importance from agent",
    "tce": "TCE: reducing forgetting in federated learning with truncated cross-entropy",
}

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A row, or one per combination of swept values."""

    label: str
    method: str = "fedavg"
    settings: Settings = field(default_factory=dict)
    sweep: Mapping[str, list[Any]] = field(default_factory=dict)
    columns: Mapping[str, Settings] = field(default_factory=dict)  # settings that hold in single columns
    beside: bool = False  # ours, not in the paper


@dataclass(frozen=True)
class Column:
    """A column, or one per combination of swept values."""

    label: str = ""
    settings: Settings = field(default_factory=dict)
    sweep: Mapping[str, list[Any]] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)  # for {words} in a line's method
    panel: str = ""  # columns of one panel share a picture
    reading: str = ""
    also: list[str] = field(default_factory=list)
    at: int = 0  # a round of the paper
    target: float = 0.0  # an accuracy from 0 to 1
    unit: str = ""
    beside: bool = False
    scales: list[str] = field(default_factory=lambda: list(SCALES))


@dataclass(frozen=True)
class Scale:
    """How large the experiment is made."""

    seeds: int = 1
    minutes: float = 0.0  # about, on two cores
    settings: Settings = field(default_factory=dict)
    reduced: str = ""  # what was made smaller, in words
    sweep: Mapping[str, list[Any]] = field(default_factory=dict)  # in place of the paper's values
    shrink: Mapping[str, int] = field(default_factory=dict)  # smaller data, see `shrink`
    columns: Mapping[str, Settings] = field(
        default_factory=dict
    )  # changes to single columns, be it of `shrink` or `at`
    lines: Mapping[str, Settings] = field(default_factory=dict)
    last: int = 0

    @property
    def takes(self) -> str:
        """How long it takes, about.

        >>> [Scale(minutes=minutes).takes for minutes in (0.2, 25, 800, 4200)]
        ['12 s', '25 min', '13 h', '3 days']
        """
        for unit, length in (("days", 24 * 60), ("h", 60), ("min", 1)):
            if self.minutes >= (2 if unit == "days" else 1) * length:
                return f"{self.minutes / length:.0f} {unit}"
        return f"{60 * self.minutes:.0f} s"


@dataclass(frozen=True)
class Check:
    """Something that must hold; see `checks` for the forms."""

    says: str
    columns: list[str] = field(default_factory=list)
    more: str = ""
    less: str = ""
    than: str = ""
    alike: list[str] = field(default_factory=list)
    within: float = 0.0
    gain: str = ""
    over: str = ""
    larger_at: str = ""
    than_at: str = ""
    row: str = ""
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True)
class Number:
    """What the paper gives for a cell."""

    value: float | None = None
    spread: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Recipe:
    """One table or figure of a paper."""

    paper: str
    item: str
    title: str
    where: str
    kind: str
    claim: str
    lines: tuple[Line, ...]
    columns: tuple[Column, ...]
    scales: Mapping[str, Scale]
    numbers: Mapping[tuple[str, str], Number]
    checks: tuple[Check, ...]
    unit: str = "percent"
    reading: str = "final"
    also: tuple[str, ...] = ()
    last: int = 10  # rounds that "final" is the mean of
    rounds: tuple[int, ...] = ()  # chosen rounds of the paper
    curve: str = "accuracy"  # the column of `rounds` that is drawn
    held_classes: bool = False  # count test examples only of classes that some client holds
    minority: int = 0  # the first so many clients are the minority
    remarks: tuple[str, ...] = ()  # gaps of the paper's text, and how they are closed

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.item}"

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets it needs."""
        base = self.scales["paper"].settings.get("data", "")
        return tuple(dict.fromkeys(column.settings.get("data", base) for column in self.columns))


def _made(kind: type, table: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a TOML table, strictly."""
    known = {item.name: item for item in fields(kind)}
    for key in table:
        if key not in known:
            raise ConfigError(f'{where}: unknown key "{key}": {nearest(key, known)}')
    lacking = [
        name for name, item in known.items() if item.default is item.default_factory is MISSING and name not in table
    ]
    if lacking:
        raise ConfigError(f"{where}: {lacking[0]} is missing; add it")
    return kind(**table)


def parse(text: str, where: str) -> Recipe:
    """A recipe from the text of its file."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: cannot be read as TOML ({error}); mend the file") from None
    scales = {name: _made(Scale, table.pop(name), f"{where}, [{name}]") for name in SCALES if name in table}
    if lacking := [name for name in SCALES if name not in scales]:
        raise ConfigError(f"{where}: [{lacking[0]}] is missing; every recipe has {', '.join(SCALES)}")
    parts: dict[str, Any] = {
        "lines": tuple(_made(Line, entry, f"{where}, [[lines]]") for entry in table.pop("lines", [])),
        "columns": tuple(_made(Column, entry, f"{where}, [[columns]]") for entry in table.pop("columns", [])),
        "checks": tuple(_made(Check, entry, f"{where}, [[checks]]") for entry in table.pop("checks", [])),
        "numbers": _numbers(table.pop("numbers", {}), where),
        "scales": scales,
    }
    table["paper"], _, table["item"] = str(table.pop("name", "")).partition("/")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    recipe = _made(Recipe, plain | parts, where)
    for key, known in (("kind", KINDS), ("unit", UNITS), ("paper", PAPERS)):
        if getattr(recipe, key) not in known:
            raise ConfigError(
                f'{where}: {key} "{getattr(recipe, key)}" is unknown: {nearest(getattr(recipe, key), known)}'
            )
    return recipe


def _numbers(table: Mapping[str, Any], where: str) -> dict[tuple[str, str], Number]:
    found = {}
    for row, cells in table.items():
        for column, value in cells.items():
            found[row, column] = _number(value, f"{where}, [numbers], {row}, {column}")
    return found


def _number(value: Any, where: str) -> Number:
    if isinstance(value, str):
        return Number(text=value)
    if isinstance(value, list) and len(value) == 2:
        return Number(float(value[0]), float(value[1]))
    if isinstance(value, int | float):
        return Number(float(value))
    raise ConfigError(f'{where}: {value!r} is no number; write 0.6, [0.6, 0.01] with its spread, or "NC"')


@lru_cache(maxsize=1)
def recipes() -> dict[str, Recipe]:
    """All recipes by name, in the order of the papers and of the items in them."""
    found: dict[str, Recipe] = {}
    folder = files("fedkeep.papers") / "recipes"
    for paper in PAPERS:
        inside = sorted((entry for entry in (folder / paper).iterdir() if entry.name.endswith(".toml")), key=_order)
        for entry in inside:
            name = f"{paper}/{entry.name.removesuffix('.toml')}"
            recipe = parse(entry.read_text(encoding="utf-8"), f"recipe {name}")
            if recipe.name != name:
                raise ConfigError(f"recipe {name}: calls itself {recipe.name}; name the file like the item")
            found[name] = recipe
    return found


def _order(entry: Any) -> tuple[int, int, str]:
    """Tables, then figures, then the rest, by number."""
    digits = "".join(letter if letter.isdigit() else " " for letter in entry.name).split()
    rank = 0 if entry.name.startswith("table") else 1 if entry.name.startswith("figure") else 2
    return rank, int(digits[0]) if digits else 99, entry.name


def find(patterns: Iterable[str]) -> list[Recipe]:
    """The recipes that names or patterns such as importance/* stand for; "all" is all of them.

    >>> [recipe.name for recipe in find(["fedwagg/*"])]
    ['fedwagg/figure1', 'fedwagg/figure2']
    """
    known = recipes()
    chosen: dict[str, Recipe] = {}
    for pattern in patterns:
        wanted = "*" if pattern == "all" else f"{pattern}/*" if pattern in PAPERS else pattern
        matches = [name for name in known if fnmatchcase(name, wanted)]
        if not matches:
            raise ConfigError(f'no recipe "{pattern}": {nearest(pattern, known)} (`fedkeep reproduce --list`)')
        chosen |= {name: known[name] for name in matches}
    return list(chosen.values())


def load(name: str) -> Recipe:
    """The recipe of one name."""
    known = recipes()
    if name not in known:
        raise ConfigError(f'no recipe "{name}": {nearest(name, known)} (`fedkeep reproduce --list`)')
    return known[name]
