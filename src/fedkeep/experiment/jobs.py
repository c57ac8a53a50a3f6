"""Several runs at once, each in a process of its own; one that fails does not stop the others.

Processes are started afresh (not forked), read their work from their standard input and answer line by line on their
standard output, so they need nothing from the program that started them. They stand outside the terminal's reach:
Ctrl-C is passed on once, so that each saves its run and ends; they do the same when their parent is gone.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from fedkeep.engine.allocator import keep_freed_memory
from fedkeep.errors import FedKeepError
from fedkeep.experiment.config import Config
from fedkeep.experiment.run import execute
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.simulate import RoundRecord

PATIENCE = 60  # seconds for a process to save its run after Ctrl-C
DEAD = "its process ended"


@dataclass(frozen=True)
class Job:
    """One run to be done."""

    name: str
    config: Config
    out: Path


@dataclass(frozen=True)
class Event:
    """Something that happened to a job."""

    job: Job
    kind: Literal["begun", "round", "done", "failed"]
    round: int = 0
    accuracy: float = math.nan
    text: str = ""  # why it failed
    notes: tuple[str, ...] = ()


Listener = Callable[[Event], None]


def run_jobs(jobs: Sequence[Job], at_once: int, listen: Listener) -> None:
    """Run all jobs, `at_once` of them at the same time; every job ends in an event "done" or "failed"."""
    if at_once == 1 or len(jobs) == 1:
        for job in jobs:
            listen(Event(job, "begun"))
            listen(event_of(job, perform(job.config, job.out, lambda answer, job=job: listen(event_of(job, answer)))))
        return
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    workers = [_Worker(waiting, events) for _ in range(min(at_once, len(jobs)))]
    try:
        for worker in workers:
            worker.thread.start()
        for _ in jobs:
            while True:
                event = events.get()
                listen(event)
                if event.kind in ("done", "failed"):
                    break
    finally:
        end(workers)


def perform(config: Config, out: Path, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Do one run; the answer says how it ended, whatever happened."""

    def listen(record: RoundRecord) -> None:
        tell({"kind": "round", "round": record.round, "accuracy": record.accuracy})

    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            done = execute(config, out, listen)
        return {"kind": "done", "notes": [*done.notes, *dict.fromkeys(str(w.message) for w in warned)]}
    except FedKeepError as error:
        return {"kind": "failed", "text": str(error)}
    except Exception as error:  # a defect of ours or of a part: the other runs go on
        if out.is_dir():
            RunDirectory(out).log(traceback.format_exc())
        return {"kind": "failed", "text": f"{type(error).__name__}: {error}; see {out / 'log.txt'}"}


def event_of(job: Job, answer: dict[str, Any]) -> Event:
    """What an answer of `perform` says of a job."""
    return Event(job, **{**answer, "notes": tuple(answer.get("notes", ()))})


class _Worker:
    """A process that does one job after another, and the thread that talks to it; it is replaced when it dies."""

    def __init__(self, waiting: queue.SimpleQueue[Job], events: queue.SimpleQueue[Event]) -> None:
        self.waiting, self.events = waiting, events
        self.process: subprocess.Popen[str] | None = None
        self.errors: IO[str] | None = None  # what the process says on stderr
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while not self.stopped.is_set():
            try:
                job = self.waiting.get_nowait()
            except queue.Empty:
                break
            self.events.put(Event(job, "begun"))
            try:
                self._do(job)
            except Exception as error:
                self.events.put(Event(job, "failed", text=f"its process could not be used ({error})"))
                self._leave()
        self._leave()

    def _do(self, job: Job) -> None:
        if self.process is None or self.process.poll() is not None:
            self._start()
        process = self.process
        assert process and process.stdin and process.stdout
        process.stdin.write(json.dumps({"config": asdict(job.config), "out": str(job.out)}) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            self.events.put(event_of(job, answer))
            if answer["kind"] in ("done", "failed"):
                return
        code = process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.events.put(Event(job, "failed", text=f"{DEAD} ({how}) {self._last_words()}".strip()))

    def _start(self) -> None:
        self._leave()
        paths = [os.getcwd() if path == "" else path for path in sys.path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        if self.stopped.is_set():
            self.stop()

    def _last_words(self) -> str:
        assert self.errors
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        return lines[-1] if lines else ""

    def _leave(self) -> None:
        """Let the process end by itself: it has nothing more to read."""
        if self.process is not None:
            assert self.process.stdin and self.process.stdout
            for pipe in (self.process.stdin, self.process.stdout):
                with suppress(OSError):  # it may be gone already
                    pipe.close()
            self.process.wait()
            self.process = None
        if self.errors is not None:
            self.errors.close()
            self.errors = None

    def stop(self) -> None:
        """Ask for the run to be saved and left."""
        self.stopped.set()
        process = self.process
        if process is not None and process.poll() is None:
            process.terminate()


def end(workers: Iterable[_Worker]) -> None:
    """End all processes, gently; a second Ctrl-C ends them at once."""
    started = [worker for worker in workers if worker.thread.ident is not None]
    for worker in started:
        worker.stop()
    try:
        for worker in started:
            worker.thread.join(PATIENCE)
    finally:
        for worker in started:
            process = worker.process
            if process is not None and process.poll() is None:
                process.kill()


def serve() -> None:
    """The life of a worker process."""
    answers, given = os.fdopen(os.dup(1), "w", buffering=1), os.fdopen(os.dup(0))
    os.dup2(2, 1)  # what a part prints must not look like an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    me = os.getpid()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() != me:
            os._exit(128 + number)  # a forked worker of the engine
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the run is being saved
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(given, orders), daemon=True).start()
    try:
        while line := orders.get():
            order = json.loads(line)
            answer = perform(Config(**order["config"]), Path(order["out"]), lambda told: _tell(answers, told))
            _tell(answers, answer)
    except KeyboardInterrupt:
        os._exit(130)  # the run is saved; nothing else is worth keeping


def _tell(answers: Any, answer: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(answer) + "\n")
    except OSError:  # nobody listens any more: save and end, undisturbed by `_read`, which notices too
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt from None


def _read(given: Any, orders: queue.SimpleQueue[str]) -> None:
    """Pass orders on; at the end of them, work that is under way is saved and left."""
    for line in given:
        orders.put(line)
    orders.put("")
    os.kill(os.getpid(), signal.SIGTERM)
