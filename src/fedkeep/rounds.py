"""One federated round: the only functions a runtime calls.

    begin -> (client_round for each client of the cohort -> collect -> merge -> server_round), round after round

Sums over clients are taken pair by pair along a fixed tree (`merge`), so that the result does not depend on how many
workers there are or who finishes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce

import numpy as np
import torch
from torch import Tensor

from fedkeep.errors import ConfigError, RunError
from fedkeep.local.evaluate import right_of
from fedkeep.local.fisher import diagonal_fisher
from fedkeep.local.loop import rows_of, train
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
from fedkeep.model import Model, laid_out, mean_buffers, row_major, settle_buffers, weigh_buffers
from fedkeep.tree import Params, Slots, add, add_into, finite, nbytes, scale, scale_in_place, sub, sub_into

SHARE = 1.5  # a block is at most one part in SHARE * workers of what is left: large first, small in the end


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


@dataclass(frozen=True)
class Bundle:
    """Updates of some clients, added up as far as the aggregation allows."""

    facts: tuple[Facts, ...]
    total: Params = field(default_factory=dict)  # streaming: the sum of contributions
    buffers: Params = field(default_factory=dict)  # streaming: the weighted sum of buffers
    uploads: Mapping[str, Slots] = field(default_factory=dict)  # streaming: the sum of uploads
    updates: tuple[Update, ...] = ()  # not streaming: the updates themselves
    uploads_ours: bool = False  # nobody else has `uploads`: sums may be written into them, as into `total`, `buffers`

    @property
    def usable(self) -> tuple[Facts, ...]:
        return tuple(fact for fact in self.facts if fact.finite)


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

    start: Params
    x: Tensor
    memory: Memory
    contexts: dict[str, LocalContext]
    constants: Constants
    state: LocalState
    steps: int


def _receive(trainer: Trainer, broadcast: Broadcast, data: ClientData, memory: Memory | None) -> _Ready:
    method, plan = trainer.method, trainer.plan
    if memory is None:
        memory = {mechanism.name: mechanism.client_init(broadcast.params) for mechanism in method.mechanisms}
    start, server, own, x = broadcast.params, broadcast.slots, memory, data.x
    if trainer.channels_last:
        start, server, own, x = laid_out(start), laid_out(server), laid_out(own), laid_out(x)
    steps = plan.local_steps(len(data.y))
    contexts = {
        m.name: LocalContext(start, server[m.name], own[m.name], len(data.y), steps, plan.optimizer.lr, broadcast.round)
        for m in method.mechanisms
    }
    constants = Constants(
        start,
        method.loss.adjust(data.class_counts),
        {m.name: m.prepare(contexts[m.name]) for m in method.mechanisms},
    )
    return _Ready(start, x, memory, contexts, constants, trainer.recipe.initial(start, broadcast.buffers), steps)


def opened(trainer: Trainer, broadcast: Broadcast, data: ClientData) -> tuple[Session, Tensor]:
    """A client's local training about to begin, and its examples in the trainer's layout."""
    ready = _receive(trainer, broadcast, data, None)
    return trainer.step.open(ready.state, ready.constants), ready.x


def warm_up(trainer: Trainer, broadcast: Broadcast, data: ClientData) -> None:
    """Record and compile what can be, before workers part, so that each need not do it again."""
    if not isinstance(trainer.step, TracedStep):
        return
    ready = _receive(trainer, broadcast, data, None)
    for size in sorted(trainer.step.batch_sizes or ()):
        rows = torch.arange(size) % len(data.y)
        trainer.step.program(lambda: ready.state, ready.constants, rows_of(ready.x, rows), data.y[rows])
    right_of(trainer.model, ready.start, broadcast.buffers, ready.x[:1], data.y[:1])


def client_round(
    trainer: Trainer,
    broadcast: Broadcast,
    data: ClientData,
    memory: Memory | None,
    client: int,
    rng: np.random.Generator,
    keep_model: bool = True,
) -> ClientOutcome:
    """Train one client: receive, train, evaluate what the method needs, answer.

    `keep_model`: False if nobody wants the local model: the update is then made in its place, and saves memory.
    """
    method, model = trainer.method, trainer.model
    ready = _receive(trainer, broadcast, data, memory)
    start, x, y = ready.start, ready.x, data.y
    torch.default_generator.manual_seed(int(rng.integers(2**63)))  # dropout and the like, keyed as all else
    end = train(trainer.step, ready.state, x, y, ready.constants, trainer.plan, rng, model.has_batch_norm)

    before = cache(lambda: right_of(model, start, broadcast.buffers, x, y))
    after = cache(lambda: right_of(model, end.w, end.buffers, x, y))
    fisher = cache(lambda: diagonal_fisher(model, end.w, end.buffers, x, y))
    finishes: dict[str, Finish] = {}
    for m in method.mechanisms:
        result = LocalResult(end.w, ready.steps, end.track[m.name], before, after, fisher)
        finishes[m.name] = m.client_end(ready.contexts[m.name], result)
    spent = not keep_model and not any(_shared(end.w, finish) for finish in finishes.values())
    delta = sub_into(end.w, start) if spent else sub(end.w, start)
    update = _update(trainer, client, len(y), ready.steps, delta, end.buffers, finishes)
    kept = {name: finish.keep for name, finish in finishes.items()} if update.facts.finite else ready.memory
    if trainer.channels_last:
        update = replace(update, delta=row_major(update.delta), uploads=row_major(update.uploads))
        kept = row_major(kept)
    return ClientOutcome(update, kept, {} if spent else end.w, end.buffers)


def _shared(params: Params, finish: Finish) -> bool:
    """Whether a mechanism sends or keeps the local model's own tensors."""
    mine = {tensor.untyped_storage().data_ptr() for tensor in params.values()}
    kept = [tensor for slots in (finish.upload, finish.keep) for tree in slots.values() for tensor in tree.values()]
    return any(tensor.untyped_storage().data_ptr() in mine for tensor in kept)


def _update(
    trainer: Trainer,
    client: int,
    examples: int,
    steps: int,
    delta: Params,
    buffers: Params,
    finishes: dict[str, Finish],
) -> Update:
    uploads = {name: finish.upload for name, finish in finishes.items() if finish.upload}
    numbers = {key: value for finish in finishes.values() for key, value in finish.numbers.items()}
    pull = sum(mechanism.pull() for mechanism in trainer.method.mechanisms)
    usable = finite(delta) and finite(buffers) and all(finite(t) for slots in uploads.values() for t in slots.values())
    facts = Facts(
        client,
        examples,
        steps,
        trainer.plan.optimizer.effort(steps, pull),
        numbers,
        usable,
        nbytes(delta) + nbytes(buffers) + _slot_bytes(uploads) + 8 * (2 + len(numbers)),
    )
    return Update(facts, delta, buffers, uploads)


def _slot_bytes(slots: Mapping[str, Slots]) -> int:
    return sum(nbytes(tree) for named in slots.values() for tree in named.values())


def groups(count: int, workers: int = 1) -> list[range]:
    """Which neighbours of a cohort one worker takes together: blocks of a power of two, each as many as its share.

    Few blocks, so that few sums travel; small ones last, so that no worker waits long for another. Sums are taken
    pair by pair (`merge`), so that the size of the blocks does not change the result.

    >>> groups(5, workers=1)
    [range(0, 2), range(2, 4), range(4, 5)]
    >>> [len(block) for block in groups(20, workers=2)]
    [4, 4, 4, 2, 2, 1, 1, 1, 1]
    """
    blocks, first = [], 0
    while first < count:
        share = int((count - first) / (SHARE * workers))
        size = 1 << max(0, share.bit_length() - 1)  # never larger than the one before, so it begins at a multiple
        blocks.append(range(first, first + size))
        first += size
    return blocks


def collect(method: Method, updates: Iterable[Update], consume: bool = False) -> Bundle:
    """Add up the updates of one group, in order, leaving out what is not finite.

    `consume`: nobody needs the updates afterwards, so that sums may be made in their place.
    """
    return merge(method, (_single(method, update, consume) for update in updates))


def _single(method: Method, update: Update, consume: bool) -> Bundle:
    aggregate = method.aggregate
    if not update.facts.finite:
        return Bundle((update.facts,))
    if not aggregate.streaming:
        return Bundle((update.facts,), updates=(update,))
    if consume and type(aggregate).contribution is Aggregator.contribution:
        total = scale_in_place(update.delta, aggregate.factor(update.facts))
    else:
        total = aggregate.contribution(update)
    buffers = weigh_buffers(update.buffers, aggregate.raw_weight(update.facts))
    return Bundle((update.facts,), total, buffers, update.uploads)


def merge(method: Method, bundles: Iterable[Bundle]) -> Bundle:
    """Add bundles up pair by pair, into the first of each pair: neighbours, then pairs of neighbours, and so on.

    Whoever adds up an aligned block of a power of two has done a part of the same tree, so the result is bit for bit
    the same however the cohort was cut. At most log2(n) partial sums are held at a time.
    """
    stack: list[Bundle] = []
    for bundle in bundles:
        while stack and len(stack[-1].facts) == len(bundle.facts):
            bundle = _pair(stack.pop(), bundle)
        stack.append(bundle)
    whole = Bundle(())
    for bundle in reversed(stack):
        whole = _pair(bundle, whole)
    return whole


def _pair(a: Bundle, b: Bundle) -> Bundle:
    """a + b, written into a; uploads into whichever are ours (a sum of two does not depend on their order)."""
    facts = a.facts + b.facts
    if not a.usable or not b.usable:
        return replace(a if a.usable else b, facts=facts)
    total, buffers = add_into(a.total, b.total), add_into(a.buffers, b.buffers)
    into, other = (a, b) if a.uploads_ours or not b.uploads_ours else (b, a)
    uploads = _add_slots(into.uploads, other.uploads, add_into if into.uploads_ours else add)
    return Bundle(facts, total, buffers, uploads, a.updates + b.updates, uploads_ours=True)


def _add_slots(
    a: Mapping[str, Slots], b: Mapping[str, Slots], plus: Callable[[Params, Params], Params] = add
) -> dict[str, Slots]:
    return {name: {slot: plus(tree, b[name][slot]) for slot, tree in slots.items()} for name, slots in a.items()}


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
        delta = method.aggregate.finish(bundle.total, usable)
        total = sum(method.aggregate.raw_weight(fact) for fact in usable)
        buffers, uploads = settle_buffers(bundle.buffers, total, state.buffers), bundle.uploads
    else:
        weights = method.aggregate.weights(bundle.updates, answers)
        delta = method.aggregate.combine(bundle.updates, weights)
        buffers = mean_buffers([update.buffers for update in bundle.updates], weights)
        uploads = reduce(_add_slots, (update.uploads for update in bundle.updates))
    params, optimizer = method.server_opt.step(state.params, delta, state.optimizer)
    fraction = len(usable) / population
    slots = {}
    for mechanism in method.mechanisms:
        summed = uploads.get(mechanism.name, {})
        mean = {slot: scale(tree, 1.0 / len(usable)) for slot, tree in summed.items()}
        slots[mechanism.name] = mechanism.server_end(state.slots[mechanism.name], mean, fraction)
    return ServerState(params, buffers, slots, optimizer, state.round + 1)
