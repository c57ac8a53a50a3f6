"""Clients lined up to be trained in the span of their examples, and added up.

Where nobody looks at a single client (no mechanism, no forgetting to be measured), no local model is ever written out.
Otherwise each is trained by itself and handed to `client_round`; what is added up is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkeep.bundles import Bundle
from fedkeep.local.room import LineUp, Spanned
from fedkeep.local.step import Constants, LocalState
from fedkeep.local.traced import TracedStep, passes_of
from fedkeep.method import Facts, Loss, Plan
from fedkeep.rounds import Broadcast, Trainer, drawn, facts_of, start_in
from fedkeep.tree import Params, nbytes


@dataclass(frozen=True)
class Member:
    """A client that is to be trained: which examples it holds, its budget, its randomness."""

    client: int
    rows: np.ndarray
    plan: Plan
    rng: np.random.Generator


@dataclass(frozen=True)
class Line:
    """Clients that wait for their training."""

    trainer: Trainer
    members: Sequence[Member]
    line: LineUp
    places: Mapping[int, int]  # of members in the line; who is missing is trained another way
    sent: int  # bytes of a model
    held: Sequence[Constants]  # what steps read

    def spanned(self, place: int) -> Spanned | None:
        """Train a member; None if it is not in the line, or not finite."""
        trained = self.line.train(self.places[place]) if place in self.places else None
        return trained if trained and trained.finite else None

    def bundle(self, places: range) -> Bundle | None:
        """Train neighbours and add them up; None if one of them is not in the line, or not finite."""
        if not all(place in self.places for place in places):
            return None
        room, first = self.line.room, self.places[places.start]
        facts = [self._facts(place) for place in places]
        factors = [self.trainer.method.aggregate.factor(fact) for fact in facts]
        layer, others = sums = room.empty()
        if not self.line.train_and_add(range(first, first + len(places)), factors, sums):
            return None
        total = {room.name: layer, **room.named(others)}
        return Bundle(tuple(facts), total, typical={room.name: room.typical})

    def _facts(self, place: int) -> Facts:
        member = self.members[place]
        steps = member.plan.local_steps(len(member.rows))
        return facts_of(self.trainer, member.client, len(member.rows), steps, self.sent, {})


def line_up(
    trainer: Trainer, broadcast: Broadcast, x: Tensor, y: Tensor, classes: int, members: Sequence[Member]
) -> Line | None:
    """Line clients up; None where nobody can stand in a line. Who does depends on the client alone."""
    room, step, method = trainer.room, trainer.step, trainer.method
    if room is None or not isinstance(step, TracedStep):
        return None
    size = trainer.plan.batch_size
    mechanisms = {
        mechanism.name: {} for mechanism in method.mechanisms
    }  # all stand aside: steps read nothing of theirs
    adjusted = _adjusted(method.loss, y, classes, members)
    constants = [Constants(broadcast.params, one, mechanisms) for one in adjusted]

    def state() -> LocalState:
        return trainer.recipe.initial(broadcast.params, broadcast.buffers)

    orders = [drawn(len(member.rows), member.plan, member.rng)[1] for member in members]
    lengths = [tuple(map(len, passes)) for passes in orders]
    steps = {passes: step.span_steps(state, constants[0], (x, y), passes, size) for passes in set(lengths)}
    chosen = [place for place, passes in enumerate(lengths) if steps[passes]]
    if not chosen:
        return None
    rows = np.concatenate([members[place].rows[orders[place][0]] for place in chosen]).astype(np.int64)
    held = [constants[place] for place in chosen] if len(constants) > 1 else constants
    programs = {batch: one for found in steps.values() for batch, one in found.items()}
    work = passes_of(programs, held, (x, y), rows, [orders[place] for place in chosen], size)
    line = room.line_up(start_in(room, broadcast), work)
    places = {place: number for number, place in enumerate(chosen)}
    return Line(trainer, members, line, places, nbytes(broadcast.params), held)


def _adjusted(loss: Loss, y: Tensor, classes: int, members: Sequence[Member]) -> list[Params]:
    """What the loss needs to know of each client; one for all where it needs nothing."""
    if type(loss).adjust is Loss.adjust:
        return [{}]
    labels = [y[torch.from_numpy(member.rows)] for member in members]
    return [loss.adjust(torch.bincount(own, minlength=classes)) for own in labels]
