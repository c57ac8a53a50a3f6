"""Runs of a comparison on a cluster: one core each, anywhere; what they write comes home as they write it.

A run works in a folder of the node that it is on. After each round, files that have changed are sent home, where they
are put in place in such an order that a kill at any moment leaves a valid run directory. So a run whose node is lost
goes on from its last checkpoint on another node, and so does one that was interrupted.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkeep.engine.ray_cluster import Cluster
from fedkeep.engine.ray_jobs import spread
from fedkeep.engine.sealed import Sealed, opened, sealed
from fedkeep.errors import RunError
from fedkeep.experiment.build import DataKey, cores, data_key, lend, load_data
from fedkeep.experiment.config import Config
from fedkeep.experiment.jobs import Event, Job, Listener, event_of, perform, run_jobs
from fedkeep.experiment.rundir import LOCK, MEMORIES, RunDirectory
from fedkeep.files import SUMS, write_folder_as_it_is, write_whole

Files = dict[str, bytes]
"""What a run directory holds, by relative path."""


def run_on_cluster(jobs: Sequence[Job], at_once: int, listen: Listener, base: Config) -> None:
    """Run all jobs on the cluster of a config; every job ends in an event "done" or "failed".

    Where there are few runs for many cores, each run has the whole cluster in its turn.
    """
    cluster = Cluster(base.ray_address, base.workers or cores())
    try:
        most = base.workers or cluster.cores()
        if (at_once or together(len(jobs), most)) == 1:
            run_jobs(jobs, 1, listen)
        else:
            _Away(cluster, jobs, listen).go(min(at_once or most, most))
    finally:
        cluster.close()


def together(runs: int, available: int) -> int:
    """How many runs at once on so many cores: one each, or one after another where most cores would idle.

    >>> together(20, 8), together(4, 8), together(3, 64)
    (20, 4, 1)
    """
    return runs if 2 * runs >= available else 1


class _Away:
    """Jobs under way on a cluster, as seen from home."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], listen: Listener) -> None:
        self.cluster, self.listen = cluster, listen
        self.jobs = [
            replace(j, config=replace(j.config, engine="auto", ray_address="", device="cpu", workers=1)) for j in jobs
        ]
        self.held: dict[int, RunDirectory] = {}
        self.data: dict[DataKey, Any] = {}
        self.begun: set[int] = set()

    def go(self, at_once: int) -> None:
        try:
            mine = [job for job in range(len(self.jobs)) if self._hold(job)]
            spread(
                self.cluster,
                run_here,
                lambda place: self._order(mine[place]),
                len(mine),
                at_once,
                lambda place, answer: self._hear(mine[place], answer),
                lambda place, text: self._end(mine[place], {"kind": "failed", "text": text}),
            )
        finally:
            for directory in self.held.values():
                directory.close()

    def _hold(self, job: int) -> bool:
        """Lock the directory of a run at home, so that nobody else writes it."""
        directory = RunDirectory(self.jobs[job].out)
        try:
            directory.hold()
        except RunError as error:
            self._end(job, {"kind": "failed", "text": str(error)})
            return False
        self.held[job] = directory
        return True

    def _order(self, number: int) -> tuple[Any, ...]:
        job = self.jobs[number]
        if number not in self.begun:
            self.begun.add(number)
            self.listen(Event(job, "begun"))
        key = data_key(job.config)
        if key not in self.data:
            self.data[key] = self.cluster.put(sealed(load_data(key)))
        return job.config, read_files(job.out), self.data[key], str(job.out)

    def _hear(self, number: int, answer: dict[str, Any]) -> None:
        if number not in self.held:
            return  # given up already
        try:
            place_files(self.jobs[number].out, answer.pop("files"), answer.pop("gone"))
        except RunError as error:  # no space: this run is lost, others may be small enough
            answer = {"kind": "failed", "text": str(error)}
        if answer["kind"] == "round":
            self.listen(event_of(self.jobs[number], answer))
        else:
            self._end(number, answer)

    def _end(self, number: int, answer: dict[str, Any]) -> None:
        if directory := self.held.pop(number, None):
            directory.close()
        self.listen(event_of(self.jobs[number], answer))


# -- at home and away


def read_files(out: Path, known: dict[str, tuple[int, int]] | None = None) -> Files:
    """What a run directory holds, as far as it has changed since it was `known`, which is brought up to date."""
    files: Files = {}
    known = {} if known is None else known
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if not path.is_file() or path.name == LOCK or any(part.endswith(".tmp") for part in Path(name).parts):
            continue
        state = path.stat()
        mark = (state.st_mtime_ns, state.st_size)
        if known.get(name) != mark:
            files[name] = path.read_bytes()
            known[name] = mark
    return files


def place_files(out: Path, files: Files, gone: Sequence[str] = ()) -> None:
    """Bring a run directory up to date: files, the checksums that make them count, memories, then whole checkpoints."""
    loose = sorted((name for name in files if "/" not in name), key=lambda name: name == SUMS)
    for name in loose:
        write_whole(out / name, files[name])
    folders: dict[str, Files] = {}
    for name in files:
        if name.startswith(MEMORIES):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(out / name, files[name])
        elif "/" in name:
            folders.setdefault(str(Path(name).parent), {})[Path(name).name] = files[name]
    for folder, inside in sorted(folders.items()):
        write_folder_as_it_is(out / folder, inside)
    for name in gone:
        (out / name).unlink(missing_ok=True)
        for folder in list((out / name).relative_to(out).parents)[:-1]:
            with suppress(OSError):  # it is gone, or something else is in it
                (out / folder).rmdir()


def run_here(config: Config, files: Files, data: Sealed, home: str) -> Iterator[dict[str, Any]]:
    """Do one run on a node; each answer brings what has been written since the one before."""
    lend(data_key(config), opened(data))
    with tempfile.TemporaryDirectory(prefix="fedkeep-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "run"
        out.mkdir()
        place_files(out, files)
        known: dict[str, tuple[int, int]] = {}
        read_files(out, known)

        def with_files(answer: dict[str, Any]) -> dict[str, Any]:
            changed = read_files(out, known)
            gone = [name for name in known if not (out / name).exists()]
            for name in gone:
                del known[name]
            if "text" in answer:
                answer = {**answer, "text": answer["text"].replace(str(out), home)}
            notes = [note.replace(str(out), home) for note in answer.get("notes", ())]
            return {**answer, "notes": notes, "files": changed, "gone": gone}

        yield from _told(lambda tell: with_files(perform(config, out, lambda answer: tell(with_files(answer)))))


def _told(work: Callable[[Callable[[Any], None]], Any]) -> Iterator[Any]:
    """What a piece of work tells while it goes on, and its result."""
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def labour() -> None:
        try:
            answers.put((True, work(lambda told: answers.put((False, told)))))
        except BaseException as error:
            answers.put((True, error))

    threading.Thread(target=labour, daemon=True).start()
    last = False
    while not last:
        last, answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        yield answer
