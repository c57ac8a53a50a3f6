"""Run an experiment from beginning to end, or from where it was interrupted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch

from fedkeep.errors import ConfigError, RunError, nearest
from fedkeep.experiment.about import about
from fedkeep.experiment.budget import Peak
from fedkeep.experiment.build import engine_for, label_table, prepare, resolved, simulation_of
from fedkeep.experiment.config import HINTS, Config
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.summary import LAST as LAST
from fedkeep.experiment.summary import summarise
from fedkeep.experiment.tables import TABLES, History
from fedkeep.grammar import name_of
from fedkeep.memories import Memories
from fedkeep.method import Method
from fedkeep.rounds import NoUsableUpdate, ServerState
from fedkeep.simulate import RoundRecord
from fedkeep.tree import Params

Listener = Callable[[RoundRecord], None]
CHECKPOINT_SHARE = 0.02  # of the run's time, at most
NOTHING_RUN = "nothing was run"
STOPPED = "stopped: no usable update"


@dataclass
class Run:
    """A finished run: its config, its records, its models."""

    config: Config
    params: Params
    buffers: Params
    history: History
    best: tuple[Params, Params] = field(repr=False)
    directory: Path | None = None
    notes: list[str] = field(default_factory=list)
    peak: Peak | None = None  # of memory; None for a run that was read from its directory

    def frame(self, name: str) -> pd.DataFrame:
        """A table of the run as a pandas frame: "rounds", "clients", "classes" or "forgetting"."""
        if name not in TABLES:
            raise ConfigError(f'a run has no table "{name}"; it has {", ".join(TABLES)}')
        table = self.history.table(name)
        if table is None:
            raise RunError(f'table "{name}" was not recorded; run with forgetting="cohort" or "all"')
        return table.to_pandas()

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One dictionary of plain numbers per round."""
        return self.frame("rounds").to_dict("records")

    @property
    def accuracy(self) -> float:
        """Test accuracy of the last round that was judged."""
        return float(self.frame("rounds")["accuracy"].dropna().iloc[-1])

    def summary(self) -> dict[str, float]:
        """The numbers a comparison is made of."""
        return summarise(self.frame("rounds"), self.config.target)


def run(
    method: str | Method = "fedavg", *, out: str | Path | None = None, listen: Listener | None = None, **options: Any
) -> Run:
    """Run one experiment and return its records and models.

    >>> import fedkeep as fk
    >>> done = fk.run("fedavg+wsm", data="digits", clients=10, rounds=2, workers=1)
    >>> len(done.rounds)
    2
    """
    for key in options:
        if key not in HINTS:
            raise ConfigError(f'unknown option "{key}": {nearest(key, HINTS)}')
    name = name_of(method) if isinstance(method, Method) else method
    return execute(Config(method=name, **options), Path(out) if out else None, listen)


def execute(
    config: Config, out: Path | None = None, listen: Listener | None = None, command: list[str] | None = None
) -> Run:
    """Run a config; with `out`, in a directory that can be resumed."""
    directory = RunDirectory(out) if out else None
    if directory and directory.exists() and (outcome := directory.outcome()):
        directory.same_experiment(directory.config(), config)
        directory.notes.append(f"{out}: {outcome['outcome']} after round {outcome['round']} already; {NOTHING_RUN}")
        done = load_run(directory.path, directory.notes)
        done.config = replace(done.config, target=config.target)
        return done
    with quiet_torch():
        if directory and directory.exists():  # these two change rounding: a resumed run keeps what it began with
            begun = directory.config()
            config = replace(config, layout=begun.layout, step=begun.step)
        make_engine = engine_for(config)
        prepared = resolved(prepare(config))
        config = prepared.config
        try:
            if directory:
                directory.open(config, lambda: about(command), label_table(prepared))
            return carry_out(config, simulation_of(prepared, make_engine), directory, listen)
        finally:
            if directory:
                directory.close()


@contextmanager
def quiet_torch() -> Iterator[None]:
    """One thread and a random state of its own while a run goes on; the caller's come back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


class Federation(Protocol):
    """Anything that goes on round by round: a simulation, or a federation over a network."""

    state: ServerState
    memories: Memories

    def step(self) -> RoundRecord: ...

    def close(self) -> None: ...


def carry_out(
    config: Config,
    federation: Federation,
    directory: RunDirectory | None,
    listen: Listener | None = None,
    remarks: Callable[[], dict[str, Any]] = dict,
) -> Run:
    """Let a federation go on to its last round, from the last checkpoint of an open directory where there is one.

    `remarks` are added to what the directory says of the outcome.
    """
    return _Execution(config, federation, directory, listen, remarks).go()


class _Execution:
    """One run under way."""

    def __init__(
        self,
        config: Config,
        federation: Federation,
        directory: RunDirectory | None,
        listen: Listener | None,
        remarks: Callable[[], dict[str, Any]],
    ) -> None:
        self.config, self.directory, self.listen, self.remarks = config, directory, listen, remarks
        self.history, self.unsaved = History(), History()
        self.simulation = federation
        if directory:
            federation.memories.at(directory.memories)
        state = self.simulation.state
        self.best: tuple[Params, Params] = (state.params, state.buffers)
        self.best_score = -math.inf
        self.started, self.spent = time.monotonic(), 0.0
        self.cost = 0.02 + size_of(freeze(self.simulation)) / 200e6  # seconds; a guess until the first is written

    def go(self) -> Run:
        simulation = self.simulation
        try:
            if self.directory:
                self._resume(self.directory)
            while simulation.state.round < self.config.rounds:
                self._round()
        except NoUsableUpdate:
            self._finish(STOPPED)
            raise
        except KeyboardInterrupt:
            self._save()
            raise
        finally:
            simulation.close()
        self._finish("finished")
        state, path = simulation.state, self.directory and self.directory.path
        notes = self.directory.notes if self.directory else []
        return Run(self.config, state.params, state.buffers, self.history, self.best, path, notes, Peak.now())

    def _round(self) -> None:
        record = self._step()
        self.history.add(record)
        if self.directory and record.left_out:
            self.directory.log(f"round {record.round}: left out, update not finite: clients {record.left_out}")
        if self.directory and self._due(record.round):
            self._save()
        if self.listen:
            self.listen(record)

    def _step(self) -> RoundRecord:
        """One round with its records, or none: if interrupted, the simulation and the records stay where they were."""
        simulation = self.simulation
        state, mark = simulation.state, self.unsaved.mark()
        simulation.memories.begin(state.round + 1)
        best = self.best, self.best_score
        try:
            record = simulation.step()
            # the test data chooses nothing; where nothing is held out (nan), the newest is the best
            if not record.validation_accuracy <= self.best_score:
                self.best_score = record.validation_accuracy
                self.best = (simulation.state.params, simulation.state.buffers)
            self.unsaved.add(record)
            return record
        except BaseException:
            self.unsaved.cut(mark)
            self.best, self.best_score = best
            simulation.memories.undo()
            simulation.state = state
            raise

    def _due(self, round: int) -> bool:
        if self.config.checkpoint_every:
            return round % self.config.checkpoint_every == 0
        return self.spent + self.cost <= CHECKPOINT_SHARE * (time.monotonic() - self.started)

    def _save(self) -> None:
        tables = self.unsaved.tables()
        if self.directory is None or not tables:
            return
        if tables["rounds"].column("round")[-1].as_py() != self.simulation.state.round:
            return  # interrupted between a round and its record; the last checkpoint stands
        started = time.monotonic()
        meta = {"best_score": self.best_score if math.isfinite(self.best_score) else None}
        memories, best = self.simulation.memories, {"params": self.best[0], "buffers": self.best[1]}
        state = {**freeze(self.simulation), "best": best, "remembered": memories.save()}
        self.directory.checkpoint(self.simulation.state.round, tables, state, meta)
        memories.saved(self.simulation.state.round)
        self.unsaved = History()
        self.cost = time.monotonic() - started
        self.spent += self.cost

    def _resume(self, directory: RunDirectory) -> None:
        def recall(state: dict[str, Any], round: int) -> None:
            if "remembered" in state:
                self.simulation.memories.load(state["remembered"], round)

        found = directory.latest(recall)
        if found is None:
            return
        state, meta, tables = found
        if state.keys() != {*freeze(self.simulation), "best", "remembered"} or not same_shapes(
            state["params"], self.best[0]
        ):
            raise RunError(f"{directory.path}: its checkpoint is of another FedKeep; use the release that wrote it")
        thaw(self.simulation, state, meta["round"])
        self.best = (state["best"]["params"], state["best"]["buffers"])
        self.best_score = -math.inf if meta["best_score"] is None else meta["best_score"]
        self.history.append(tables)
        directory.notes.append(f"went on from round {meta['round']}")
        directory.log(directory.notes[-1])

    def _finish(self, outcome: str) -> None:
        if self.directory:
            state = self.simulation.state
            how = {"outcome": outcome, "round": state.round, **self.remarks()}
            self.directory.finish(how, self.history.tables(), (state.params, state.buffers), self.best)


def freeze(simulation: Federation) -> dict[str, Any]:
    """All that a simulation carries from round to round beside the clients' memories, as one nesting of tensors."""
    state = simulation.state
    return {
        "params": state.params,
        "buffers": state.buffers,
        "slots": state.slots,
        "optimizer": state.optimizer,
    }


def thaw(simulation: Federation, state: dict[str, Any], round: int) -> None:
    """Put a simulation where `freeze` found it."""
    simulation.state = ServerState(state["params"], state["buffers"], state["slots"], state["optimizer"], round)


def size_of(nested: Mapping[str, Any]) -> int:
    """The bytes of all tensors of a nesting."""
    return sum(t.nbytes if isinstance(t, torch.Tensor) else size_of(t) for t in nested.values())


def same_shapes(left: Params, right: Params) -> bool:
    return {name: t.shape for name, t in left.items()} == {name: t.shape for name, t in right.items()}


def load_run(path: Path, notes: list[str] | None = None) -> Run:
    """A finished run from its directory."""
    directory = RunDirectory(path, notes if notes is not None else [])
    config, outcome = directory.config(), directory.outcome()
    tables = {name: table for name in TABLES if (table := directory.table(name)) is not None}
    if "rounds" not in tables and outcome and outcome["round"]:
        raise RunError(f"{path / 'rounds.parquet'}: missing or damaged; restore it from a copy, or repeat the run")
    history = History()
    history.append(tables)
    final, best = directory.model("final"), directory.model("best")
    return Run(config, final, {}, history, (best, {}), path, directory.notes)
