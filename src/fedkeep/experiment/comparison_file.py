"""Comparisons as experiment files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from fedkeep.errors import ConfigError
from fedkeep.experiment.config import VERSION, Config, read_toml
from fedkeep.experiment.sweep import checked_sets, slug


def seeds_of(seeds: int | Sequence[int], base: Config) -> tuple[int, ...]:
    """The seeds of a comparison: a number of them, counted from the config's, or the list itself.

    >>> seeds_of(3, Config(seed=5))
    (5, 6, 7)
    """
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if seeds < 1:
            raise ConfigError(f"seeds={seeds} is too small; one seed gives numbers, two or more give intervals")
        return tuple(range(base.seed, base.seed + seeds))
    numbers = tuple(seeds) if isinstance(seeds, list | tuple) else ()
    fits = numbers and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
    if not fits or len(set(numbers)) < len(numbers):
        raise ConfigError(f"seeds={seeds!r}: give a number of seeds, or a list of different seeds such as [0, 1, 2]")
    return numbers


def to_toml(methods: Sequence[str], seeds: Sequence[int], sets: Mapping[str, Any], base: Config) -> str:
    """A comparison as an experiment file."""
    options = {key: value for key, value in asdict(base).items() if key not in ("method", "seed")}
    table = {"version": VERSION, "methods": list(methods), "seeds": list(seeds), **options}
    return tomli_w.dumps({**table, "set": {k: list(v) for k, v in checked_sets(sets).items()}} if sets else table)


def read_comparison(path: Path) -> dict[str, Any]:
    """An experiment file of a comparison: methods, seeds and `set` beside the options of a run, all as written."""
    table = read_toml(path, more=("methods", "seeds", "set"))
    methods = table.get("methods", [table["method"]] if "method" in table else [])
    if "methods" in table and "method" in table:
        raise ConfigError(f"{path}: has both method and methods; keep methods")
    if not isinstance(methods, list) or not methods or not all(isinstance(text, str) for text in methods):
        raise ConfigError(f'{path}: methods={methods!r}; give a list of names such as ["fedavg", "fedavg+wsm"]')
    if not isinstance(table.get("set", {}), dict):
        raise ConfigError(f"{path}: set={table['set']!r}; write a table, [set] and under it lr = [0.01, 0.1]")
    table.pop("method", None)
    return {**table, "methods": methods}


def default_out(base: Config) -> Path:
    """Where a comparison lies when nobody says: by the data and everything that its runs share."""
    shared = {key: value for key, value in base.chosen().items() if key not in ("method", "seed")}
    mark = hashlib.blake2b(json.dumps(shared).encode(), digest_size=4).hexdigest()
    return Path("runs") / f"compare-{slug(Path(base.data).name)}-{mark}"
