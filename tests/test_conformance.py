"""The public conformance suite: every part of ours passes, and every way to break a part is caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from fedkeep.aggregation import FedNova, FedWAgg, FedWAvg, Importance, WeightedMean
from fedkeep.errors import ConfigError
from fedkeep.local_opt import SGD
from fedkeep.mechanisms import EWC, ForgettingEvents, Proximal, RWalk, Scaffold
from fedkeep.method import Aggregator, Finish, Mechanism, Plan, Probe
from fedkeep.testing import check_aggregator, check_mechanism
from fedkeep.tree import add, scale, sub, weighted_sum, zeros_like

OUR_MECHANISMS = [
    Proximal(0.1),
    Proximal(0.0),
    Scaffold(),
    EWC(1e5),
    EWC(0.0, gamma=0.5),
    EWC(1.0, explicit=True),
    RWalk(1.0, eps=0.1),
    ForgettingEvents(),
    ForgettingEvents(2),
]
OUR_AGGREGATORS = [
    WeightedMean(),
    WeightedMean("uniform"),
    FedNova(),
    FedWAvg(0.0),
    FedWAvg(0.3),
    Importance(),
    FedWAgg(1),
    FedWAgg(2),
    FedWAgg(3, balanced=True),
    FedWAgg(3, evaluators=2, features="update"),
]


def names(parts) -> set[type]:
    return {type(part) for part in parts}


@pytest.mark.parametrize("mechanism", OUR_MECHANISMS, ids=lambda m: m.term())
def test_our_mechanisms_pass(mechanism):
    check_mechanism(mechanism)


@pytest.mark.parametrize("aggregator", OUR_AGGREGATORS, ids=lambda a: a.term())
def test_our_aggregations_pass(aggregator):
    check_aggregator(aggregator)


def test_none_of_ours_is_left_out():
    import fedkeep.aggregation
    import fedkeep.mechanisms

    for module, base, checked in (
        (fedkeep.mechanisms, Mechanism, OUR_MECHANISMS),
        (fedkeep.aggregation, Aggregator, OUR_AGGREGATORS),
    ):
        exported = {getattr(module, name) for name in module.__all__}
        assert {kind for kind in exported if isinstance(kind, type) and issubclass(kind, base)} == names(checked)


# ---------------------------------------------------------------- a part of one's own that is right


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each weight.

    Sends: the trained model.
    """

    name = "median"
    streaming = False

    def combine(self, updates, weights):
        first = updates[0].delta
        return {name: torch.stack([update.delta[name] for update in updates]).median(0).values for name in first}

    def weights(self, updates, answers=None):
        return [1.0 / len(updates)] * len(updates)


@dataclass(frozen=True)
class Drift(Mechanism):
    """Pull towards where the client ended last time, and report how far it moved.

    Sends: one number, how far the client moved.
    """

    strength: float
    power: int = 2
    name = "drift"
    uploads = ("moved",)

    def client_init(self, params):
        return {"last": {name: tensor.clone() for name, tensor in params.items()}}

    def prepare(self, ctx):
        return {"last": ctx.client["last"]}

    def correction(self, w, ctx):
        return scale(sub(w, ctx.constants["last"]), self.strength)

    def client_end(self, ctx, result):
        moved = sum(float((result.params[name] - ctx.start[name]).abs().sum()) for name in sorted(ctx.start))
        return Finish(keep={"last": result.params}, numbers={"moved": moved})


def test_parts_of_ones_own_pass():
    check_mechanism(Drift(0.2))
    check_mechanism(Drift(0.2, power=3))
    check_aggregator(Median())


def test_a_mechanism_may_ask_for_another_plan():
    with pytest.raises(ConfigError, match="overshoots"):
        check_mechanism(Proximal(50.0))
    check_mechanism(Proximal(50.0), Plan(SGD(0.001), batch_size=2))


# ---------------------------------------------------------------- broken mechanisms


def documented(kind: type) -> None:
    """Give a broken part the line that it is not about."""
    if "Sends:" not in (kind.__doc__ or ""):
        kind.__doc__ = f"{kind.__doc__ or kind.__name__}\n\nSends: nothing."


@dataclass(frozen=True)
class Mechanic(Mechanism):
    """The base of all broken ones, itself right.

    Sends: nothing.
    """

    name = "mechanic"

    def __init_subclass__(cls):
        documented(cls)


@dataclass(frozen=True)
class Silent(Mechanism):
    """Says nothing about what it sends."""

    name = "silent"


@dataclass(frozen=True)
class Mumbling(Mechanism):
    """Nothing behind the colon.

    Sends:
    """

    name = "mumbling"


@dataclass
class Melting(Mechanism):
    """Not frozen.

    Sends: nothing.
    """

    name = "melting"


@dataclass(frozen=True)
class Nameless(Mechanism):
    """No name.

    Sends: nothing.
    """


@dataclass(frozen=True)
class Shy(Mechanic):
    """Hides an option.

    Sends: nothing.
    """

    strength: float = 1.0

    def options(self):
        return {}


@dataclass(frozen=True)
class Unreadable(Mechanic):
    """An option that no text can hold.

    Sends: nothing.
    """

    layers: tuple[str, ...] = ("a",)


class InPlace(Mechanic):
    def correction(self, w, ctx):
        return {name: tensor.mul_(1.0001) for name, tensor in w.items()}


class SpoilsStart(Mechanic):
    def correction(self, w, ctx):
        for tensor in ctx.start.values():
            tensor.add_(0.001)
        return zeros_like(w)


class SpoilsContext(Mechanic):
    def client_end(self, ctx, result):
        ctx.client["mine"] = result.params
        return Finish(keep=dict(ctx.client))


class WrongShape(Mechanic):
    def correction(self, w, ctx):
        return {name: tensor.sum() for name, tensor in w.items()}


class WrongType(Mechanic):
    def correction(self, w, ctx):
        return {name: 0.1 * tensor.double() for name, tensor in w.items()}


class Forgetful(Mechanic):
    def correction(self, w, ctx):
        return {name: tensor for name, tensor in w.items() if name.endswith("weight")}


class TouchesBuffers(Mechanic):
    def correction(self, w, ctx):
        return {**zeros_like(w), "1.running_mean": torch.zeros(5)}


class ByPosition(Mechanic):
    def correction(self, w, ctx):
        return {name: a - b for (name, a), b in zip(w.items(), ctx.start.values(), strict=True)}


class FirstLayerOnly(Mechanic):
    """By position without an error: the first tensor is pulled, whichever it is."""

    def correction(self, w, ctx):
        first = next(iter(w))
        return {name: 0.1 * tensor if name == first else torch.zeros_like(tensor) for name, tensor in w.items()}


class Random(Mechanic):
    def correction(self, w, ctx):
        return {name: 1e-3 * torch.randn_like(tensor) for name, tensor in w.items()}


class Numbers(Mechanic):
    def prepare(self, ctx):
        return {"strength": 0.1}


class NestedNumbers(Mechanic):
    def server_init(self, params):
        return {"c": dict.fromkeys(params, 0.0)}


class Flat(Mechanic):
    def track_init(self, params):
        return [torch.zeros(3)]


class NotANumber(Mechanic):
    def correction(self, w, ctx):
        return {name: tensor / 0.0 for name, tensor in w.items()}


class Overshooting(Mechanic):
    def correction(self, w, ctx):
        return {name: 1e30 * (1 + tensor**2) for name, tensor in w.items()}


class Smuggler(Mechanic):
    def client_end(self, ctx, result):
        return Finish(upload={"model": result.params})


class SmugglesNumbers(Mechanic):
    def client_end(self, ctx, result):
        return Finish(numbers={"examples": float(ctx.examples)})


class Boasting(Mechanic):
    uploads = ("fisher",)


class NanNumber(Mechanic):
    uploads = ("share",)

    def client_end(self, ctx, result):
        return Finish(numbers={"share": float("nan")})


class FickleUpload(Mechanic):
    uploads = ("a", "b")

    def client_end(self, ctx, result):
        return Finish(upload={"a" if ctx.examples > 7 else "b": result.params})


class NeverKept(Scaffold):
    """The classic: the control variate is never persisted.

    Sends: its change.
    """

    def client_end(self, ctx, result):
        return Finish(upload=super().client_end(ctx, result).upload)


class KeptElsewhere(Scaffold):
    """The control variate is kept under another name.

    Sends: its change.
    """

    def client_end(self, ctx, result):
        finish = super().client_end(ctx, result)
        return Finish(upload=finish.upload, keep={"control": finish.keep["c"]})


class ForgetsAgain(Mechanic):
    """Relies in its second round on what it did not keep in its first."""

    def client_end(self, ctx, result):
        if ctx.client:
            return Finish(keep={"last": add(ctx.client["last"], ctx.client["before"])})
        return Finish(keep={"last": result.params})


class GrowingServer(Mechanic):
    def server_end(self, slots, mean_upload, fraction):
        return {**slots, f"slot{len(slots)}": {"x": torch.zeros(1)}}


class ChangingTrack(Mechanic):
    def track_init(self, params):
        return {"path": {}}

    def track(self, state, before, gradient, after, ctx):
        return {"path": {**state["path"], str(len(state["path"])): torch.zeros(1)}}


class Repelling(Mechanic):
    def pull(self):
        return -1.0


@dataclass(frozen=True)
class Diary(Mechanic):
    """Keeps a diary in itself.

    Sends: nothing.
    """

    diary: dict = field(default_factory=dict, compare=False)

    def options(self):
        return {}

    def client_end(self, ctx, result):
        self.diary[ctx.round] = result.params
        return Finish()


class SharedMemory(Mechanic):
    """What one client learns leaks to the next through the class."""

    seen: Sequence[dict] = ()

    def prepare(self, ctx):
        return {"last": SharedMemory.seen[-1]} if SharedMemory.seen else {"last": ctx.start}

    def correction(self, w, ctx):
        return scale(sub(w, ctx.constants["last"]), 0.1)

    def client_end(self, ctx, result):
        SharedMemory.seen = [result.params]
        return Finish()


class FollowsTheLeader(SharedMemory):
    """The same leak, wiped at the start of every run, so that only the order of the clients shows it."""

    def server_init(self, params):
        SharedMemory.seen = ()
        return {}


class Raising(Mechanic):
    def server_end(self, slots, mean_upload, fraction):
        return {"c": mean_upload["c"]}


BROKEN_MECHANISMS = [
    (Silent(), 'has no "Sends:" line in its docstring; add one'),
    (Mumbling(), '"Sends:" says nothing; write'),
    (Melting(), "no frozen dataclass; add @dataclass"),
    (Nameless(), "has no name; add a class attribute"),
    (Shy(2.0), "another part; print every option"),
    (Unreadable(("a", "b")), "cannot be read back"),
    (InPlace(), "correction changes what it is given"),
    (SpoilsStart(), "correction changes what it is given"),
    (SpoilsContext(), "client_end changes what it is given"),
    (WrongShape(), "keep the shapes and types of w"),
    (WrongType(), "keep the shapes and types of w"),
    (Forgetful(), r"leaves out \['0.bias', '1.bias', '3.bias'\]; return zeros"),
    (TouchesBuffers(), r"corrects \['1.running_mean'\], which is not trained"),
    (ByPosition(), "depends on the order of names"),
    (FirstLayerOnly(), "depends on the order of names in a tree; go by name"),
    (Random(), "gives two results for equal arguments"),
    (Numbers(), "Numbers.prepare returns .* return slots of named tensors"),
    (NestedNumbers(), "server_init returns .* return slots of named tensors"),
    (Flat(), "track_init returns .* return slots of named tensors"),
    (NotANumber(), r"client 0 .* is not finite in round 1"),
    (Overshooting(), "is not finite in round 1"),
    (Smuggler(), r"sends \['model'\]; name it in `uploads`"),
    (SmugglesNumbers(), r"sends \['examples'\]; name it in `uploads`"),
    (Boasting(), r"uploads names \['fisher'\], which client_end never sends"),
    (NanNumber(), "send finite ones"),
    (FickleUpload(), "keep the form"),
    (NeverKept(), r"does not keep \['c'\], which client_init began"),
    (KeptElsewhere(), r"does not keep \['c'\], which client_init began"),
    (ForgetsAgain(), "client_end raised KeyError: 'before'; ctx.client is what client_end kept last"),
    (GrowingServer(), "server_end changes the form of its slots"),
    (ChangingTrack(), "track changes the form of its state"),
    (Repelling(), r"pull\(\) is -1.0; return a strength >= 0"),
    (Diary(), "changed itself; clients that were not sampled must keep nothing"),
    (SharedMemory(), "gives another result when the same rounds run again"),
    (FollowsTheLeader(), "depends on the order of the clients of a cohort"),
    (Raising(), "server_end raised KeyError: 'c'"),
]


@pytest.mark.parametrize(("mechanism", "message"), BROKEN_MECHANISMS, ids=lambda case: type(case).__name__)
def test_broken_mechanisms_are_caught(mechanism, message):
    with pytest.raises(AssertionError, match=message):
        check_mechanism(mechanism)


def test_what_broken_mechanisms_are_made_of_is_right():
    check_mechanism(Mechanic())


# ---------------------------------------------------------------- broken aggregations


@dataclass(frozen=True)
class Collecting(Aggregator):
    """Sees all updates at once; itself right.

    Sends: the trained model.
    """

    name = "collecting"
    streaming = False

    def __init_subclass__(cls):
        documented(cls)


class FirstWins(Collecting):
    def combine(self, updates, weights):
        return updates[0].delta


class Unnormalised(Collecting):
    def weights(self, updates, answers=None):
        return [float(update.facts.examples) for update in updates]


class Shrinking(Collecting):
    """The 1/m of Kim et al.'s Algorithm 1."""

    def combine(self, updates, weights):
        return scale(weighted_sum((update.delta for update in updates), weights), 1.0 / len(updates))


class Negative(Collecting):
    def weights(self, updates, answers=None):
        largest = max(update.facts.examples for update in updates)
        raw = [4.0 if update.facts.examples == largest else -0.5 for update in updates]
        return [value / sum(raw) for value in raw]


class UnnormalisedStream(WeightedMean):
    """Relative weights where shares are wanted.

    Sends: the trained model.
    """

    def weights(self, updates, answers=None):
        return [self.raw_weight(update.facts) for update in updates]


class TooFewStream(WeightedMean):
    """One weight for all.

    Sends: the trained model.
    """

    def weights(self, updates, answers=None):
        return [1.0]


class NegativeStream(WeightedMean):
    """Small clients count against.

    Sends: the trained model.
    """

    def raw_weight(self, facts):
        return facts.examples - 15.0


class TooFew(Collecting):
    def weights(self, updates, answers=None):
        return [1.0]

    def combine(self, updates, weights):
        return weighted_sum((update.delta for update in updates), [1 / len(updates)] * len(updates))


class WritesInto(Collecting):
    def combine(self, updates, weights):
        total = updates[0].delta
        for update in updates[1:]:
            for name in total:
                total[name].add_(update.delta[name])
        return scale(total, 1 / len(updates))


class Doubles(Collecting):
    def combine(self, updates, weights):
        return {name: tensor.double() for name, tensor in super().combine(updates, weights).items()}


class Drops(Collecting):
    def combine(self, updates, weights):
        whole = super().combine(updates, weights)
        return {"layer.weight": whole["layer.weight"], "extra": whole["layer.bias"]}


class Zips(Collecting):
    def combine(self, updates, weights):
        whole = super().combine(updates, weights)
        first, second = whole.values()
        return {"layer.weight": first, "layer.bias": second}


class TreatsTheFirstNameApart(Collecting):
    """By position without an error: the first tensor by the median, whichever it is."""

    def combine(self, updates, weights):
        whole = super().combine(updates, weights)
        first = next(iter(updates[0].delta))
        return {**whole, first: torch.stack([update.delta[first] for update in updates]).median(0).values}


class Pushes(Collecting):
    """Adds a constant push to all."""

    def combine(self, updates, weights):
        whole = super().combine(updates, weights)
        length = sum(float(update.delta["layer.bias"].abs().sum()) for update in updates)
        return whole if length else {name: tensor + 0.1 for name, tensor in whole.items()}


class Greedy(Collecting):
    """Reads what no mechanism was asked to send."""

    def weights(self, updates, answers=None):
        raw = [update.facts.numbers["loss"] for update in updates]
        return [value / sum(raw) for value in raw]


class DividesByZero(Collecting):
    def combine(self, updates, weights):
        return scale(super().combine(updates, weights), float("nan"))


class Moody(Collecting):
    """Every second time another answer."""

    calls = 0

    def combine(self, updates, weights):
        Moody.calls += 1
        return scale(super().combine(updates, weights), 1.0 if Moody.calls < 4 else 1.01)


class Alone(Collecting):
    """Does not believe a single client."""

    def combine(self, updates, weights):
        return scale(super().combine(updates, weights), 0.5 if len(updates) == 1 else 1.0)


@dataclass(frozen=True)
class Disagreeing(Aggregator):
    """Streams by one weight and reports another.

    Sends: the trained model.
    """

    name = "disagreeing"

    def weights(self, updates, answers=None):
        return [1.0 / len(updates)] * len(updates)


class CountsHeads(WeightedMean):
    """Weighs by examples and divides by heads.

    Sends: the trained model.
    """

    def finish(self, total, facts):
        return scale(total, 1.0 / len(facts))


class Clipping(WeightedMean):
    """Cuts off what is large.

    Sends: the trained model.
    """

    def finish(self, total, facts):
        whole = super().finish(total, facts)
        return {name: tensor.clamp(-0.5, 0.5) for name, tensor in whole.items()}


class AsksStrangers(Collecting):
    def ask(self, updates, start, available, rng):
        return Probe([updates[0].delta], [updates[0].buffers], [[99]])


class AsksNobody(Collecting):
    def ask(self, updates, start, available, rng):
        return Probe([updates[0].delta], [updates[0].buffers], [[]])


@dataclass(frozen=True)
class Hushed(Aggregator):
    """No such line."""

    name = "hushed"


BROKEN_AGGREGATORS = [
    (FirstWins(), "depends on the order of the clients; treat all updates alike"),
    (Unnormalised(), "takes buffer .* out of the clients' range"),
    (Shrinking(), "equal updates do not give that very update"),
    (Negative(), "takes buffer .* out of the clients' range"),
    (UnnormalisedStream(), "weights sum to 165; divide them by their sum"),
    (TooFewStream(), "weights gives 1 for 6 clients; one for each"),
    (NegativeStream(), "weights gives -0.0.*; a weight is at least 0|out of the clients' range"),
    (TooFew(), "raised ValueError.*; give a weight per client"),
    (WritesInto(), "changes the updates it is given"),
    (Doubles(), "keep names, shapes and types of the deltas"),
    (Drops(), "raised KeyError: .*trees hold different tensors.* go by the names of the deltas"),
    (Zips(), "raised RuntimeError.* go by the names of the deltas"),
    (TreatsTheFirstNameApart(), "depends on the order of names"),
    (Pushes(), "when no client moved; combine the deltas alone"),
    (Greedy(), "raised KeyError: 'loss'; .* name in `needs` what a mechanism must upload"),
    (DividesByZero(), "makes nan or inf of finite updates"),
    (Moody(), "gives another result for the same updates"),
    (Alone(), "a cohort of one does not give its client's own update"),
    (Disagreeing(), "weights and raw_weight disagree"),
    (CountsHeads(), "equal updates do not give that very update"),
    (Clipping(), "equal updates do not give that very update"),
    (AsksStrangers(), r"asks clients \[99\]; ask only clients in `available`"),
    (AsksNobody(), "without evaluators; give every one both"),
    (Hushed(), 'has no "Sends:" line'),
]


@pytest.mark.parametrize(("aggregator", "message"), BROKEN_AGGREGATORS, ids=lambda case: type(case).__name__)
def test_broken_aggregations_are_caught(aggregator, message):
    with pytest.raises(AssertionError, match=message):
        check_aggregator(aggregator)


def test_what_broken_aggregations_are_made_of_is_right():
    check_aggregator(Collecting())
