"""A run is a directory that can be moved, and that a kill at any moment leaves valid.

    config.toml  about.json  partition.parquet  sums.json     written at the start
    segments/000010/ ...                                      since the last checkpoint: records and the server's state
    segments/memories/                                        what clients remember, one file for each client
    rounds.parquet  clients.parquet  classes.parquet  forgetting.parquet  final.safetensors  best.safetensors
    outcome.json                                              how it ended
    log.txt                                                   what happened when

While a run goes on, its records lie in segments; when it is finished they are joined and the segments go. Every file
but the log has its checksum in the sums.json beside it; what is damaged is set aside, never used.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from safetensors.torch import load, save

from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.config import Config, read_toml
from fedkeep.experiment.segments import Saved, Segments, Take
from fedkeep.experiment.tables import from_parquet, to_parquet
from fedkeep.files import (
    SUMS,
    cannot_write,
    digest,
    drop_lock,
    read_checked,
    read_sums,
    set_aside,
    take_lock,
    write_sums,
    write_whole,
)
from fedkeep.tree import Params

LOCK = "lock"
MEMORIES = "segments/memories"
OURS = (LOCK, "log.txt", "config.toml", "about.json", "partition.parquet", SUMS, "segments")


@dataclass
class RunDirectory:
    """The files of one run; `notes` collects what the user should know."""

    path: Path
    notes: list[str] = field(default_factory=list)
    _lock: int | None = None

    @property
    def segments(self) -> Segments:
        return Segments(self.path, self.notes)

    @property
    def memories(self) -> Path:
        """Where clients' memories are kept while the run goes on."""
        return self.path / MEMORIES

    # -- writing

    def open(self, config: Config, about: Callable[[], dict[str, Any]], partition: dict[str, Any]) -> None:
        """Begin a run here, or make sure that the one that is here is the same experiment."""
        self.hold()
        if self.exists():
            self.same_experiment(self.config(), config)
        files = {
            "config.toml": lambda: config.to_toml().encode(),
            "about.json": lambda: json.dumps(about(), indent=1).encode(),
            "partition.parquet": lambda: to_parquet(partition),
        }
        self._sweep_up()
        if self._begun():
            self._check_start(files)
        else:
            self._write({name: make() for name, make in files.items()})
            self.log(f"begin {config.method} for {config.rounds} rounds")

    def hold(self) -> None:
        """Make the directory and lock it, unless it holds something else."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: is a file; give a directory as --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be made ({error.strerror}); choose another --out") from None
        if not self.exists():
            strange = sorted(p.name for p in self.path.iterdir() if p.name not in OURS and not p.name.endswith(".tmp"))
            if strange:
                raise RunError(f"{self.path}: holds other files ({strange[0]}, ...); choose an empty or new --out")
        self._take_lock()

    def _write(self, files: Mapping[str, bytes], known: Mapping[str, str] | None = None) -> None:
        """Write files, then the checksums of these and of the `known` ones: that is the moment they count."""
        for name, data in files.items():
            write_whole(self.path / name, data)
        write_sums(self.path, {**(known or {}), **{name: digest(data) for name, data in files.items()}})

    def _check_start(self, files: Mapping[str, Callable[[], bytes]]) -> None:
        """Before a run goes on: mend what can be made again, and refuse data that is not what it was."""
        sums = read_sums(self.path) or {}
        for name in ("about.json", "partition.parquet"):
            if read_checked(self.path, name, sums) is None:
                if (self.path / name).exists():
                    set_aside(self.path / name, self.path)
                self._write({name: files[name]()}, sums)
                sums = read_sums(self.path) or {}
                self.notes.append(f"{name} was missing or damaged and has been written anew")
        here = from_parquet((self.path / "partition.parquet").read_bytes(), "partition.parquet")
        if not here.equals(from_parquet(files["partition.parquet"](), "partition.parquet")):
            raise RunError(
                f"{self.path}: the clients hold other examples than when this run began, so the data has changed; "
                "restore the data, or choose another --out"
            )

    def _sweep_up(self) -> None:
        """Remove what a killed process left half-written."""
        for left in (
            left for where in ("", "segments/", f"{MEMORIES}/*/") for left in self.path.glob(f"{where}.*.tmp")
        ):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def _take_lock(self) -> None:
        try:
            self._lock = take_lock(self.path / LOCK)
        except BlockingIOError:
            raise RunError(
                f"{self.path}: another process is writing this run; wait for it or use another --out"
            ) from None
        except OSError as error:
            raise cannot_write(self.path / LOCK, error) from None

    def close(self) -> None:
        """Let go of the directory."""
        if self._lock is not None:
            drop_lock(self._lock)
            self._lock = None

    def same_experiment(self, here: Config, config: Config) -> None:
        differing = [k for k, v in config.identity().items() if here.identity()[k] != v]
        if differing:
            key = differing[0]
            there, now = getattr(here, key), getattr(config, key)
            raise RunError(
                f"{self.path}: holds another experiment ({key} is {there!r} there, {now!r} here); choose another "
                "--out, or run the config.toml that is there"
            )

    def checkpoint(self, round: int, tables: dict[str, pa.Table], state: dict[str, Any], meta: dict[str, Any]) -> None:
        """Save records since the last checkpoint and the whole state, in one atomic step."""
        self.segments.write(round, tables, state, meta)
        self.log(f"checkpoint after round {round}")

    def finish(
        self,
        outcome: dict[str, Any],
        tables: dict[str, pa.Table],
        final: tuple[Params, Params],
        best: tuple[Params, Params],
    ) -> None:
        """Save the joined records and the models, and mark the run as finished."""
        files = {f"{name}.parquet": to_parquet(table) for name, table in tables.items()}
        for name, (params, buffers) in (("final", final), ("best", best)):
            tensors = {n: t.detach().contiguous().clone() for n, t in {**params, **buffers}.items()}
            files[f"{name}.safetensors"] = save(tensors, metadata={"format": "pt"})
        files["outcome.json"] = json.dumps(outcome, indent=1).encode()
        self._write(files, read_sums(self.path))
        with suppress(OSError):  # all at once: no reader sees half of the segments
            os.rename(self.path / "segments", self.path / ".segments.tmp")
        self._sweep_up()
        self.log(f"{outcome['outcome']} after round {outcome['round']}")

    def log(self, line: str) -> None:
        """Append a line to log.txt; a full disk does not stop the run for it."""
        try:
            with open(self.path / "log.txt", "a", encoding="utf-8") as handle:
                handle.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError:
            self.notes.append(f"{self.path / 'log.txt'} could not be written")

    # -- reading

    def exists(self) -> bool:
        return (self.path / "config.toml").exists()

    def config(self) -> Config:
        """The run's resolved config; that of a run killed before it had checksums is taken as it is."""
        if not self.path.is_dir():
            raise RunError(f"{self.path}: no such run directory; give the --out of a run")
        if not self.exists():
            raise RunError(f"{self.path}: not a run directory (it has no config.toml); give the --out of a run")
        if self._begun() and self._checked("config.toml") is None:
            raise RunError(
                f"{self.path / 'config.toml'}: does not match its checksum; restore it from a copy of the run"
            )
        try:
            return Config(**read_toml(self.path / "config.toml"))
        except (ConfigError, TypeError) as error:
            raise RunError(f"{self.path}: its config.toml cannot be used: {error}") from None

    def outcome(self) -> dict[str, Any] | None:
        """How the run ended; None while it has not, be it that it was killed while finishing."""
        if not self._begun():
            return None
        sums = self._sums()
        if "outcome.json" not in sums:
            return None
        data = read_checked(self.path, "outcome.json", sums)
        if data is None:
            raise RunError(
                f"{self.path / 'outcome.json'}: missing, or does not match its checksum; restore it from a copy of the "
                "run, or repeat the run in another --out"
            )
        return json.loads(data)

    def about(self) -> dict[str, Any]:
        data = self._checked("about.json")
        if data is None:
            self.notes.append("about.json is missing or damaged; versions and machine are unknown")
            return {}
        return json.loads(data)

    def table(self, name: str) -> pa.Table | None:
        """A table of the run, finished or not; None where it was not recorded."""
        if self.outcome() is not None:
            if f"{name}.parquet" not in self._sums():
                return None
            data = self._checked(f"{name}.parquet")
            if data is None:
                self.notes.append(f"{self.path / name}.parquet is missing or damaged and left out")
                return None
            return from_parquet(data, str(self.path / f"{name}.parquet"))
        return self.segments.table(name)

    def partition(self) -> pa.Table:
        """Who holds which label: client, class, train, held_out."""
        data = self._checked("partition.parquet")
        if data is None:
            raise RunError(f"{self.path / 'partition.parquet'}: missing or damaged; restore it from a copy of the run")
        return from_parquet(data, str(self.path / "partition.parquet"))

    def model(self, which: str) -> dict[str, Any]:
        """The tensors of "final" or "best"."""
        data = self._checked(f"{which}.safetensors")
        if data is None:
            raise RunError(f"{self.path / which}.safetensors: missing or damaged; finish or repeat the run")
        return load(data)

    def latest(self, take: Take = lambda state, round: None) -> Saved | None:
        """The newest undamaged state, its plain values, and all records up to it; `take` may refuse it, too."""
        known = len(self.notes)
        found = self.segments.latest(take)
        for note in self.notes[known:]:
            self.log(note)
        return found

    def _begun(self) -> bool:
        return (self.path / SUMS).exists() or (self.path / "outcome.json").exists()

    def _sums(self) -> dict[str, str]:
        sums = read_sums(self.path)
        if sums is None:
            raise RunError(
                f"{self.path / SUMS}: missing or damaged, so nothing here can be trusted; restore it from a copy of "
                "the run. If the run is unfinished and its config.toml is right, remove sums.json and run it again"
            )
        return sums

    def _checked(self, name: str) -> bytes | None:
        return read_checked(self.path, name, self._sums())
