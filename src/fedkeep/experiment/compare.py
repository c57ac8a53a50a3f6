"""Several methods, several seeds: paired runs and what can be said of their differences.

Partition, initial weights, cohorts and the order of examples are keyed by the seed alone, and the local budget is one
for all, so two methods with the same seed differ by the method only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedkeep.engine.ray_cluster import check_installed
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.away import run_on_cluster
from fedkeep.experiment.build import cores, load_data, prepare, resolved
from fedkeep.experiment.comparison_file import seeds_of, to_toml
from fedkeep.experiment.config import Config
from fedkeep.experiment.jobs import Event, Job, Listener, run_jobs
from fedkeep.experiment.run import STOPPED, quiet_torch
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.statistics import holm, mean_interval, paired_difference
from fedkeep.experiment.summary import summarise
from fedkeep.experiment.sweep import Arm, checked_sets, choose, grid, is_tuned, sensitivity
from fedkeep.files import write_whole

FOUND = "finished already"
NUMBERS = ("final", "best", "rounds_to_target", "forgetting", "bytes_up", "bytes_down", "seconds", "validation")


@dataclass(frozen=True)
class Comparison:
    """What came out: one row per run in `frame`, and the runs that failed."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    base: Config
    out: Path
    frame: pd.DataFrame
    failures: Mapping[str, str]  # run -> why
    notes: tuple[str, ...] = ()

    @property
    def swept(self) -> tuple[str, ...]:
        """The options that were swept."""
        return tuple(dict.fromkeys(key for arm in self.arms for key, _ in arm.setting))

    @property
    def paths(self) -> list[Path]:
        """The directories of the finished runs."""
        return self._paths(range(len(self.arms)))

    @property
    def chosen_paths(self) -> list[Path]:
        """The directories of the runs with the settings chosen for their method; all, where there was no choice."""
        return self._paths(self._chosen())

    def _paths(self, places: Iterable[int]) -> list[Path]:
        return list(dict.fromkeys(self.out / name for p in places for name in self._runs(p)["directory"]))

    @property
    def tuned(self) -> tuple[str, ...]:
        """The swept options of which each method gets its best."""
        return tuple(key for key in self.swept if is_tuned(key))

    @property
    def how_chosen(self) -> str:
        """How settings were chosen, in words; nothing where there was nothing to choose."""
        if not self.tuned:
            return ""
        on = "the union of what clients hold out" if self.base.validation else "training examples: nothing is held out"
        return (
            f"{', '.join(self.tuned)} of each method: the best on validation data ({on}), mean of the last rounds; "
            "the numbers shown are on test data"
        )

    def table(self) -> pd.DataFrame:
        """One row per method and setting: means with 95 % intervals, and the paired difference to the first method.

        The difference is that of `final` to the first method under the same conditions, both with the settings chosen
        for them; `p` is corrected for the number of differences in the table (Holm).
        """
        chosen = self._chosen()
        rows = [self._row(place, arm, place in chosen) for place, arm in enumerate(self.arms)]
        corrected = holm([row["p"] for row in rows])
        return pd.DataFrame([{**row, "p": p} for row, p in zip(rows, corrected, strict=True)])

    def sensitivity(self) -> pd.DataFrame:
        """Test accuracy against each swept value, for each method."""
        return sensitivity(self.arms, self.frame)

    def to_csv(self, folder: Path | None = None) -> list[Path]:
        """Write comparison.csv (a row per run), summary.csv (a row per method and setting), sensitivity.csv."""
        folder = folder or self.out
        tables = {"comparison.csv": self.frame.drop(columns="arm"), "summary.csv": self.table()}
        if self.swept:
            tables["sensitivity.csv"] = self.sensitivity()
        for name, table in tables.items():
            write_whole(folder / name, table.to_csv(index=False).encode())
        return [folder / name for name in tables]

    def _runs(self, place: int) -> pd.DataFrame:
        return self.frame[self.frame["arm"] == place].set_index("seed")

    def _chosen(self) -> list[int]:
        return choose(self.arms, {p: self._runs(p)["validation"].tolist() for p in range(len(self.arms))})

    def _row(self, place: int, arm: Arm, chosen: bool) -> dict[str, Any]:
        runs = self._runs(place)
        setting = dict(arm.setting)
        row: dict[str, Any] = {"method": arm.label, **{key: setting.get(key) for key in self.swept}}
        row |= {"seeds": len(runs), "failed": len(self.seeds) - len(runs), "chosen": chosen}
        for name in NUMBERS:
            estimate = mean_interval(runs[name])
            row |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        row["reached_target"] = mean_interval(runs["rounds_to_target"]).count
        return row | self._difference(place, arm, chosen)

    def _difference(self, place: int, arm: Arm, chosen: bool) -> dict[str, Any]:
        first = self.arms[0].label
        others = [p for p in self._chosen() if (self.arms[p].label, self.arms[p].condition) == (first, arm.condition)]
        empty = {
            "difference": math.nan,
            "difference_low": math.nan,
            "difference_high": math.nan,
            "p": math.nan,
            "pairs": 0,
        }
        if not chosen or arm.label == first or not others:
            return empty
        ours, theirs = self._runs(place)["final"].align(self._runs(others[0])["final"], join="inner")
        found = paired_difference(ours, theirs)
        return {
            "difference": found.mean,
            "difference_low": found.low,
            "difference_high": found.high,
            "p": found.p,
            "pairs": found.count,
        }


def compare(
    methods: Sequence[str],
    seeds: int | Sequence[int],
    base: Config,
    out: Path,
    jobs: int = 0,
    sets: Mapping[str, Any] | None = None,
    listen: Listener | None = None,
) -> Comparison:
    """Run every method with every seed and every combination of swept values, and put the results side by side.

    Runs lie in `out`/runs; those that are finished are not run again, interrupted ones go on. `jobs` run at once.
    """
    if base.engine == "ray":
        check_installed()
    arms = grid(list(methods), checked_sets(sets or {}), base)
    numbers = seeds_of(seeds, base)
    wanted = _jobs(arms, numbers, out)
    layouts = _check_folder(out, wanted)
    there = [job for job in wanted if _is_finished(job)]
    ahead = [job for job in wanted if job not in there]
    _check_arms(ahead, layouts)
    at_once, workers = share_cores(len(ahead), jobs, base.workers, cores())
    write_whole(out / "comparison.toml", to_toml(methods, numbers, sets or {}, base).encode())
    failures: dict[str, str] = {}
    notes: list[str] = []

    def hear(event: Event) -> None:
        if event.kind == "failed":
            failures[event.job.name] = event.text
        notes.extend(f"{event.job.name}: {note}" for note in event.notes)
        if listen:
            listen(event)

    for job in there:
        hear(Event(job, "done", text=FOUND))
    ready = [_settled(job, layouts) for job in ahead]
    if base.engine == "ray" and ready:
        run_on_cluster(ready, jobs, hear, base)
    else:
        if at_once > 1:
            load_data.cache_clear()  # each process loads its own
        run_jobs([replace(job, config=replace(job.config, workers=workers)) for job in ready], at_once, hear)
    frame = _frame(arms, numbers, out, failures)
    return Comparison(tuple(arms), numbers, base, out, frame, failures, tuple(notes))


def _jobs(arms: Sequence[Arm], seeds: Sequence[int], out: Path) -> list[Job]:
    """Every run once, all methods of one seed first: what is there when time runs out is paired."""
    named = {f"{arm.folder}/seed-{seed}": replace(arm.config, seed=seed) for seed in seeds for arm in arms}
    return [Job(name, config, out / "runs" / name) for name, config in named.items()]


def _frame(arms: Sequence[Arm], seeds: Sequence[int], out: Path, failures: dict[str, str]) -> pd.DataFrame:
    """One row per run that has an end; the others are named among the failures."""
    rows = [row for place, arm in enumerate(arms) for seed in seeds if (row := _row(place, arm, seed, out, failures))]
    swept = dict.fromkeys(key for arm in arms for key, _ in arm.setting)
    columns = dict.fromkeys(["arm", "method", "name", *swept, "seed", "directory", *(rows[0] if rows else NUMBERS)])
    return pd.DataFrame(rows, columns=list(columns))


def _row(place: int, arm: Arm, seed: int, out: Path, failures: dict[str, str]) -> dict[str, Any] | None:
    name = f"{arm.folder}/seed-{seed}"
    if name in failures:
        return None
    directory = RunDirectory(out / "runs" / name)
    try:
        outcome, table = directory.outcome(), directory.table("rounds")
    except RunError as error:
        failures[name] = str(error)
        return None
    if outcome is None or table is None or outcome["outcome"] == STOPPED:
        failures[name] = "; ".join(directory.notes) or f"{STOPPED} after round {(outcome or {}).get('round', 0)}"
        return None
    known = {"arm": place, "method": arm.label, "name": arm.config.method, **dict(arm.setting)}
    return {**known, "seed": seed, "directory": f"runs/{name}", **summarise(table.to_pandas(), arm.config.target)}


def share_cores(runs: int, jobs: int, workers: int, available: int) -> tuple[int, int]:
    """How many runs at once, and how many workers each: never more than there are cores.

    >>> share_cores(runs=20, jobs=0, workers=0, available=8), share_cores(runs=3, jobs=0, workers=0, available=8)
    ((8, 1), (3, 2))
    """
    if jobs < 0:
        raise ConfigError(f"jobs={jobs} is too small; choose at least 1, or 0 for as many as there are cores")
    at_once = max(1, min(jobs or runs, runs, available // max(1, workers)))
    return at_once, workers or max(1, available // at_once)


def _check_folder(out: Path, wanted: Collection[Job]) -> dict[str, str]:
    """Refuse a folder that holds something else, before anything is run or written; the layouts used there so far."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; give a directory as --out")
    if out.is_dir() and not (out / "comparison.toml").exists():
        strange = sorted(path.name for path in out.iterdir() if path.name != "runs" and not path.name.endswith(".tmp"))
        if strange:
            raise RunError(f"{out}: holds other files ({strange[0]}, ...); choose an empty or new --out")
    layouts: dict[str, str] = {}
    for job in wanted:
        directory = RunDirectory(job.out)
        if directory.exists():
            try:
                here = directory.config()
            except RunError:
                continue  # damaged: named at the end, after the others have run
            directory.same_experiment(here, job.config)
            layouts.setdefault(here.model, here.layout)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out}: cannot be made ({error.strerror}); choose another --out") from None
    return layouts


def _is_finished(job: Job) -> bool:
    try:
        return RunDirectory(job.out).outcome() is not None
    except RunError:
        return False  # damaged: running it says how


def _check_arms(wanted: Iterable[Job], layouts: dict[str, str]) -> None:
    """Refuse what cannot run, before anything runs, and decide once for all runs of a model what `auto` means.

    The layout of images changes rounding, so it must not depend on which run happened to measure it.
    """
    first: dict[Config, Job] = {}
    for job in wanted:
        if not job.out.exists():
            first.setdefault(replace(job.config, seed=0), job)
    with quiet_torch():
        for job in first.values():
            prepared = prepare(job.config)
            if job.config.model not in layouts:
                layouts[job.config.model] = resolved(prepared).config.layout


def _settled(job: Job, layouts: Mapping[str, str]) -> Job:
    layout = layouts.get(job.config.model, "auto") if job.config.layout == "auto" else job.config.layout
    return replace(job, config=replace(job.config, layout=layout))
