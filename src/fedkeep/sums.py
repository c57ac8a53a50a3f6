"""Clients lined up to be trained in the span of their examples, and added up.

Where nobody looks at a single client (no mechanism, no forgetting to be measured), no local model is ever written out.
Otherwise each is trained by itself and handed to `client_round`; what is added up is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkeep.bundles import Bundle
from fedkeep.local.room import LineUp, Spanned
from fedkeep.local.step import Constants, LocalState
from fedkeep.local.traced import TracedStep
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
    sent: int  # bytes of a model
    held: Sequence[Constants]  # what steps read

    def spanned(self, place: int) -> Spanned | None:
        """Train one of them; None if it is not finite."""
        trained = self.line.train(place)
        return trained if trained.finite else None

    def bundle(self, places: range) -> Bundle | None:
        """Train neighbours and add them up; None if one of them is not finite."""
        room = self.line.room
        facts = [self._facts(place) for place in places]
        layer, others = sums = room.empty()
        if not self.line.train_and_add(places, [self.trainer.method.aggregate.factor(fact) for fact in facts], sums):
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
    """Line clients up; None where one of them has to be trained another way."""
    room, step, method = trainer.room, trainer.step, trainer.method
    if room is None or not isinstance(step, TracedStep):
        return None
    orders = [drawn(len(member.rows), member.plan, member.rng)[1] for member in members]
    if not all(orders):
        return None
    rows = np.concatenate([m.rows[first] for m, (first, *_) in zip(members, orders, strict=True)]).astype(np.int64)
    nothing = {mechanism.name: {} for mechanism in method.mechanisms}  # all stand aside, or there is no room
    adjusted = _adjusted(method.loss, y, classes, members)
    constants = [Constants(broadcast.params, one, nothing) for one in adjusted]

    def state() -> LocalState:
        return trainer.recipe.initial(broadcast.params, broadcast.buffers)

    work = step.passes(state, constants, (x, y), rows, orders, trainer.plan.batch_size)
    if work is None:
        return None
    line = room.line_up(start_in(room, broadcast), work)
    return Line(trainer, members, line, nbytes(broadcast.params), constants)


def _adjusted(loss: Loss, y: Tensor, classes: int, members: Sequence[Member]) -> list[Params]:
    """What the loss needs to know of each client; one for all where it needs nothing."""
    if type(loss).adjust is Loss.adjust:
        return [{}]
    labels = [y[torch.from_numpy(member.rows)] for member in members]
    return [loss.adjust(torch.bincount(own, minlength=classes)) for own in labels]
