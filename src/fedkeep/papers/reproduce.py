"""Run a recipe at a scale, and put what came out beside the paper."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedkeep.errors import DataError
from fedkeep.experiment.about import about
from fedkeep.experiment.jobs import Event, Job
from fedkeep.papers.expand import Plan, plan
from fedkeep.papers.kinds import EVALUATE, WITHOUT_RUNS, Context
from fedkeep.papers.pages import write_readme
from fedkeep.papers.recipe import Recipe
from fedkeep.papers.result import Result, write
from fedkeep.papers.store import Store

Watch = Callable[[Sequence[Job]], AbstractContextManager[Callable[[Event], None] | None]]
RUNS = "runs"  # under the results, unless the user says otherwise


@dataclass(frozen=True)
class Settings:
    """How a recipe is run."""

    scale: str = "smoke"
    root: Path | None = None
    seeds: int | None = None  # None: what the recipe says
    out: Path = Path("results")
    runs: Path | None = None
    jobs: int = 0
    workers: int = 0
    only: str = ""  # columns whose name holds this
    images: bool = True
    command: str = ""

    @property
    def store(self) -> Path:
        return self.runs or self.out / RUNS


@dataclass(frozen=True)
class Reproduction:
    """A result, where it lies, and what the user should know."""

    result: Result
    folder: Path
    notes: tuple[str, ...]


def reproduce(recipe: Recipe, settings: Settings, watch: Watch = lambda jobs: nullcontext()) -> Reproduction:
    """Run what is missing, evaluate, and write the result; what is finished is not run again."""
    made = plan(recipe, settings.scale, settings.seeds, settings.root, settings.only)
    if not made.arms:
        reasons = "; ".join(sorted(set(made.skipped.values())))
        raise DataError(
            f"recipe {recipe.name}: nothing of it can be run ({reasons}); `fedkeep data` says what is needed"
        )
    store = Store(settings.store, settings.root)
    if recipe.kind not in WITHOUT_RUNS:
        store.prepare(made.arms)
        todo = store.todo(made.arms, made.seeds)
        with watch(todo) as listen:
            store.run(todo, settings.jobs, settings.workers, listen)
    context = Context(made, store, settings.jobs)
    outcome = EVALUATE[recipe.kind](context)
    records = {"records": context.records(), **outcome.records} if recipe.kind not in WITHOUT_RUNS else outcome.records
    result = Result(
        name=recipe.name,
        scale=settings.scale,
        seeds=made.seeds,
        tables=tuple(outcome.tables),
        reduced=made.scale.reduced,
        about=_about(settings),
        remarks=tuple(outcome.remarks),
        not_run=made.skipped,
        failures=_failures(store, made),
        runs=_runs(context),
    )
    folder, notes = write(result, outcome.figure, records, settings.out, settings.images)
    write_readme(result, folder)
    return Reproduction(result, folder, (*store.notes, *notes))


def _about(settings: Settings) -> dict[str, Any]:
    known = about()
    versions = {"python": known["python"], **known["versions"]}
    command = settings.command or shlex.join(["fedkeep", *sys.argv[1:]])
    chosen = {key: known[key] for key in ("machine", "git")}
    return {"command": command, "date": known["started"][:10], "versions": versions, **chosen}


def _failures(store: Store, made: Plan) -> dict[str, str]:
    """Why runs of this plan failed."""
    names = {job.name for job in store.jobs(made.arms, made.seeds)}
    return {name: why for name, why in store.failures.items() if name in names}


def _runs(context: Context) -> list[dict[str, Any]]:
    """The runs with their settings, each once."""
    found: dict[str, dict[str, Any]] = {}
    for name, run in context.all_runs.items():
        folder = name.rpartition("/")[0]
        settings = {key: value for key, value in asdict(run.config).items() if key in run.config.identity()}
        entry = found.setdefault(folder, {"run": folder, "seeds": [], "settings": settings | {"seed": None}})
        entry["seeds"].append(run.config.seed)
    return list(found.values())
