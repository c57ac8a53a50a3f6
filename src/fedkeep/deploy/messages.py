"""What server and clients say to each other, as Flower's records.

    hello     who are you, how many examples have you        -> name, numbers
    train     the global model, what mechanisms broadcast    -> the change of the weights, buffers, uploads, numbers
    score     candidate models (FedWAgg)                     -> one accuracy for each
    judge     the new global model, with --probe also the cohort's models   -> how many examples of each class are right

Every reader takes nothing but what is expected, see `wire`. The answers that are numbers only are in `answers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedkeep.deploy.encoding import PLAIN, Encodings
from fedkeep.deploy.wire import (
    VERSION,
    Spec,
    WireError,
    config_of,
    keys_of,
    numbers_of,
    only,
    put,
    shown,
    size_of,
    spec_of,
    take,
    take_any,
    whole,
)
from fedkeep.method import Facts, Method, Update
from fedkeep.rng import stream
from fedkeep.rounds import Broadcast, ClientData, ServerState, Trainer, broadcast_of, client_round
from fedkeep.tree import Params, Slots

HELLO, TRAIN, SCORE, JUDGE = "query.hello", "train", "query.score", "query.judge"
MOST = 10**9  # examples of one client

Models = Sequence[tuple[Params, Params]]


def about(**more: Any) -> ConfigRecord:
    """The record that every message carries."""
    return ConfigRecord({"wire": VERSION, **more})


def request(shared: RecordDict, **more: Any) -> RecordDict:
    """One client's message: tensors shared with the messages to others, and words of its own."""
    return RecordDict({**shared, "about": about(**more)})


# -- the expected reply to `train`


@dataclass(frozen=True)
class Expected:
    """What a client's update must look like."""

    delta: Spec
    buffers: Spec
    uploads: Mapping[str, Mapping[str, Spec]]
    numbers: frozenset[str]
    encodings: Encodings = field(default_factory=dict)

    def keys(self) -> set[str]:
        found = {"about", "numbers", "measured", "buffers"}
        found |= keys_of("delta", self.delta, self.encodings.get("delta", PLAIN))
        for mechanism, slots in self.uploads.items():
            for slot, spec in slots.items():
                found |= keys_of(upload_key(mechanism, slot), spec, self.encodings.get(slot, PLAIN))
        return found

    @property
    def slots(self) -> list[str]:
        """Everything that can be encoded."""
        return ["delta", "broadcast", *(slot for slots in self.uploads.values() for slot in slots)]


def upload_key(mechanism: str, slot: str) -> str:
    return f"uploads/{mechanism}/{slot}"


def expected_update(trainer: Trainer, state: ServerState, shape: tuple[int, ...], classes: int) -> Expected:
    """What clients will send, found out by training on two blank examples."""
    labels = torch.zeros(2, dtype=torch.long)
    data = ClientData(torch.zeros(2, *shape), labels, torch.bincount(labels, minlength=classes))
    short = replace(trainer, plan=replace(trainer.plan, steps=1))
    update = client_round(short, broadcast_of(state), data, None, 0, stream(0, "blank")).update
    uploads = {name: {slot: spec_of(tree) for slot, tree in slots.items()} for name, slots in update.uploads.items()}
    slots = {slot for named in uploads.values() for slot in named}
    numbers = frozenset(name for m in trainer.method.mechanisms for name in m.uploads) - slots
    return Expected(spec_of(update.delta), spec_of(update.buffers), uploads, numbers)


# -- models


def put_model(records: RecordDict, prefix: str, params: Params, buffers: Params, encodings: Encodings) -> None:
    put(records, f"{prefix}params", params, encodings.get("broadcast", PLAIN))
    put(records, f"{prefix}buffers", buffers)


def take_model(
    records: RecordDict, prefix: str, like: tuple[Params, Params], encodings: Encodings
) -> tuple[Params, Params]:
    params = take(records, f"{prefix}params", spec_of(like[0]), encodings.get("broadcast", PLAIN))
    return params, take(records, f"{prefix}buffers", spec_of(like[1]))


def put_models(models: Models, encodings: Encodings) -> RecordDict:
    """Several models, numbered."""
    records = RecordDict()
    for number, (params, buffers) in enumerate(models):
        put_model(records, f"models/{number}/", params, buffers, encodings)
    return records


def joined(parts: Sequence[RecordDict]) -> RecordDict:
    """Single models that `put_models` packed, numbered anew in one record."""
    return RecordDict(
        {key.replace("models/0/", f"models/{n}/", 1): rec for n, part in enumerate(parts) for key, rec in part.items()}
    )


def take_models(records: RecordDict, like: tuple[Params, Params], encodings: Encodings) -> list[tuple[Params, Params]]:
    count = whole(config_of(records), "models", 0, 100_000)
    return [take_model(records, f"models/{number}/", like, encodings) for number in range(count)]


# -- train


def put_broadcast(broadcast: Broadcast, encodings: Encodings) -> RecordDict:
    """What all clients of a cohort receive."""
    records = RecordDict()
    put_model(records, "", broadcast.params, broadcast.buffers, encodings)
    for mechanism, slots in broadcast.slots.items():
        for slot, tree in slots.items():
            put(records, f"slots/{mechanism}/{slot}", tree)
    return records


def take_broadcast(records: RecordDict, method: Method, like: tuple[Params, Params], encodings: Encodings) -> Broadcast:
    """What the server sent; every mechanism has its slots, empty where nothing was sent."""
    params, buffers = take_model(records, "", like, encodings)
    slots: dict[str, Slots] = {mechanism.name: {} for mechanism in method.mechanisms}
    for key in records:
        if key.startswith("slots/"):
            _, mechanism, slot = [*key.split("/"), "", ""][:3]
            if mechanism not in slots:
                raise WireError(f"slots of {shown(mechanism)}, which this method does not have")
            slots[mechanism][slot] = take_any(records, key)
    return Broadcast(params, buffers, slots, whole(config_of(records), "round", 1, MOST))


def put_update(update: Update, expected_encodings: Encodings, private: bool, memory: str) -> RecordDict:
    """A client's answer; an update that is not finite is only reported, and privacy keeps the number of examples."""
    facts = update.facts
    records = RecordDict({"about": about(finite=facts.finite, memory=memory)})
    records["numbers"] = MetricRecord({"examples": 1 if private else facts.examples})
    if not facts.finite:
        return records
    records["measured"] = MetricRecord({name: float(value) for name, value in facts.numbers.items()})
    put(records, "delta", update.delta, expected_encodings.get("delta", PLAIN))
    put(records, "buffers", update.buffers)
    for mechanism, slots in update.uploads.items():
        for slot, tree in slots.items():
            put(records, upload_key(mechanism, slot), tree, expected_encodings.get(slot, PLAIN))
    return records


def take_update(records: RecordDict, client: int, trainer: Trainer, expected: Expected) -> tuple[Update, str]:
    """A client's update, checked, and what became of its memory; steps and effort follow from the examples."""
    only(records, expected.keys())
    said = config_of(records)
    examples = whole(numbers_of(records, "numbers"), "examples", 1, MOST)
    steps = trainer.plan.local_steps(examples)
    effort = trainer.plan.optimizer.effort(steps, sum(m.pull() for m in trainer.method.mechanisms))
    memory = said.get("memory")
    if memory not in ("new", "kept", "lost") or not isinstance(said.get("finite"), bool):
        raise WireError("it does not say what became of its memory, or whether its update is finite")
    if not said["finite"]:
        return Update(Facts(client, examples, steps, effort, finite=False), {}), memory
    numbers = _measured(records, examples, expected.numbers)
    delta = take(records, "delta", expected.delta, expected.encodings.get("delta", PLAIN))
    buffers = take(records, "buffers", expected.buffers)
    uploads = {
        mechanism: {
            slot: take(records, upload_key(mechanism, slot), spec, expected.encodings.get(slot, PLAIN))
            for slot, spec in slots.items()
        }
        for mechanism, slots in expected.uploads.items()
    }
    size = size_of(records) + 8 * (2 + len(numbers))
    return Update(Facts(client, examples, steps, effort, numbers, True, size), delta, buffers, uploads), memory


def _measured(records: RecordDict, examples: int, allowed: frozenset[str]) -> dict[str, float]:
    found = dict(numbers_of(records, "measured"))
    for name, value in found.items():
        if name not in allowed:
            raise WireError(f"it sends a number {shown(name)} that nobody asked for")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise WireError(f"its number {name} is {shown(value)}, not a finite number")
        if name == "forgettable" and not 0 <= value <= examples:
            raise WireError(f"it counts {value} forgettable examples of {examples}")
    return {name: float(value) for name, value in found.items()}  # type: ignore[arg-type]
