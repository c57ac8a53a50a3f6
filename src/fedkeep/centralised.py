"""Centralised training as a reference: what is forgotten when all the data lies in one place.

FedWAvg paper, Sec. 3.1 and Table 1, compares the forgetting events of centralised and of federated training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.build import Prepared, prepare
from fedkeep.experiment.config import Config
from fedkeep.experiment.run import Run, quiet_torch
from fedkeep.grammar import parse
from fedkeep.local.evaluate import evaluate, logits_of
from fedkeep.local.loop import passes, train
from fedkeep.local.step import Constants, LocalState, Session, Step
from fedkeep.mechanisms import ForgettingEvents
from fedkeep.metrics.events import CentralisedEvents, Events, margin_error
from fedkeep.model import Model
from fedkeep.rng import stream, torch_seeded
from fedkeep.rounds import Trainer
from fedkeep.tree import Params, finite

Look = Callable[[LocalState, Tensor, Tensor], None]


@dataclass(frozen=True)
class Epoch:
    """What one pass over the pooled training examples is remembered by."""

    epoch: int  # counted from 1
    accuracy: float  # after the pass, on the test examples
    loss: float
    accuracy_events: int  # right at the last look, wrong at this pass's
    margin_events: int  # that, or a margin error larger than at the last look
    seconds: float


@dataclass(frozen=True, eq=False)
class Centralised:
    """A finished centralised training: its records, its model, and how often each example was forgotten."""

    config: Config
    epochs: tuple[Epoch, ...]
    examples: np.ndarray  # rows of the data set's training part, in the order of the two below
    accuracy_events: np.ndarray
    margin_events: np.ndarray
    params: Params = field(repr=False)
    buffers: Params = field(repr=False)

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last pass."""
        return self.epochs[-1].accuracy

    @property
    def events(self) -> Events:
        """All forgetting events, by each definition."""
        return Events(int(self.accuracy_events.sum()), int(self.margin_events.sum()))

    def frame(self) -> pd.DataFrame:
        """One row per pass."""
        return pd.DataFrame([asdict(epoch) for epoch in self.epochs])

    def summary(self) -> dict[str, Any]:
        """The numbers a comparison is made of."""
        return {
            "epochs": len(self.epochs),
            "examples": len(self.examples),
            "accuracy": self.accuracy,
            "best": max(epoch.accuracy for epoch in self.epochs),
            "accuracy_events": self.events.accuracy,
            "margin_events": self.events.margin,
            "ever_forgotten": int(np.count_nonzero(self.accuracy_events)),
            "seconds": sum(epoch.seconds for epoch in self.epochs),
        }


@dataclass(frozen=True, eq=False)
class _Watching:
    """Steps that look at each batch before they learn from it."""

    step: Step
    look: Look

    def open(self, state: LocalState, constants: Constants) -> Session:
        return _WatchingSession(self.step.open(state, constants), self.look)


@dataclass(frozen=True, eq=False)
class _WatchingSession:
    session: Session
    look: Look

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        for inputs, labels in zip(x.split(size), y.split(size), strict=True):
            self.look(self.session.state(), inputs, labels)
            self.session(inputs, labels, size)

    def state(self) -> LocalState:
        return self.session.state()


def _looking(model: Model, events: CentralisedEvents, order: np.ndarray, batch_size: int) -> Look:
    """Look at the batches of one pass, which the loop shows in this order."""
    coming = iter(np.split(order, range(batch_size, len(order), batch_size)))

    def look(state: LocalState, x: Tensor, y: Tensor) -> None:
        chosen = next(coming)
        seen, labels = x[: len(chosen)], y[: len(chosen)]  # the loop may show a single example twice
        logits = logits_of(model, state.w, state.buffers, seen)
        correct = (logits.argmax(1) == labels).numpy()
        events.observe(chosen, correct, margin_error(logits.numpy(), labels.numpy()))

    return look


def centralised(
    config: Config, epochs: int | None = None, listen: Callable[[Epoch], None] | None = None
) -> Centralised:
    """Train the config's model on the clients' pooled training examples, and count what it forgets on the way.

    Same initial weights, batch size and optimiser as a run of the config; plain cross-entropy, whatever its method.
    The optimiser's memory lasts from pass to pass. Without `epochs`, as many passes as a client makes in the
    run on average, rounds * local_epochs * share of the clients a round: the paper's 200 for 40 rounds of 5.

    FedWAvg paper, Sec. 3.1: a batch A is fed forward; after the model was updated by another batch B, again. It leaves
    open which B, and how often. Here each example is looked at once in each pass, when its batch comes up and before
    the model learns from it, and compared with its look one pass earlier; between the two lie its own update and
    those of all batches that came since, about one pass. This is how the works that the paper builds on count, and it
    costs one forward pass more for each pass over the data, about a third of the training. The look is in evaluation
    mode (running statistics of batch norm, no dropout). The first pass has no events, and what the updates
    after an example's last look forgot is not counted, as the last global model of a run is not.

    Both of the paper's definitions are counted (`CentralisedEvents`). A margin error rises at many looks, if only by
    rounding (at two fifths in 200 passes over digits): for 200 passes over 60,000 examples that would be millions,
    where Table 1 has thousands. So the count to hold against it, and against `federated_events`, is that of accuracy.
    """
    if config.population:
        raise ConfigError(
            f"population={config.population}: its clients share the data set, so there is nothing to pool; leave "
            "--population away to train on the data set itself"
        )
    with quiet_torch():
        prepared = prepare(config)
        count = _default_epochs(prepared) if epochs is None else epochs
        if count < 1:
            raise ConfigError(f"epochs={count} is too small; choose at least 1")
        return _train(prepared, count, listen)


def _default_epochs(prepared: Prepared) -> int:
    """As many passes as a client makes over its own data in a whole run, on average."""
    config = prepared.config
    if config.local_steps:
        raise ConfigError(f"local_steps={config.local_steps} says nothing of passes over the data; give epochs")
    return max(1, round(config.rounds * config.local_epochs * prepared.cohort_size / len(prepared.population)))


def _train(prepared: Prepared, epochs: int, listen: Callable[[Epoch], None] | None) -> Centralised:
    config, model, population = prepared.config, prepared.model, prepared.population
    everyone = [population.train.indices(client) for client in range(len(population))]
    rows = np.sort(np.concatenate(everyone)).astype(np.int64)
    x, y = (tensor.index_select(0, torch.from_numpy(rows)) for tensor in (population.x, population.y))
    plan = replace(config.plan, epochs=1, steps=None)
    trainer = Trainer.of(model, parse("fedavg"), plan)  # cross-entropy, no mechanism
    start, buffers = model.initial()
    constants = Constants(start, trainer.method.loss.adjust(population.class_counts(y)), {})
    state = trainer.recipe.initial(start, buffers)
    events = CentralisedEvents(len(rows))
    records: list[Epoch] = []
    for number in range(1, epochs + 1):
        started, before = time.perf_counter(), events.total
        order = next(passes(len(rows), plan, stream(config.seed, "centralised", number)))
        watching = _Watching(trainer.step, _looking(model, events, order, plan.batch_size))
        with torch_seeded(stream(config.seed, "centralised dropout", number)):
            state = train(watching, state, x, y, constants, [order], plan.batch_size, model.has_batch_norm)
        if not (finite(state.w) and finite(state.buffers)):
            raise RunError(
                f"epoch {number}: the weights are no longer finite; lower the learning rate (lr={config.lr})"
            )
        record = _record(prepared, number, state, before, events.total, started)
        records.append(record)
        if listen:
            listen(record)
    counts = events.accuracy_events, events.margin_events
    return Centralised(config, tuple(records), rows, *counts, state.w, state.buffers)


def _record(prepared: Prepared, number: int, state: LocalState, before: Events, now: Events, started: float) -> Epoch:
    test_x, test_y = prepared.dataset.test_x, prepared.dataset.test_y
    judged = evaluate(prepared.model, state.w, state.buffers, test_x, test_y)
    return Epoch(
        number,
        judged.accuracy,
        judged.loss / max(1, len(test_y)),
        now.accuracy - before.accuracy,
        now.margin - before.margin,
        time.perf_counter() - started,
    )


def federated_events(run: Run) -> int:
    """All forgetting events of a run: its forgettable examples, over all clients and rounds.

    FedWAvg paper, Table 1, the row of federated learning. When a client trains it counts what the global model that it
    receives has lost since its own last model; so its first round counts none, and nobody counts the last global model.
    """
    kept = [part for part in parse(run.config.method).mechanisms if isinstance(part, ForgettingEvents)]
    if any(part.event_period > 1 for part in kept):
        raise RunError(
            f"{run.config.method} does not count in every round; run it with event_period=1 to add events up"
        )
    return int(np.nansum(run.frame("clients")["forgettable"].to_numpy()))
