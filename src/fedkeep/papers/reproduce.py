"""Run a recipe at a scale, and put what came out beside the paper."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedkeep.data import load
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
    run: bool = True  # False: use the runs that are finished
    images: bool = True

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
        todo = store.todo(made.arms, made.seeds) if settings.run else []
        with watch(todo) as listen:
            store.run(todo, settings.jobs, settings.workers, listen)
    context = Context(made, store, settings.jobs, settings.run)
    outcome = EVALUATE[recipe.kind](context)
    records = {"records": context.records(), **outcome.records} if recipe.kind not in WITHOUT_RUNS else outcome.records
    result = Result(
        name=recipe.name,
        scale=settings.scale,
        seeds=made.seeds,
        tables=tuple(outcome.tables),
        reduced=made.scale.reduced,
        about=_about(recipe, settings),
        remarks=(*_beside(recipe, settings.scale), *outcome.remarks, *_sources(made, settings)),
        not_run=made.skipped,
        failures=_failures(store, made),
        runs=_runs(context),
    )
    folder, notes = write(result, outcome.figure, records, settings.out, settings.images and settings.scale != "smoke")
    write_readme(result, folder)
    return Reproduction(result, folder, (*store.notes, *notes))


def _about(recipe: Recipe, settings: Settings) -> dict[str, Any]:
    known = about()
    versions = {"python": known["python"], **known["versions"]}
    chosen = {key: known[key] for key in ("machine", "git")}
    return {"command": command(recipe, settings), "date": known["started"][:10], "versions": versions, **chosen}


def command(recipe: Recipe, settings: Settings) -> str:
    """The command that gives this result on any machine.

    >>> from fedkeep.papers.recipe import load
    >>> command(load("importance/table3"), Settings(scale="paper", seeds=5, only="MLP"))
    'fedkeep reproduce importance/table3 --scale paper --seeds 5 --only MLP --data-root DIR'
    """
    words = ["fedkeep", "reproduce", recipe.name, "--scale", settings.scale]
    words += ["--seeds", str(settings.seeds)] if settings.seeds is not None else []
    words += ["--only", settings.only] if settings.only else []
    return shlex.join([*words, "--data-root", "DIR"])


def _beside(recipe: Recipe, scale: str) -> list[str]:
    """What stands there for comparison and is not in the paper."""
    columns = [column.label for column in recipe.columns if column.beside and scale in column.scales]
    names = [line.label for line in recipe.lines if line.beside] + columns
    return [f"Not in the paper, for comparison: {'; '.join(names)}."] if names else []


def _sources(made: Plan, settings: Settings) -> list[str]:
    """Where the data is from, with what a result made of it must say."""
    names = sorted({arm.config.data.removesuffix(".npz").partition(",")[0] for arm in made.arms})
    return [f"Data: {load(name, settings.root).source}." for name in names]


def _failures(store: Store, made: Plan) -> dict[str, str]:
    """Why runs of this plan failed."""
    names = {job.name for job in store.jobs(made.arms, made.seeds)}
    return {name: why.replace(str(store.folder), RUNS) for name, why in store.failures.items() if name in names}


def _runs(context: Context) -> list[dict[str, Any]]:
    """The runs with their settings, each once."""
    found: dict[str, dict[str, Any]] = {}
    for name, run in context.all_runs.items():
        folder = name.rpartition("/")[0]
        settings = {key: value for key, value in asdict(run.config).items() if key in run.config.identity()}
        entry = found.setdefault(folder, {"run": folder, "seeds": [], "settings": settings | {"seed": None}})
        entry["seeds"].append(run.config.seed)
    return list(found.values())
