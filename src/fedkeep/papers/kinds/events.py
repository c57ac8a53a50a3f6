"""Forgetting events of centralised and of federated training (FedWAvg paper, Table 1)."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedkeep.centralised import centralised, federated_events
from fedkeep.experiment import load_run
from fedkeep.experiment.build import cores
from fedkeep.experiment.config import Config
from fedkeep.files import write_whole
from fedkeep.papers import figures
from fedkeep.papers.cells import Cell, Table
from fedkeep.papers.expand import Place, Row
from fedkeep.papers.kinds.base import Context, Outcome

CENTRALISED, FEDERATED, INCREASE, MARGIN = "Centralized", "Federated", "Increase (%)", "Centralized, grown margin error"
ROWS = (CENTRALISED, FEDERATED, INCREASE, MARGIN)


def events(context: Context) -> Outcome:
    """Events of both, and federated ones as a percentage of centralised ones, which the paper calls increase."""
    plan = context.plan
    alone = _trained(context)
    cells: dict[tuple[str, str], Cell] = {}
    for place in plan.all_places:
        for row, values in _values(context, place, alone).items():
            made = context.cell(Row(row), place.name, values, "count")
            cells[row, place.name] = (
                made if place.name not in plan.skipped else context.missing(Row(row), place.name, "count")
            )
    table = Table(context.recipe.title, list(ROWS), [place.name for place in plan.all_places], cells)
    accuracy = {f"{name}, seed {seed}": found["accuracy"] for (name, seed), found in alone.items()}
    remarks = [f"test accuracy of centralised training: {', '.join(f'{k} {v:.3f}' for k, v in accuracy.items())}"]
    return Outcome([table], figures.points(_without_increase(table), context.recipe.title), remarks if accuracy else [])


def _values(context: Context, place: Place, alone: Mapping[tuple[str, int], Any]) -> dict[str, dict[int, float]]:
    runs = context.runs(context.plan.rows[0], place)
    together = {seed: float(federated_events(load_run(run.path))) for seed, run in runs.items()}
    mine = {seed: found for (name, seed), found in alone.items() if name == place.name}
    one = {seed: float(found["accuracy_events"]) for seed, found in mine.items()}
    ratio = {seed: 100 * together[seed] / one[seed] for seed in together if one.get(seed)}
    margin = {seed: float(found["margin_events"]) for seed, found in mine.items()}
    return dict(zip(ROWS, (one, together, ratio, margin), strict=True))


def _without_increase(table: Table) -> Table:
    return replace(table, rows=[row for row in table.rows if row in (CENTRALISED, FEDERATED)])


def _trained(context: Context) -> dict[tuple[str, int], dict[str, Any]]:
    """What centralised training forgot, by column and seed; kept beside the runs, and not trained twice."""
    wanted: dict[tuple[str, int], tuple[Config, Path]] = {}
    for place in context.plan.places:
        for seed in context.plan.seeds:
            config = context.store.located(replace(context.arm_at(place).config, seed=seed))
            folder, _, file = context.store.name(config).partition("/")
            wanted[place.name, seed] = config, context.store.folder / f"centralised-{folder}" / f"{file}.json"
    todo = [(config, path) for config, path in wanted.values() if not path.exists() and context.run]
    at_once = min(context.jobs or cores(), cores(), len(todo))
    if at_once > 1:
        with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(_train, *zip(*todo, strict=True)))
    else:
        for config, path in todo:
            _train(config, path)
    return {key: json.loads(path.read_text()) for key, (_, path) in wanted.items() if path.exists()}


def _train(config: Config, path: Path) -> None:
    done = centralised(config)
    document = {**done.summary(), "config": asdict(config)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(document, indent=1).encode())
