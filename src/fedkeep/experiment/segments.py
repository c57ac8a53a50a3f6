"""Checkpoints of a run that is under way: one folder each, with the records since the one before and the full state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedkeep import packing
from fedkeep.errors import DataError, RunError
from fedkeep.experiment.tables import TABLES, from_parquet, join, to_parquet
from fedkeep.files import read_checked, read_sums, set_aside, write_folder

STATE = "state.safetensors"
Saved = tuple[dict[str, Any], dict[str, Any], dict[str, pa.Table]]
Take = Callable[[dict[str, Any], int], None]
KEEP_STATES = 2  # the newest, and the one to go back to if it is damaged


@dataclass(frozen=True)
class Segments:
    """The folders segments/000010, segments/000025 ... of a run directory, named by the last round in them."""

    run: Path
    notes: list[str]

    @property
    def path(self) -> Path:
        return self.run / "segments"

    def folders(self) -> list[Path]:
        return sorted(p for p in self.path.iterdir() if p.name.isdigit()) if self.path.is_dir() else []

    def write(self, round: int, tables: dict[str, pa.Table], state: dict[str, Any], meta: dict[str, Any]) -> None:
        """Save records since the last checkpoint and the whole state, in one atomic step."""
        folder = self.path / f"{round:06d}"
        if read_sums(folder) is not None:
            return  # interrupted just after it was written
        files = {f"{name}.parquet": to_parquet(table) for name, table in tables.items()}
        write_folder(folder, {**files, STATE: packing.to_bytes(state, {"round": round, **meta})})
        for old in self.folders()[:-KEEP_STATES]:
            with suppress(OSError):
                (old / STATE).unlink(missing_ok=True)

    def table(self, name: str) -> pa.Table | None:
        """A table as far as it has been written and is undamaged."""
        parts = []
        for folder in self.folders():
            try:
                parts.append(_table(folder, name))
            except (RunError, DataError) as error:
                note = f"{error}; records from there on are left out"
                self.notes.extend([note] if note not in self.notes else [])
                break
        return join([part for part in parts if part is not None])

    def latest(self, take: Take = lambda state, round: None) -> Saved | None:
        """The newest undamaged state, its plain values, and all records up to it; `take` may refuse it, too."""
        for folder in reversed(self.folders()):
            try:
                data = read_checked(folder, STATE, read_sums(folder) or {})
                if data is None:
                    raise DataError(f"{folder / STATE}: missing or damaged")
                state, meta = packing.from_bytes(data, str(folder / STATE))
                tables = self._records_until(folder, meta["round"])
                take(state, meta["round"])
            except (DataError, RunError) as error:
                set_aside(folder, self.run)
                self.notes.append(f"checkpoint {folder.name} cannot be used ({error}); going back to the one before it")
                continue
            return state, meta, tables
        return None

    def _records_until(self, last: Path, round: int) -> dict[str, pa.Table]:
        tables = {}
        for name in TABLES:
            parts = [_table(folder, name) for folder in self.folders() if folder.name <= last.name]
            if (table := join([part for part in parts if part is not None])) is not None:
                tables[name] = table
        if "rounds" not in tables or tables["rounds"].column("round").to_pylist() != list(range(1, round + 1)):
            raise RunError(f"{last}: records of rounds before it are missing")
        return tables


def _table(folder: Path, name: str) -> pa.Table | None:
    sums = read_sums(folder)
    if sums is None:
        raise RunError(f"{folder}: its checksums are missing or damaged")
    if f"{name}.parquet" not in sums:
        return None
    data = read_checked(folder, f"{name}.parquet", sums)
    if data is None:
        raise RunError(f"{folder / name}.parquet: does not match its checksum")
    return from_parquet(data, str(folder / name))
