"""Client work on a Ray cluster: one actor per core, each with the bench of the run.

Examples go to each node once, into shared memory that its actors read; what the server broadcasts, once per round and
node. Sums over neighbouring clients come back, whole updates only where the aggregation needs them. Sums are taken
along a fixed tree and everything random is keyed, so neither the number of actors, nor which of them does what, nor
doing a piece of work twice changes the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedkeep.engine.base import TRIES, Bench, GroupResult, Models, joined, judging_chunks, remembered
from fedkeep.engine.crew import Crew, Member, oldest_first
from fedkeep.engine.ray_cluster import Cluster, Lost
from fedkeep.engine.ray_worker import BenchWorker, packed
from fedkeep.engine.sealed import opened, sealed
from fedkeep.errors import ConfigError, RunError
from fedkeep.local.evaluate import Judged
from fedkeep.method import Memory
from fedkeep.rounds import Broadcast

CUDA = "cuda"
AHEAD = 2  # pieces that a worker is given at a time, so that it does not wait for the next


@dataclass(frozen=True)
class Piece:
    """A piece of work: its kind, plain arguments, and what only this worker needs."""

    kind: str
    arguments: tuple[Any, ...]
    own: Callable[[], Mapping[int, Memory]] = dict  # asked for when the piece is given out


class RayEngine:
    """Client work spread over a cluster; the same results as `SerialEngine`, bit for bit."""

    def __init__(self, bench: Bench, cluster: Cluster, workers: int = 0, device: str = "cpu") -> None:
        self.bench, self._cluster = bench, cluster
        self._number = 0  # of what is shared at the moment
        self._shared: Any = None
        cores = partial(cluster.cores, device)
        if device != "cpu" and not workers and not cores():
            raise ConfigError("device gpu: no node of the cluster has a GPU; add one, or --workers N to wait for N")
        data = cluster.put(packed(bench))
        hire = partial(cluster.hire, BenchWorker, data, device, device=device)
        self._crew = Crew(cluster, hire, workers, cores)
        try:
            while not self._crew.ready:
                self._crew.wait()
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        return max(1, len(self._crew.members))

    def train(
        self, broadcast: Broadcast, groups: Sequence[Sequence[int]], memories: Mapping[int, Memory], rows: np.ndarray
    ) -> Iterable[GroupResult]:
        self._publish((broadcast, rows))
        return self._run([Piece("train", (list(g),), partial(remembered, memories, g)) for g in groups])

    def judge(self, params, buffers, pool, rows=None) -> Judged:
        self._publish((params, buffers))
        chunks = judging_chunks(self.bench, pool, rows)
        return joined(list(self._run([Piece("judge", (pool, chunk)) for chunk in chunks])))

    def score(self, models: Models, evaluators: Sequence[Sequence[int]]) -> list[list[float]]:
        self._publish(list(models))
        pieces = [Piece("score", (i, client)) for i, asked in enumerate(evaluators) for client in asked]
        answers = self._run(pieces)
        return [[next(answers) for _ in asked] for asked in evaluators]

    def close(self) -> None:
        """Dismiss the actors and leave the cluster; safe to call twice."""
        self._crew.close()
        self._cluster.close()

    def _publish(self, value: Any) -> None:
        self._number += 1
        self._shared = self._cluster.put(sealed(value))

    def _run(self, pieces: Sequence[Piece]) -> Iterator[Any]:
        """Give work out as workers become free; results come back in the order of the work."""
        waiting = deque(range(len(pieces)))
        done: dict[int, Any] = {}
        deaths = [0] * len(pieces)
        try:
            for position in range(len(pieces)):
                while position not in done:
                    self._give(pieces, waiting)
                    for member, reference in self._crew.wait():
                        if member in self._crew.members:  # not lost by an answer before this one
                            self._take(member, reference, done, waiting, deaths)
                yield done.pop(position)
        finally:  # what nobody waits for any more is forgotten
            for member in self._crew.members:
                member.work.clear()

    def _give(self, pieces: Sequence[Piece], waiting: deque[int]) -> None:
        ready = self._crew.ready
        for ahead in range(AHEAD):
            for member in ready:
                if len(member.work) == ahead and len(waiting) > ahead * len(ready):
                    index = waiting.popleft()
                    piece = pieces[index]
                    own = sealed(piece.own())
                    answer = member.actor.do.remote(piece.kind, piece.arguments, self._number, self._shared, own)
                    member.work[answer] = index

    def _take(
        self, member: Member, reference: Any, done: dict[int, Any], waiting: deque[int], deaths: list[int]
    ) -> None:
        try:
            problem, answer = self._cluster.get(reference)
        except Lost as lost:
            first = next(iter(member.work.values()))
            deaths[first] += not lost.node
            if deaths[first] >= TRIES:
                raise RunError(
                    f"a worker died {TRIES} times at the same piece of work ({lost}); is memory short on the nodes?"
                ) from None
            left = oldest_first(self._crew.lose(member, lost), waiting)
            waiting.clear()
            waiting.extend(left)
            return
        index = member.work.pop(reference)
        if problem is not None:
            raise problem
        done[index] = opened(answer, own=True)


def ray_engine(bench: Bench, address: str, workers: int, cores: int, device: str = "cpu") -> RayEngine:
    """An engine on the cluster at an address, or on one of this machine alone."""
    cluster = Cluster(address, workers or cores)
    try:
        return RayEngine(bench, cluster, workers, CUDA if device == "gpu" else device)
    except BaseException:
        cluster.close()
        raise
