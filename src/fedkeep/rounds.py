"""One federated round: the only functions a runtime calls.

    begin -> (client_round for each client of the cohort -> collect -> merge -> server_round), round after round

What clients send is added up in `bundles.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeep.bundles import Bundle, add_slots
from fedkeep.errors import ConfigError, RunError
from fedkeep.local.evaluate import right_of
from fedkeep.local.fisher import diagonal_fisher
from fedkeep.local.loop import passes, rows_of, train
from fedkeep.local.room import Room, Spanned, Start
from fedkeep.local.step import Constants, EagerStep, LocalState, Session, Step, StepRecipe
from fedkeep.local.traced import TracedStep
from fedkeep.method import (
    Aggregator,
    Answers,
    Facts,
    Finish,
    LocalContext,
    LocalResult,
    Memory,
    Method,
    Plan,
    Probe,
    Update,
)
from fedkeep.model import Model, laid_out, mean_buffers, row_major, settle_buffers
from fedkeep.tree import Params, Slots, add, finite, nbytes, scale, sub, sub_into


class NoUsableUpdate(RunError):
    """Every client's update of a round was left out."""


@dataclass(frozen=True)
class ServerState:
    """Everything the server carries from round to round."""

    params: Params
    buffers: Params
    slots: Mapping[str, Slots]  # what each mechanism broadcasts
    optimizer: Slots
    round: int = 0  # rounds finished


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to each client of the cohort."""

    params: Params
    buffers: Params
    slots: Mapping[str, Slots]
    round: int  # the round that is being run, from 1
    together: int = 1  # neighbours of the cohort that are added up one after another
    made: dict[str, Any] = field(default_factory=dict, compare=False)  # of it, once for all clients

    @property
    def nbytes(self) -> int:
        return nbytes(self.params) + nbytes(self.buffers) + _slot_bytes(self.slots)


@dataclass(frozen=True)
class ClientData:
    """A client's training examples and how often each label occurs among them."""

    x: Tensor
    y: Tensor
    class_counts: Tensor


@dataclass(frozen=True)
class Trainer:
    """What a client needs to train, apart from data: model, method, budget, step."""

    model: Model
    method: Method
    plan: Plan
    step: Step
    channels_last: bool = False  # the memory layout of images and convolutions; changes rounding only

    @property
    def room(self) -> Room | None:
        """Where clients are trained in the span of their examples and added up, if the method's parts allow that."""
        aggregate = self.method.aggregate
        plain = aggregate.streaming and type(aggregate).contribution is Aggregator.contribution
        aside = all(mechanism.stands_aside for mechanism in self.method.mechanisms)
        return self.step.room if plain and aside and isinstance(self.step, TracedStep) else None

    @staticmethod
    def of(
        model: Model,
        method: Method,
        plan: Plan,
        make_step: Callable[[StepRecipe], Step] = EagerStep,
        channels_last: bool = False,
    ) -> Trainer:
        recipe = StepRecipe(model, method.loss, method.mechanisms, plan.optimizer)
        return Trainer(model, method, plan, make_step(recipe), channels_last)

    @property
    def recipe(self) -> StepRecipe:
        return StepRecipe(self.model, self.method.loss, self.method.mechanisms, self.plan.optimizer)


@dataclass(frozen=True)
class ClientOutcome:
    """What a client's round gives: the update that travels, the memory that stays, the local model."""

    update: Update
    memory: Memory
    params: Params  # empty if nobody wanted them
    buffers: Params


def check(method: Method, plan: Plan, cohort: int | None = None) -> None:
    """Refuse nonsense before round 1."""
    names = [mechanism.name for mechanism in method.mechanisms]
    if len(set(names)) < len(names):
        raise ConfigError(f"the method has a mechanism twice: {', '.join(names)}; name each once")
    needed = method.aggregate.needs
    if needed and not any(needed in mechanism.uploads for mechanism in method.mechanisms):
        raise ConfigError(f"{method.aggregate.name} needs clients to upload {needed}; add the mechanism that does")
    for mechanism in method.mechanisms:
        mechanism.check(plan)
    method.aggregate.check(plan, cohort)


def begin(method: Method, params: Params, buffers: Params) -> ServerState:
    """The server's state before round 1."""
    slots = {mechanism.name: mechanism.server_init(params) for mechanism in method.mechanisms}
    return ServerState(params, buffers, slots, method.server_opt.init(params))


def broadcast_of(state: ServerState) -> Broadcast:
    """What clients receive in the next round."""
    return Broadcast(state.params, state.buffers, state.slots, state.round + 1)


@dataclass(frozen=True)
class _Ready:
    """A client that has received the broadcast and is about to train."""

    recipe: StepRecipe
    buffers: Params
    start: Params
    x: Tensor
    memory: Memory
    contexts: dict[str, LocalContext]
    constants: Constants
    examples: int
    steps: int

    def state(self) -> LocalState:
        """The state before the first step, with storage of its own."""
        return self.recipe.initial(self.start, self.buffers)


def _receive(trainer: Trainer, broadcast: Broadcast, data: ClientData, memory: Memory | None) -> _Ready:
    method, plan = trainer.method, trainer.plan
    if memory is None:
        memory = {mechanism.name: mechanism.client_init(broadcast.params) for mechanism in method.mechanisms}
    start, server, own, x = broadcast.params, broadcast.slots, memory, data.x
    if trainer.channels_last:
        start, server, own, x = laid_out(start), laid_out(server), laid_out(own), laid_out(x)
    examples = data.y.shape[0]
    steps = plan.local_steps(examples)
    contexts = {
        m.name: LocalContext(start, server[m.name], own[m.name], examples, steps, plan.optimizer.lr, broadcast.round)
        for m in method.mechanisms
    }
    constants = Constants(
        start,
        method.loss.adjust(data.class_counts),
        {m.name: m.prepare(contexts[m.name]) for m in method.mechanisms},
    )
    return _Ready(trainer.recipe, broadcast.buffers, start, x, memory, contexts, constants, examples, steps)


def opened(trainer: Trainer, broadcast: Broadcast, data: ClientData) -> tuple[Session, Tensor]:
    """A client's local training about to begin, and its examples in the trainer's layout."""
    ready = _receive(trainer, broadcast, data, None)
    return trainer.step.open(ready.state(), ready.constants), ready.x


def warm_up(trainer: Trainer, broadcast: Broadcast, data: ClientData) -> None:
    """Record and compile what can be, before workers part, so that each need not do it again."""
    if not isinstance(trainer.step, TracedStep):
        return
    ready = _receive(trainer, broadcast, data, None)
    for size in sorted(trainer.step.batch_sizes or ()):
        rows = torch.arange(size) % len(data.y)
        trainer.step.program(ready.state, ready.constants, rows_of(ready.x, rows), data.y[rows])
    right_of(trainer.model, ready.start, broadcast.buffers, ready.x[:1], data.y[:1])


def client_round(
    trainer: Trainer,
    broadcast: Broadcast,
    data: ClientData,
    memory: Memory | None,
    client: int,
    rng: np.random.Generator,
    keep_model: bool = True,
    spanned: Spanned | None = None,
) -> ClientOutcome:
    """Train one client: receive, train, evaluate what the method needs, answer.

    `keep_model`: False if nobody wants the local model: the update is then made in its place, and saves memory.
    `spanned`: it has been trained, in the span of its examples; its change then goes into sums as it is.
    """
    ready = _receive(trainer, broadcast, data, memory)
    seed, orders = drawn(ready.examples, trainer.plan, rng)
    torch.default_generator.manual_seed(seed)  # dropout and the like, keyed as all else
    if spanned is not None:
        end = replace(trainer.recipe.initial({}, ready.buffers), w=spanned.params())
    else:
        size, twice = trainer.plan.batch_size, trainer.model.has_batch_norm
        end = train(trainer.step, ready.state(), ready.x, data.y, ready.constants, orders, size, twice)
    finishes = _finishes(trainer, ready, data.y, end) if trainer.method.mechanisms else {}
    spent = not keep_model and not any(_shared(end.w, finish) for finish in finishes.values())
    delta = {} if spanned else sub_into(end.w, ready.start) if spent else sub(end.w, ready.start)
    update = _update(trainer, client, ready, delta, end.buffers, finishes, spanned)
    kept = {name: finish.keep for name, finish in finishes.items()} if update.facts.finite else ready.memory
    if trainer.channels_last:
        update = replace(update, delta=row_major(update.delta), uploads=row_major(update.uploads))
        kept = row_major(kept)
    return ClientOutcome(update, kept, {} if spent else end.w, end.buffers)


def drawn(examples: int, plan: Plan, rng: np.random.Generator) -> tuple[int, list[np.ndarray]]:
    """What is left to chance in a client's round: a seed for dropout and the like, and the order of each pass."""
    return int(rng.integers(2**63)), list(passes(examples, plan, rng))


def start_in(room: Room, broadcast: Broadcast) -> Start:
    """The global model as clients in a room start from it, made once."""
    if "start" not in broadcast.made:
        broadcast.made["start"] = room.start(broadcast.params)
    return broadcast.made["start"]


def _finishes(trainer: Trainer, ready: _Ready, y: Tensor, end: LocalState) -> dict[str, Finish]:
    """What each mechanism makes of the local model."""
    model, x = trainer.model, ready.x
    before = cache(lambda: right_of(model, ready.start, ready.buffers, x, y))
    after = cache(lambda: right_of(model, end.w, end.buffers, x, y))
    fisher = cache(lambda: diagonal_fisher(model, end.w, end.buffers, x, y))
    finishes: dict[str, Finish] = {}
    for m in trainer.method.mechanisms:
        result = LocalResult(end.w, ready.steps, end.track[m.name], before, after, fisher)
        finishes[m.name] = m.client_end(ready.contexts[m.name], result)
    return finishes


def _shared(params: Params, finish: Finish) -> bool:
    """Whether a mechanism sends or keeps the local model's own tensors."""
    mine = {tensor.untyped_storage().data_ptr() for tensor in params.values()}
    kept = [tensor for slots in (finish.upload, finish.keep) for tree in slots.values() for tensor in tree.values()]
    return any(tensor.untyped_storage().data_ptr() in mine for tensor in kept)


def _update(
    trainer: Trainer,
    client: int,
    ready: _Ready,
    delta: Params,
    buffers: Params,
    finishes: Mapping[str, Finish],
    spanned: Spanned | None = None,
) -> Update:
    uploads = {name: finish.upload for name, finish in finishes.items() if finish.upload}
    numbers = {key: value for finish in finishes.values() for key, value in finish.numbers.items()}
    usable = finite(delta) and finite(buffers) and all(finite(t) for slots in uploads.values() for t in slots.values())
    more = nbytes(buffers) + _slot_bytes(uploads)
    facts = facts_of(trainer, client, ready.examples, ready.steps, nbytes(ready.start) + more, numbers, usable)
    return Update(facts, delta, buffers, uploads, spanned)


def facts_of(
    trainer: Trainer,
    client: int,
    examples: int,
    steps: int,
    sent: int,
    numbers: Mapping[str, float],
    usable: bool = True,
) -> Facts:
    """The plain numbers of an update of which tensors of so many bytes are sent."""
    effort = trainer.plan.optimizer.effort(steps, sum(mechanism.pull() for mechanism in trainer.method.mechanisms))
    return Facts(client, examples, steps, effort, numbers, usable, sent + 8 * (2 + len(numbers)))


def _slot_bytes(slots: Mapping[str, Slots]) -> int:
    return sum(nbytes(tree) for named in slots.values() for tree in named.values())


def ask(
    method: Method, state: ServerState, bundle: Bundle, available: Sequence[int], rng: np.random.Generator
) -> Probe | None:
    """The second exchange that the aggregation wants with the clients, if any."""
    if method.aggregate.streaming or not bundle.usable:
        return None
    return method.aggregate.ask(bundle.updates, state.params, available, rng)


def probe_model(state: ServerState, probe: Probe, index: int) -> tuple[Params, Params]:
    """Weights and buffers of one candidate model of a probe."""
    return add(state.params, probe.deltas[index]), {**state.buffers, **probe.buffers[index]}


def server_round(
    method: Method, state: ServerState, bundle: Bundle, population: int, answers: Answers | None = None
) -> ServerState:
    """Aggregate a round's updates into the next global model."""
    usable = bundle.usable
    if not usable:
        raise NoUsableUpdate(
            f"round {state.round + 1}: none of the {len(bundle.facts)} updates was finite, so there is nothing to "
            "aggregate; the last good model is kept. Lower the learning rate or the strength of the penalty"
        )
    if method.aggregate.streaming:
        delta = method.aggregate.finish(bundle.change, usable)
        total = sum(method.aggregate.raw_weight(fact) for fact in usable)
        buffers, uploads = settle_buffers(bundle.buffers, total, state.buffers), bundle.uploads
    else:
        weights = method.aggregate.weights(bundle.updates, answers)
        delta = method.aggregate.combine(bundle.updates, weights)
        buffers = mean_buffers([update.buffers for update in bundle.updates], weights)
        uploads = reduce(add_slots, (update.uploads for update in bundle.updates))
    params, optimizer = method.server_opt.step(state.params, delta, state.optimizer)
    fraction = len(usable) / population
    slots = {}
    for mechanism in method.mechanisms:
        summed = uploads.get(mechanism.name, {})
        mean = {slot: scale(tree, 1.0 / len(usable)) for slot, tree in summed.items()}
        slots[mechanism.name] = mechanism.server_end(state.slots[mechanism.name], mean, fraction)
    return ServerState(params, buffers, slots, optimizer, state.round + 1)
