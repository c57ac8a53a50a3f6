"""Persistent worker processes, one torch thread each.

Workers are forked once the data is loaded, so they share it with their parent. What the server broadcasts lies in one
arena that all workers read; each worker has arenas for what it is given and for what it gives back. A worker
that dies is replaced and its work done again: every piece of work depends on keys only, so the result is the same.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from fedkeep.bundles import Bundle
from fedkeep.engine.allocator import keep_freed_memory
from fedkeep.engine.arena import Arena
from fedkeep.engine.base import TRIES, Bench, GroupResult, Models, joined, judging_chunks, portable, remembered
from fedkeep.errors import RunError
from fedkeep.local.evaluate import Judged
from fedkeep.method import Memory, Update
from fedkeep.rounds import Broadcast

AHEAD = 4  # pieces of work for each worker that may be done before their turn, and are held until it comes


@dataclass(frozen=True)
class Work:
    """A piece of work: its kind, plain arguments, and what gives the tensors that only this worker needs."""

    kind: str
    arguments: tuple[Any, ...]
    tensors: Callable[[], Mapping[str, Any]] = dict


@dataclass(frozen=True)
class Desk:
    """Where tensors pass between a worker and its parent."""

    inbox: Arena = field(default_factory=Arena)
    outbox: Arena = field(default_factory=Arena)


@dataclass
class _Worker:
    """A worker process as its parent sees it."""

    process: Any
    pipe: Connection
    desks: tuple[Desk, Desk]  # used in turns, so that the next piece of work can lie ready while one is being done
    given: int = 0  # pieces of work so far
    busy_with: deque[int] = field(default_factory=deque)


class WorkerEngine:
    """Client work spread over forked processes; the same results as `SerialEngine`, bit for bit."""

    def __init__(self, bench: Bench, workers: int) -> None:
        self.bench = bench
        self._context = multiprocessing.get_context("fork")
        self._shared = Arena()
        self._broadcast: tuple[int, Any] = 0, None  # how many there were, and where the last one lies
        self._parent = os.getpid()
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._start())

    def train(
        self, broadcast: Broadcast, groups: Sequence[Sequence[int]], memories: Mapping[int, Memory], rows: np.ndarray
    ) -> Iterable[GroupResult]:
        self._publish({"params": broadcast.params, "buffers": broadcast.buffers, "slots": broadcast.slots})

        def own(group: Sequence[int]) -> Mapping[str, Any]:
            return {str(client): memory for client, memory in remembered(memories, group).items()}

        how = broadcast.round, broadcast.together
        return self._run([Work("train", (*how, list(g), rows), partial(own, g)) for g in groups])

    def judge(self, params, buffers, pool, rows=None) -> Judged:
        self._publish({"params": params, "buffers": buffers})
        chunks = judging_chunks(self.bench, pool, rows)
        return joined(list(self._run([Work("judge", (pool, chunk)) for chunk in chunks])))

    def score(self, models: Models, evaluators: Sequence[Sequence[int]]) -> list[list[float]]:
        self._publish({str(i): {"params": p, "buffers": b} for i, (p, b) in enumerate(models)})
        work = [Work("score", (str(i), client)) for i, asked in enumerate(evaluators) for client in asked]
        answers = iter(self._run(work))
        return [[next(answers) for _ in asked] for asked in evaluators]

    @property
    def workers(self) -> int:
        return len(self._workers)

    def close(self) -> None:
        """End the workers; safe to call twice."""
        if os.getpid() != self._parent:
            return
        while self._workers:
            _discard(self._workers.pop())

    # -- the parent's side

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        desks = Desk(), Desk()
        others = [worker.pipe for worker in self._workers]
        process = self._context.Process(
            target=_serve, args=(self.bench, self._shared, theirs, ours, others, desks), daemon=True
        )
        sys.stdout.flush()
        sys.stderr.flush()
        process.start()
        theirs.close()
        return _Worker(process, ours, desks)

    def _publish(self, nested: Mapping[str, Any]) -> None:
        self._broadcast = self._broadcast[0] + 1, self._shared.write(nested)

    def _run(self, work: Sequence[Work]) -> Iterator[Any]:
        """Give work out as workers become free; results come back in the order of the work."""
        waiting = deque(range(len(work)))
        done: dict[int, Any] = {}
        tries = [0] * len(work)
        for position in range(len(work)):
            while position not in done:
                self._hand_out(work, waiting, position + AHEAD * len(self._workers))
                self._gather(work, done, waiting, tries)
            yield done.pop(position)

    def _hand_out(self, work: Sequence[Work], waiting: deque[int], end: int) -> None:
        """Something for every idle worker; and while plenty is left, the next piece for each, so that none waits.

        Only pieces before `end`: what is done too early must be held until its turn comes.
        """
        for worker in self._workers:
            if waiting and waiting[0] < end and not worker.busy_with:
                self._give(worker, waiting.popleft(), work)
        for worker in self._workers:
            plenty = len(waiting) > len(self._workers) and waiting[0] < end
            if plenty and len(worker.busy_with) < len(worker.desks):
                self._give(worker, waiting.popleft(), work)

    def _give(self, worker: _Worker, index: int, work: Sequence[Work]) -> None:
        worker.busy_with.append(index)
        item, desk = work[index], worker.given % len(worker.desks)
        worker.given += 1
        private = worker.desks[desk].inbox.write(item.tensors())
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `_gather` sees the end of the pipe
            worker.pipe.send((item.kind, item.arguments, self._broadcast, desk, private))

    def _gather(self, work: Sequence[Work], done: dict[int, Any], waiting: deque[int], tries: list[int]) -> None:
        for pipe in wait([w.pipe for w in self._workers if w.busy_with]):
            worker = next(w for w in self._workers if w.pipe is pipe)
            try:
                problem, plain, desk, private = worker.pipe.recv()
            except (EOFError, ConnectionResetError, OSError):
                tries[worker.busy_with[0]] += 1
                waiting.extendleft(reversed(worker.busy_with))
                self._replace(worker, tries[worker.busy_with[0]])
                continue
            index = worker.busy_with.popleft()
            if problem is not None:
                raise problem
            done[index] = _receive(work[index].kind, plain, worker.desks[desk].outbox.read(*private))

    def _replace(self, worker: _Worker, tries: int) -> None:
        place = self._workers.index(worker)
        self._workers.remove(worker)
        _discard(worker)
        code = worker.process.exitcode
        if tries >= TRIES:
            raise RunError(
                f"a worker died {tries} times at the same piece of work (exit code {code}); is memory short? "
                "Try --workers 1"
            )
        print(f"note: a worker process died (exit code {code}); its clients are trained again", file=sys.stderr)
        self._workers.insert(place, self._start())


def _discard(worker: _Worker) -> None:
    """End a worker process for good, by its pid, and give its memory back."""
    worker.pipe.close()
    worker.process.join(timeout=0.5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    for desk in worker.desks:
        desk.inbox.close()
        desk.outbox.close()


def _receive(kind: str, plain: Any, tensors: dict[str, Any]) -> Any:
    """A worker's answer, with tensors of our own (the worker will write over its arena)."""
    if kind != "train":
        return plain
    facts, correct, update_facts = plain
    own = _copied(tensors)
    updates = tuple(
        Update(fact, one["delta"], one["buffers"], one["uploads"])
        for fact, one in zip(update_facts, own["updates"].values(), strict=True)
    )
    bundle = Bundle(facts, own["total"], own["buffers"], own["uploads"], updates, True, own["typical"])
    return GroupResult(bundle, {int(k): memory for k, memory in own["memories"].items()}, correct)


def _copied(nested: Any) -> Any:
    return {k: _copied(v) for k, v in nested.items()} if isinstance(nested, dict) else nested.clone()


# -- the worker's side


def _serve(
    bench: Bench,
    shared: Arena,
    pipe: Connection,
    theirs: Connection,
    others: list[Connection],
    desks: tuple[Desk, Desk],
) -> None:
    """A worker's life: take work, do it, answer, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; the pipe's end ends us
    for end in [theirs, *others]:
        end.close()  # else a dead parent would go unnoticed
    torch.set_num_threads(1)
    keep_freed_memory()
    gc.freeze()  # what the parent made stays as it is: no time to look through it, no copies of its pages
    read, told, made = 0, {}, {}
    while True:
        try:
            kind, arguments, (publication, place), number, private = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            desk = desks[number]
            if read != publication:  # pieces of work on the same tensors share what is made of them
                read, told, made = publication, shared.read(*place), {}
            answer = _do(bench, kind, arguments, told, desk.inbox.read(*private), made)
            plain, tensors = _answer(answer)
            message = (None, plain, number, desk.outbox.write(tensors))
        except BaseException as error:
            message = (portable(error), None, number, None)
        try:
            pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def _do(
    bench: Bench,
    kind: str,
    arguments: tuple[Any, ...],
    shared: dict[str, Any],
    own: dict[str, Any],
    made: dict[str, Any],
) -> Any:
    if kind == "train":
        round, together, clients, rows = arguments
        broadcast = Broadcast(shared["params"], shared["buffers"], shared["slots"], round, together, made)
        return bench.run_group(broadcast, clients, {int(k): memory for k, memory in own.items()}, rows)
    if kind == "judge":
        pool, rows = arguments
        return bench.judge(shared["params"], shared["buffers"], pool, rows)
    model, client = arguments
    return bench.score(shared[model]["params"], shared[model]["buffers"], client)


def _answer(answer: Any) -> tuple[Any, dict[str, Any]]:
    """The plain part of an answer and its tensors."""
    if not isinstance(answer, GroupResult):
        return answer, {}
    bundle = answer.bundle
    updates = {
        str(i): {"delta": u.delta, "buffers": u.buffers, "uploads": u.uploads} for i, u in enumerate(bundle.updates)
    }
    tensors = {
        "total": bundle.total,
        "buffers": bundle.buffers,
        "uploads": bundle.uploads,
        "typical": bundle.typical,
        "updates": updates,
        "memories": answer.memories,
    }
    return (bundle.facts, dict(answer.correct), tuple(u.facts for u in bundle.updates)), tensors
