"""Updates of a cohort, added up.

Sums over clients are taken pair by pair along a fixed tree (`merge`), so that the result does not depend on how many
workers there are or who finishes first. Where the changes of clients lie in the span of their examples, a few
neighbours are added up one after another first: each is then one product into the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from fedkeep.local.room import Room, weight_of
from fedkeep.method import Aggregator, Facts, Method, Update
from fedkeep.model import weigh_buffers
from fedkeep.tree import Params, Slots, add, add_into, scale_in_place

SHARE = 1.5  # a block is at most one part in SHARE * workers of what is left: large first, small in the end
TOGETHER = 4  # neighbours that are added up one after another, at most
SHARES = 16  # and so many times more must be in the cohort, or workers would wait for each other


@dataclass(frozen=True)
class Bundle:
    """Updates of some clients, added up as far as the aggregation allows."""

    facts: tuple[Facts, ...]
    total: Params = field(default_factory=dict)  # streaming: the sum of contributions
    buffers: Params = field(default_factory=dict)  # streaming: the weighted sum of buffers
    uploads: Mapping[str, Slots] = field(default_factory=dict)  # streaming: the sum of uploads
    updates: tuple[Update, ...] = ()  # not streaming: the updates themselves
    uploads_ours: bool = False  # nobody else has `uploads`: sums may be written into them, as into `total`, `buffers`
    typical: Params = field(default_factory=dict)  # whose `total` is turned, with a row for this typical example

    @property
    def change(self) -> Params:
        """The sum of contributions, by the names and shapes of the model's weights."""
        return {**self.total, **{name: weight_of(self.total[name], one) for name, one in self.typical.items()}}

    @property
    def usable(self) -> tuple[Facts, ...]:
        return tuple(fact for fact in self.facts if fact.finite)


def together(count: int) -> int:
    """How many neighbours of a cohort are added up one after another, where that pays; a power of two.

    >>> [together(count) for count in (10, 40, 100, 1000)]
    [1, 2, 4, 4]
    """
    return min(TOGETHER, 1 << max(0, (count // SHARES).bit_length() - 1))


def groups(count: int, workers: int = 1, least: int = 1) -> list[range]:
    """Which neighbours of a cohort one worker takes: blocks of a power of two, each as many as its share.

    Few blocks, so that few sums travel; small ones last, so that no worker waits long for another. Sums are taken
    pair by pair (`merge`), so that the size of the blocks does not change the result. No block is smaller than `least`,
    but for a rest; where that is more than one, clients are quickly done: each worker then takes a block of each size.

    >>> groups(5, workers=1)
    [range(0, 2), range(2, 4), range(4, 5)]
    >>> [len(block) for block in groups(20, workers=2)]
    [4, 4, 4, 2, 2, 1, 1, 1, 1]
    >>> [len(block) for block in groups(50, workers=2, least=4)]
    [16, 16, 8, 8, 2]
    """
    blocks, first = [], 0
    while first < count:
        share = int((count - first) / ((SHARE if least == 1 else 1) * workers))
        size = max(least, 1 << max(0, share.bit_length() - 1))  # never more than the one before: begins at a multiple
        for _ in range(1 if least == 1 else workers):
            if first < count:
                blocks.append(range(first, min(first + size, count)))
                first += size
    return blocks


def collect(
    method: Method, updates: Iterable[Update], consume: bool = False, room: Room | None = None, together: int = 1
) -> Bundle:
    """Add up the updates of one group, in order, leaving out what is not finite.

    `consume`: nobody needs the updates afterwards, so that sums may be made in their place.
    `room`: where changes lie that are not written out; so many neighbours are then added up one after another.
    """
    if room is None:
        return merge(method, (_single(method, update, consume) for update in updates))
    left = iter(updates)
    return merge(method, (_in_turn(method, room, chain([one], islice(left, together - 1))) for one in left))


def _in_turn(method: Method, room: Room, updates: Iterator[Update]) -> Bundle:
    """Neighbours added up one after another, into one sum."""
    aggregate = method.aggregate
    layer, others = room.empty()
    total = {room.name: layer, **room.named(others)}
    facts: list[Facts] = []
    rest = Bundle(())  # buffers and uploads
    for update in updates:
        facts.append(update.facts)
        if not update.facts.finite:
            continue
        if update.spanned is not None:
            update.spanned.add_to(layer, others, aggregate.factor(update.facts))
        else:
            change = aggregate.contribution(update)
            add_into({**total, room.name: layer[:-1]}, {**change, room.name: change[room.name].t()})
        if update.buffers or update.uploads:
            buffers = weigh_buffers(update.buffers, aggregate.raw_weight(update.facts))
            rest = _pair(rest, Bundle((update.facts,), {}, buffers, update.uploads))
    if not any(fact.finite for fact in facts):
        return Bundle(tuple(facts))
    return replace(rest, facts=tuple(facts), total=total, typical={room.name: room.typical})


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
    uploads = add_slots(into.uploads, other.uploads, add_into if into.uploads_ours else add)
    return Bundle(facts, total, buffers, uploads, a.updates + b.updates, uploads_ours=True, typical=a.typical)


def add_slots(
    a: Mapping[str, Slots], b: Mapping[str, Slots], plus: Callable[[Params, Params], Params] = add
) -> dict[str, Slots]:
    """The slots of two, added up by name."""
    return {name: {slot: plus(tree, b[name][slot]) for slot, tree in slots.items()} for name, slots in a.items()}
