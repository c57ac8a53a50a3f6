"""Run directories -> plain data: what can be read is read, and what cannot is said.

A directory may be unfinished (its records lie in segments), damaged, written by another version, or no run at all.
Each of these becomes a note; only when nothing at all is left to show there is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedkeep.errors import FedKeepError, RunError
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.tables import from_parquet
from fedkeep.files import read_sums

MATRIX_ROUNDS = 25  # the slider's stops: more would make the page large and tell little more
HOW_TO_RECORD = "not recorded; run with `--forgetting cohort` (or `all`) to record it"
HOW_TO_PROBE = "not recorded; deploy with `--probe` to record it, which sends clients' trained models to each other"
PAIRS = ("round", "model", "data", "accuracy_before", "accuracy_local", "data_in_cohort")


@dataclass(frozen=True, eq=False)
class RunData:
    """What one run directory has to show. A table that was not recorded, or cannot be read, is None."""

    path: Path
    options: dict[str, Any]
    config_text: str
    status: str
    rounds: pd.DataFrame
    clients: pd.DataFrame | None = None
    classes: pd.DataFrame | None = None
    pairs: pd.DataFrame | None = None  # F_ki of the rounds that are shown
    partition: pd.DataFrame | None = None
    about: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return str(self.options.get("method", "unknown method"))

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))

    @property
    def last_round(self) -> int:
        return int(np.asarray(self.rounds["round"]).max())

    def name_of(self, client: int) -> str:
        """The name of a client in a deployment that names its clients; otherwise nothing."""
        names = (self.about or {}).get("deployment", {}).get("names", [])
        return str(names[client]) if client < len(names) and names[client] != f"client-{client}" else ""

    @property
    def by_counts(self) -> bool:
        """Whether clients measured forgetting over a network: they tell counts, and F_ki only with --probe."""
        return bool((self.about or {}).get("deployment")) and self.options.get("forgetting") != "off"


def how_to_record_pairs(runs: Iterable[RunData]) -> str:
    """What to do to get F_ki into a report that lacks it."""
    return HOW_TO_PROBE if any(run.by_counts for run in runs) else HOW_TO_RECORD


def load_runs(
    paths: Iterable[str | Path], matrix_rounds: Sequence[int] | None = None
) -> tuple[list[RunData], list[str]]:
    """The runs of these directories, and notes on what could not be shown.

    A directory that holds run directories stands for all of them. F_ki is kept for `matrix_rounds` only, by default
    at most 25 rounds, evenly spaced, with the first and the last.
    """
    runs, notes = [], []
    for path in _expand(paths):
        try:
            runs.append(read_run(path))
        except FedKeepError as error:
            notes.append(str(error))
    if not runs:
        raise RunError("; ".join(notes) or "no run directory was given; give the --out of one or more runs")
    recorded = np.unique(np.concatenate([run.rounds["round"].to_numpy() for run in runs]))
    chosen = spread(recorded, MATRIX_ROUNDS) if matrix_rounds is None else matrix_rounds
    runs = [with_pairs(run, chosen) for run in runs]
    notes += [f"{run.path}: {note}" for run in runs for note in run.notes]
    return runs, list(dict.fromkeys(notes))


def read_run(path: Path) -> RunData:
    """One run directory without its F_ki, as far as it can be read."""
    directory = RunDirectory(path)
    notes = []
    if directory.exists() and read_sums(path) is None:
        notes.append("sums.json is missing or damaged: what is there is shown as it is, unchecked")
    options, text = _options(directory, notes)
    rounds = _table(directory, "rounds", notes)
    frame = rounds.to_pandas() if rounds is not None else pd.DataFrame()
    if "round" not in frame or frame.empty:
        why = _about_it(path, [*notes, *directory.notes]) or ["no round is recorded yet"]
        raise RunError(f"{path}: nothing to show ({'; '.join(why)}); let the run go on, or repeat it")
    status = _status(directory, int(np.asarray(frame["round"]).max()), options, notes)
    run = RunData(
        path=path,
        options=options,
        config_text=text,
        status=status,
        rounds=frame.sort_values("round", ignore_index=True),
        clients=_frame(directory, "clients", "client", notes),
        classes=_frame(directory, "classes", "class", notes),
        partition=_partition(directory, notes),
        about=_about(directory, notes),
    )
    return replace(run, notes=_about_it(path, [*notes, *directory.notes, *_lost(run.rounds)]))


def _about_it(path: Path, notes: Iterable[str]) -> tuple[str, ...]:
    """Notes on a run, each once and without its path in front; what follows from missing checksums is said once."""
    short = [note.removeprefix(f"{path}: ").removeprefix(f"{path}/") for note in notes]
    return tuple(dict.fromkeys(note for note in short if "nothing here can be trusted" not in note))


def _lost(rounds: pd.DataFrame) -> list[str]:
    """What did not arrive over a network."""
    if not {"missing", "refused"} <= set(rounds):
        return []
    missing, refused = (rounds[name].to_numpy() for name in ("missing", "refused"))
    touched = np.count_nonzero(missing + refused)
    if not touched:
        return []
    how_many = f"replies missing: {missing.sum():.0f}, refused: {refused.sum():.0f}"
    return [f"in {touched} of {len(rounds)} rounds not all clients counted ({how_many}); log.txt says whose and why"]


def with_pairs(run: RunData, rounds: Sequence[int] | np.ndarray) -> RunData:
    """The run with F_ki of the given rounds."""
    directory = RunDirectory(run.path)
    notes: list[str] = []
    table = _table(directory, "forgetting", notes)
    known = _about_it(run.path, [*run.notes, *notes, *directory.notes])
    if table is None or not set(PAIRS) <= set(table.column_names):
        return replace(run, notes=known)
    if run.by_counts and (table["model"].to_numpy() == table["data"].to_numpy()).all():
        return replace(run, notes=known)  # each client's own data only: nothing that anybody could forget of others
    wanted = np.isin(table["round"].to_numpy(), np.asarray(rounds))
    kept = table.select(PAIRS).filter(pa.array(wanted))
    return replace(run, pairs=kept.to_pandas() if len(kept) else None, notes=known)


def spread(values: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the values, evenly spaced, the first and the last among them.

    >>> spread(np.arange(1, 101), 5).tolist()
    [1, 26, 51, 75, 100]
    >>> spread(np.array([1, 2, 3]), 5).tolist()
    [1, 2, 3]
    """
    if len(values) <= count:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, count).round().astype(int))]


def _expand(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories: those given, and those inside of given directories that are not runs themselves."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = [] if (path / "config.toml").exists() or not path.is_dir() else _runs_inside(path)
        found += inside or [path]
    unique = {path.resolve(): path for path in reversed(found)}
    return list(reversed(unique.values()))


def _runs_inside(path: Path, depth: int = 3) -> list[Path]:
    folders = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    runs: list[Path] = []
    for folder in folders:
        if (folder / "config.toml").exists():
            runs.append(folder)
        elif depth > 1:
            runs += _runs_inside(folder, depth - 1)
    return runs


def _options(directory: RunDirectory, notes: list[str]) -> tuple[dict[str, Any], str]:
    """The run's options; those of a damaged or foreign config.toml as far as they can be read."""
    file = directory.path / "config.toml"
    try:
        options = asdict(directory.config())
        return options, file.read_text(encoding="utf-8")
    except FedKeepError as error:
        if not file.is_file():
            raise
        try:
            text = file.read_text(encoding="utf-8")
            options = tomllib.loads(text)
        except (OSError, ValueError):
            raise error from None
        if not isinstance(options.get("method"), str) or not isinstance(options.get("seed", 0), int):
            raise error from None
        notes.append(f"{error}. What can be read is shown")
        return options, text


def _status(directory: RunDirectory, recorded: int, options: dict[str, Any], notes: list[str]) -> str:
    planned = options.get("rounds", "?")
    try:
        outcome = directory.outcome()
    except FedKeepError as error:
        notes.append(str(error))
        return f"unknown, {recorded} of {planned} rounds recorded"
    if outcome is None:
        notes.append(
            f"not finished, {recorded} of {planned} rounds are recorded: under way or interrupted "
            "(the same command goes on from there)"
        )
        return f"not finished, {recorded} of {planned} rounds"
    if outcome.get("outcome") != "finished":
        notes.append(f"{outcome.get('outcome')} after round {recorded} of {planned}")
    return str(outcome.get("outcome", "unknown"))


def _table(directory: RunDirectory, name: str, notes: list[str]) -> pa.Table | None:
    try:
        return directory.table(name)
    except FedKeepError as error:
        notes.append(str(error))
    return _unchecked(directory.path / f"{name}.parquet", notes)


def _frame(directory: RunDirectory, name: str, key: str, notes: list[str]) -> pd.DataFrame | None:
    """A table that has a row per round and `key`."""
    table = _table(directory, name, notes)
    return None if table is None or not {"round", key} <= set(table.column_names) else table.to_pandas()


def _partition(directory: RunDirectory, notes: list[str]) -> pd.DataFrame | None:
    table = None
    try:
        table = directory.partition()
    except FedKeepError as error:
        notes.append(f"{error}")
        if read_sums(directory.path) is None:
            table = _unchecked(directory.path / "partition.parquet", notes)
    return None if table is None or not {"client", "class", "train"} <= set(table.column_names) else table.to_pandas()


def _about(directory: RunDirectory, notes: list[str]) -> dict[str, Any]:
    try:
        return directory.about()
    except FedKeepError as error:
        notes.append(str(error))
        return {}


def _unchecked(file: Path, notes: list[str]) -> pa.Table | None:
    """A table without a look at its checksum, None where it cannot be read."""
    try:
        return from_parquet(file.read_bytes(), str(file)) if file.is_file() else None
    except (FedKeepError, OSError) as error:
        notes.append(str(error))
        return None
