"""The vocabulary: what a federated method is made of.

A method is a value: a loss, mechanisms, an aggregation and a server optimiser. Parts are written for *one*
client and know nothing of where they run. What must travel together (SCAFFOLD's broadcast, correction, upload
and server update) stays in one mechanism.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from fedkeep.calls import format_call
from fedkeep.memories import Memory as Memory
from fedkeep.tree import Params, Slots, scale, weighted_sum


class Part:
    """Anything a method is made of: a frozen dataclass with a name in the grammar."""

    name: ClassVar[str] = ""

    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        pairs = [(item, getattr(self, item.name)) for item in fields(self)]  # type: ignore[arg-type]
        return {item.name: value for item, value in pairs if item.default is MISSING or value != item.default}

    def term(self) -> str:
        """The part in the grammar of method names."""
        return format_call(self.name, self.options())

    @classmethod
    def sends(cls) -> str:
        """What leaves the client because of this part: what stands behind `Sends:` in its docstring."""
        _, found, rest = inspect.cleandoc(cls.__doc__ or "").partition("Sends:")
        if found:
            return " ".join(rest.split("\n\n")[0].split())
        raise NotImplementedError(f'{cls.__name__} has no "Sends:" line in its docstring; add one')


class LocalOptimizer(Part):
    """How a client turns a gradient into a step. All arguments and results are trees by name."""

    lr: float

    def init(self, params: Params) -> Slots:
        raise NotImplementedError

    def step(self, w: Params, gradient: Params, state: Slots) -> tuple[Params, Slots]:
        raise NotImplementedError

    def effort(self, steps: int, pull: float) -> float:
        """How far a constant unit gradient would have moved the weights, in units of lr (FedNova's a_k)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plan:
    """The local budget, shared by all methods: passes over the data (or steps), batch size, optimiser."""

    optimizer: LocalOptimizer
    batch_size: int = 32
    epochs: int = 1
    steps: int | None = None  # a fixed number of steps in place of epochs

    def local_steps(self, examples: int) -> int:
        """How many optimiser steps a client with `examples` examples takes; the last short batch counts."""
        return self.steps if self.steps is not None else self.epochs * -(-examples // self.batch_size)


class Loss(Part):
    """A loss of logits and labels that may depend on how often each label occurs on the client."""

    def adjust(self, class_counts: Tensor) -> Params:
        """What the loss needs to know of the client's labels, computed once per client and round."""
        return {}

    def value(self, logits: Tensor, labels: Tensor, adjustment: Params) -> Tensor:
        """The mean loss of a batch."""
        raise NotImplementedError

    def __call__(self, logits: Tensor, labels: Tensor, class_counts: Tensor) -> Tensor:
        """The mean loss of a batch, for use in anyone's training loop."""
        return self.value(logits, labels, self.adjust(class_counts))


@dataclass(frozen=True)
class StepContext:
    """What a mechanism sees inside a local step: tensors only, all of them fixed during the client's round."""

    start: Params  # the global model the client started from
    constants: Slots  # what the mechanism's `prepare` returned
    lr: float


@dataclass(frozen=True)
class LocalContext:
    """What a mechanism sees of a client before and after its local training."""

    start: Params
    server: Slots  # what the mechanism's server side broadcast
    client: Slots  # what the mechanism kept on this client
    examples: int
    steps: int  # planned local steps
    lr: float
    round: int  # counted from 1


@dataclass(frozen=True)
class LocalResult:
    """What came out of a client's local training; the callables compute once and remember."""

    params: Params
    steps: int
    track: Slots  # the mechanism's own state along the steps
    correct_before: Callable[[], np.ndarray]  # is the global model right, for each training example
    correct_after: Callable[[], np.ndarray]  # is the local model right, for each training example
    fisher: Callable[[], Params]  # diagonal empirical Fisher at the local weights


@dataclass(frozen=True)
class Finish:
    """What a mechanism does at the end of a client's round."""

    upload: Slots = field(default_factory=dict)  # travels to the server
    keep: Slots = field(default_factory=dict)  # stays on the client
    numbers: Mapping[str, float] = field(default_factory=dict)  # travels to the server


class Mechanism(Part):
    """Something added to local training, and what goes with it on the server.

    Every hook does nothing unless a paper needs it.
    """

    uploads: ClassVar[tuple[str, ...]] = ()  # names of the slots or numbers it sends
    sends_numbers: ClassVar[bool] = False  # these are plain numbers, not tensors as large as the model

    @property
    def stands_aside(self) -> bool:
        """Whether local steps are the same without it."""
        hooks = ("prepare", "correction", "track_init", "track")
        return all(getattr(type(self), hook) is getattr(Mechanism, hook) for hook in hooks)

    def check(self, plan: Plan) -> None:
        """Refuse nonsense before round 1."""

    def server_init(self, params: Params) -> Slots:
        """What is broadcast with the model in round 1."""
        return {}

    def client_init(self, params: Params) -> Slots:
        """What a client starts from when it is sampled for the first time; stays on the client."""
        return {}

    def prepare(self, ctx: LocalContext) -> Slots:
        """Tensors that `correction` and `track` will use during this client's round."""
        return {}

    def correction(self, w: Params, ctx: StepContext) -> Params | None:
        """Added to the gradient of the local loss."""
        return None

    def pull(self) -> float:
        """Strength of an isotropic pull towards the start (FedNova counts it)."""
        return 0.0

    def track_init(self, params: Params) -> Slots:
        """State along the local steps."""
        return {}

    def track(self, state: Slots, before: Params, gradient: Params, after: Params, ctx: StepContext) -> Slots:
        """Update the state after one step; `gradient` is that of the loss alone."""
        return state

    def client_end(self, ctx: LocalContext, result: LocalResult) -> Finish:
        """What is uploaded, what is kept."""
        return Finish(keep=ctx.client)

    def server_end(self, slots: Slots, mean_upload: Slots, fraction: float) -> Slots:
        """The next broadcast, from the plain mean of the cohort's uploads; `fraction` is |S|/K."""
        return slots


@dataclass(frozen=True)
class Facts:
    """The plain numbers of one client's update."""

    client: int
    examples: int
    steps: int
    effort: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    finite: bool = True
    bytes_up: int = 0


class Change(Protocol):
    """A change of weights that is not written out, but can be added to sums."""

    def add_to(self, total: Tensor, others: Tensor, factor: float) -> None: ...


@dataclass(frozen=True)
class Update:
    """What one client sends back: the change of its weights, its buffers, its mechanisms' uploads."""

    facts: Facts
    delta: Params  # new - old
    buffers: Params = field(default_factory=dict)
    uploads: Mapping[str, Slots] = field(default_factory=dict)
    spanned: Change | None = None  # in place of delta, and only until the next client is trained


@dataclass(frozen=True)
class Probe:
    """A second exchange: candidate models (as changes of the global one) and who is asked to score each."""

    deltas: Sequence[Params]
    buffers: Sequence[Params]
    evaluators: Sequence[Sequence[int]]
    state: Any = None  # the aggregation's own notes, stay on the server


class Aggregator(Part):
    """How the server makes one change of the global model out of the cohort's.

    A *streaming* aggregation needs only the sum over clients of `contribution`, so models can be added up where
    they were trained. Any other sees all updates at once. `weights` are the shares used for buffers, and for the
    parameters unless `combine` says otherwise.
    """

    streaming: ClassVar[bool] = True
    copies: ClassVar[float] = 0  # not streaming: tensors as large as the model that `combine` makes for each client
    needs: ClassVar[str | None] = None  # what some mechanism must upload

    def check(self, plan: Plan, cohort: int | None = None) -> None:
        """Refuse nonsense before round 1."""

    def raw_weight(self, facts: Facts) -> float:
        """Relative weight of one client."""
        return float(facts.examples)

    def weights(self, updates: Sequence[Update], answers: Answers | None = None) -> list[float]:
        """Weights of the clients, summing to one."""
        raw = [self.raw_weight(update.facts) for update in updates]
        total = sum(raw)
        return [value / total for value in raw]

    def factor(self, facts: Facts) -> float:
        """Streaming: what this client's change is multiplied by in the sum."""
        return self.raw_weight(facts)

    def contribution(self, update: Update) -> Params:
        """Streaming: what this client adds to the sum, as new tensors (sums are written into them)."""
        return scale(update.delta, self.factor(update.facts))

    def finish(self, total: Params, facts: Sequence[Facts]) -> Params:
        """Streaming: the change of the global model from the sum of contributions."""
        return scale(total, 1.0 / sum(self.raw_weight(fact) for fact in facts))

    def ask(
        self, updates: Sequence[Update], start: Params, available: Sequence[int], rng: np.random.Generator
    ) -> Probe | None:
        """Ask for a second exchange with the clients before `combine`; None if none is needed."""
        return None

    def combine(self, updates: Sequence[Update], weights: Sequence[float]) -> Params:
        """Not streaming: the change of the global model."""
        return weighted_sum((update.delta for update in updates), weights)


@dataclass(frozen=True)
class Answers:
    """The accuracies that came back from a probe: scores[model][evaluator]."""

    probe: Probe
    scores: Sequence[Sequence[float]]


class ServerOptimizer(Part):
    """How the server applies the aggregated change (the negative pseudo-gradient)."""

    def init(self, params: Params) -> Slots:
        return {}

    def step(self, w: Params, delta: Params, state: Slots) -> tuple[Params, Slots]:
        raise NotImplementedError


@dataclass(frozen=True)
class Method:
    """A federated method: loss x mechanisms x aggregation x server optimiser."""

    loss: Loss
    aggregate: Aggregator
    server_opt: ServerOptimizer
    mechanisms: tuple[Mechanism, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.loss, *self.mechanisms, self.aggregate, self.server_opt)
