"""What an engine does, and the bench at which every kind of worker works."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedkeep.bundles import Bundle, collect, merge
from fedkeep.data.availability import Availability
from fedkeep.data.population import Population
from fedkeep.errors import FedKeepError, RunError
from fedkeep.local.evaluate import Judged, evaluate, right_of
from fedkeep.method import Memory, Update
from fedkeep.model import laid_out
from fedkeep.rng import stream
from fedkeep.rounds import Broadcast, ClientData, Trainer, client_round
from fedkeep.sums import Line, Member, line_up
from fedkeep.tree import Params

Models = Sequence[tuple[Params, Params]]
"""Weights and buffers of several models."""

TRIES = 3  # how often one piece of work may cost a worker its life
JUDGING_CHUNK = 500  # rows judged in one piece of work; fixed, so that sums do not depend on the workers


@dataclass(frozen=True)
class GroupResult:
    """What a group of neighbouring clients of the cohort gives back."""

    bundle: Bundle
    memories: Mapping[int, Memory]
    correct: Mapping[int, np.ndarray]  # per client: is its local model right on each probed row


class Engine(Protocol):
    """Runs client work. Results never depend on which engine it is or how many workers it has."""

    @property
    def bench(self) -> Bench:
        """What its workers work at."""
        ...

    @property
    def workers(self) -> int:
        """How many clients can be trained at the same time."""
        ...

    def train(
        self, broadcast: Broadcast, groups: Sequence[Sequence[int]], memories: Mapping[int, Memory], rows: np.ndarray
    ) -> Iterable[GroupResult]:
        """Train the clients of each group; results come in the order of the groups."""
        ...

    def judge(self, params: Params, buffers: Params, pool: str, rows: np.ndarray | None = None) -> Judged:
        """Judge a model on rows of the "train" or "test" examples (None: all of them)."""
        ...

    def score(self, models: Models, evaluators: Sequence[Sequence[int]]) -> list[list[float]]:
        """The accuracy of each model on the training examples of each of its evaluators."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


@dataclass(frozen=True, eq=False)
class Bench:
    """Everything one worker needs: how to train, the clients, the test examples, the seed."""

    trainer: Trainer
    population: Population
    test: tuple[Tensor, Tensor]
    seed: int
    availability: Availability = field(default_factory=Availability)

    def client_data(self, client: int) -> ClientData:
        x, y = self.population.examples(client)
        return ClientData(x, y, self.population.class_counts(y))

    def run_group(
        self, broadcast: Broadcast, clients: Sequence[int], memories: Mapping[int, Memory], rows: np.ndarray
    ) -> GroupResult:
        """Train the clients one after another; judge each local model on the probed rows while it is at hand."""
        kept: dict[int, Memory] = {}
        correct: dict[int, np.ndarray] = {}
        method, room = self.trainer.method, self.trainer.room
        probed = self._rows("train", rows) if len(rows) else None
        line = self._line_up(broadcast, clients)

        def updates(places: Iterable[int], line: Line | None = None) -> Iterator[Update]:
            for place in places:
                client = clients[place]
                spanned, data = line and line.spanned(place), self.client_data(client)
                trainer = self._trainer(broadcast.round, client, len(data.y))
                memory, rng = memories.get(client), self._stream(broadcast.round, client)
                outcome = client_round(trainer, broadcast, data, memory, client, rng, probed is not None, spanned)
                if outcome.memory:
                    kept[client] = outcome.memory
                if probed is not None:
                    correct[client] = right_of(self.trainer.model, outcome.params, outcome.buffers, *probed)
                yield outcome.update

        everyone = range(len(clients))
        if line is None or probed is not None or method.mechanisms:
            bundle = collect(method, updates(everyone, line), True, room, broadcast.together)
        else:  # nobody looks at a single client
            few = (everyone[first:][: broadcast.together] for first in everyone[:: broadcast.together])
            bundles = (line.bundle(s) or collect(method, updates(s), True, room, broadcast.together) for s in few)
            bundle = merge(method, bundles)
        return GroupResult(bundle, kept, correct)

    def _line_up(self, broadcast: Broadcast, clients: Sequence[int]) -> Line | None:
        """The clients in one line, where they can be trained in the span of their examples."""
        if self.trainer.room is None:
            return None
        people, members = self.population, []
        for client in clients:
            rows = people.train.indices(client)
            plan = self._trainer(broadcast.round, client, len(rows)).plan
            members.append(Member(client, rows, plan, self._stream(broadcast.round, client)))
        return line_up(self.trainer, broadcast, people.x, people.y, people.classes, members)

    def _stream(self, round: int, client: int) -> np.random.Generator:
        return stream(self.seed, "client", round, client)

    def _trainer(self, round: int, client: int, examples: int) -> Trainer:
        """What the client trains with; a slow one takes a share of the local steps, at least one."""
        work = self.availability.work(self.seed, round, client)
        if work == 1:
            return self.trainer
        plan = self.trainer.plan
        return replace(self.trainer, plan=replace(plan, steps=max(1, int(work * plan.local_steps(examples)))))

    def judge(self, params: Params, buffers: Params, pool: str, rows: np.ndarray) -> Judged:
        return evaluate(self.trainer.model, params, buffers, *self._rows(pool, rows))

    def score(self, params: Params, buffers: Params, client: int) -> float:
        return evaluate(self.trainer.model, params, buffers, *self.population.examples(client)).accuracy

    def pool_size(self, pool: str) -> int:
        return len(self.population.y if pool == "train" else self.test[1])

    def _rows(self, pool: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        x, y = (self.population.x, self.population.y) if pool == "train" else self.test
        if len(rows) and (np.diff(rows) == 1).all():  # a slice needs no copy
            x, y = x[rows[0] : rows[-1] + 1], y[rows[0] : rows[-1] + 1]
        else:
            index = torch.from_numpy(rows).to(x.device)
            x, y = x.index_select(0, index), y.index_select(0, index)
        return (laid_out(x) if self.trainer.channels_last else x), y


def remembered(memories: Mapping[int, Memory], clients: Sequence[int]) -> dict[int, Memory]:
    """What those of the clients remember that were trained before."""
    return {client: memories[client] for client in clients if client in memories}


def judging_chunks(bench: Bench, pool: str, rows: np.ndarray | None) -> list[np.ndarray]:
    """The rows of an evaluation in fixed pieces."""
    if rows is None:
        rows = np.arange(bench.pool_size(pool))
    return [rows[first : first + JUDGING_CHUNK] for first in range(0, len(rows), JUDGING_CHUNK)]


def joined(parts: Sequence[Judged]) -> Judged:
    """The outcome of an evaluation from its pieces, in order."""
    correct = np.concatenate([part.correct for part in parts]) if parts else np.zeros(0, dtype=bool)
    return Judged(correct, float(sum(part.loss for part in parts)))


def portable(error: BaseException) -> Exception:
    """An error that survives the way from a worker to its parent."""
    if isinstance(error, FedKeepError):
        return error
    return RunError(f"a worker failed: {''.join(traceback.format_exception(error)).strip()}")
