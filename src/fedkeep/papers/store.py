"""Where runs lie: one directory per config and seed, shared by all recipes; what is finished is not run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from fedkeep.data import load
from fedkeep.errors import RunError
from fedkeep.experiment.build import cores
from fedkeep.experiment.compare import share_cores
from fedkeep.experiment.config import Config
from fedkeep.experiment.jobs import Event, Job, run_jobs
from fedkeep.experiment.run import NOTHING_RUN, STOPPED
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.sweep import slug
from fedkeep.papers.expand import Arm
from fedkeep.papers.shrink import write_shrunk

Listener = Callable[[Event], None]


@lru_cache(maxsize=8)
def _test_labels(data: str, root: str) -> np.ndarray:
    return load(data, root or None).test_y.numpy()


@dataclass(frozen=True, eq=False)
class Finished:
    """A run that has come to its end, read as it is asked for."""

    path: Path
    config: Config

    @cached_property
    def rounds(self) -> pd.DataFrame:
        return self._table("rounds")

    @cached_property
    def clients(self) -> pd.DataFrame:
        return self._table("clients")

    @cached_property
    def pairs(self) -> pd.DataFrame:
        return self._table("forgetting")

    @cached_property
    def holdings(self) -> np.ndarray:
        """counts[k, c]: the training examples of label c on client k."""
        table = RunDirectory(self.path).partition().to_pandas()
        return table.pivot_table(index="client", columns="class", values="train", aggfunc="sum").to_numpy()

    @property
    def model(self) -> Mapping[str, object]:
        return RunDirectory(self.path).model("final")

    @cached_property
    def held_share(self) -> float:
        """The share of the test examples whose class some client holds."""
        labels = _test_labels(self.config.data, self.config.data_root)
        return float(np.isin(labels, np.flatnonzero(self.holdings.sum(0))).mean())

    def _table(self, name: str) -> pd.DataFrame:
        directory = RunDirectory(self.path)
        table = directory.table(name)
        if table is None:
            raise RunError(f"{self.path}: has no table {name}; {'; '.join(directory.notes) or 'repeat the run'}")
        return table.to_pandas()


@dataclass
class Store:
    """The runs of all recipes under one folder."""

    folder: Path
    root: Path | None = None
    failures: dict[str, str] = field(default_factory=dict)  # run -> why
    notes: list[str] = field(default_factory=list)

    @property
    def data(self) -> Path:
        """Where shrunk data lies."""
        return self.folder / "data"

    def name(self, config: Config) -> str:
        """The name of a run's directory: readable, and told by everything that its result depends on."""
        known = {key: value for key, value in config.chosen().items() if key != "seed"}
        mark = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=5).hexdigest()
        words = "-".join((Path(config.data).stem.partition(",")[0], config.model, config.method))
        return f"{slug(words)[:60]}-{mark}/seed-{config.seed}"

    def located(self, config: Config) -> Config:
        """The config with the place of its data."""
        return replace(config, data_root=str(self.data)) if config.data.endswith(".npz") else config

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Write the shrunk data that is needed."""
        for data in dict.fromkeys(arm.config.data for arm in arms if arm.config.data.endswith(".npz")):
            write_shrunk(data, self.root, self.data)

    def jobs(self, arms: Sequence[Arm], seeds: Sequence[int]) -> list[Job]:
        """The runs of these arms, each once."""
        found: dict[str, Job] = {}
        for seed in seeds:  # a whole set of results as early as possible
            for arm in arms:
                config = self.located(replace(arm.config, seed=seed))
                name = self.name(config)
                found[name] = Job(name, config, self.folder / name)
        return list(found.values())

    def todo(self, arms: Sequence[Arm], seeds: Sequence[int]) -> list[Job]:
        """The runs of these arms that have not come to their end."""
        return [job for job in self.jobs(arms, seeds) if not self._ended(job)]

    def run(self, todo: Sequence[Job], jobs: int = 0, workers: int = 0, listen: Listener | None = None) -> None:
        """Run these, `jobs` at once; one that fails is noted and does not stop the others."""
        if not todo:
            return
        together, workers = share_cores(len(todo), jobs, workers, cores())

        def hear(event: Event) -> None:
            if event.kind == "failed":
                self.failures[event.job.name] = event.text
            self.notes.extend(f"{event.job.name}: {note}" for note in event.notes if not note.endswith(NOTHING_RUN))
            if listen:
                listen(event)

        run_jobs([replace(job, config=replace(job.config, workers=workers)) for job in todo], together, hear)

    def _ended(self, job: Job) -> bool:
        directory = RunDirectory(job.out)
        try:
            return directory.exists() and directory.outcome() is not None
        except RunError:
            return False  # damaged: running it says what is wrong

    def finished(self, config: Config) -> Finished | None:
        """The finished run of a config, None where it failed; `failures` says why."""
        config = self.located(config)
        name = self.name(config)
        directory = RunDirectory(self.folder / name)
        try:
            outcome = directory.outcome() if directory.exists() else None
        except RunError as error:
            self.failures.setdefault(name, str(error))
            return None
        if outcome is None or outcome["outcome"] == STOPPED:
            why = f"{STOPPED} after round {outcome['round']}" if outcome else "did not come to its end"
            self.failures.setdefault(name, why)
            return None
        return Finished(directory.path, config)
