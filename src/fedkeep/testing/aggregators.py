"""The rules of an aggregation."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedkeep import bundles, rounds
from fedkeep.losses import ce
from fedkeep.method import Aggregator, Answers, Facts, Method, Probe, Update
from fedkeep.rng import stream
from fedkeep.server_opt import ServerSGD
from fedkeep.testing.compare import backwards, check_part, form, require, same
from fedkeep.tree import Params, finite, norm, scale, zeros_like

CLIENTS = 9  # of which six take part
SHAPES = {"layer.weight": (3, 4), "layer.bias": (3,)}


def check_aggregator(aggregator: Aggregator) -> None:
    """Raise AssertionError if an aggregation breaks a rule that runtimes rely on.

    Permuting the clients changes nothing; weights sum to one; equal updates give that very update and updates of zero
    none; adding up in groups equals all at once; buffers stay in the clients' range; a client that is not finite is
    left out. What the aggregation `needs` is uploaded by every client.

    >>> from fedkeep.aggregation import FedNova
    >>> check_aggregator(FedNova())
    """
    check_part(aggregator)
    who = type(aggregator).__name__
    updates = cohort(aggregator.needs)
    untouched = copy.deepcopy(updates)
    result = aggregate(aggregator, updates)
    require(same(updates, untouched), f"{who} changes the updates it is given; make new tensors instead")
    _check_result(who, updates, result)
    _check_weights(aggregator, updates, result.weights)
    for order in ([5, 4, 3, 2, 1, 0], [2, 0, 5, 1, 4, 3]):
        expected = replace(result, weights=[result.weights[k] for k in order])
        equal = same(aggregate(aggregator, [updates[k] for k in order]), expected, 1e-4)
        require(equal, f"{who} depends on the order of the clients; treat all updates alike")
    equal = same(aggregate(aggregator, updates), result)
    require(equal, f"{who} gives another result for the same updates; let it keep no state of its own")
    equal = same(aggregate(aggregator, [backwards(update) for update in updates]), result, 1e-4)
    require(equal, f"{who} depends on the order of names in a tree; go by name, not by position")
    equal = same(aggregate(aggregator, updates, cuts=(0, 1, 4, 6)), result, 1e-4)
    require(equal, f"{who} depends on which clients are added up together; set streaming = False")
    _check_identities(aggregator, updates, result)


@dataclass(frozen=True)
class Aggregated:
    """What came out of one aggregation."""

    delta: Params
    buffers: Params
    weights: list[float]


def _check_result(who: str, updates: Sequence[Update], result: Aggregated) -> None:
    wanted, found = form(updates[0].delta), form(result.delta)
    require(found == wanted, f"{who} returns {found}; keep names, shapes and types of the deltas: {wanted}")
    require(finite(result.delta), f"{who} makes nan or inf of finite updates; look for a division by zero")
    for name, mean in result.buffers.items():
        stack = torch.stack([update.buffers[name] for update in updates]).double()
        inside = (mean >= stack.amin(0) - 1e-6) & (mean <= stack.amax(0) + 1e-6)
        require(bool(inside.all()), f"{who} takes buffer {name} out of the clients' range; let the weights be convex")


def _check_weights(aggregator: Aggregator, updates: Sequence[Update], weights: Sequence[float]) -> None:
    who = type(aggregator).__name__
    require(
        len(weights) == len(updates), f"{who}.weights gives {len(weights)} for {len(updates)} clients; one for each"
    )
    require(min(weights) >= 0, f"{who}.weights gives {min(weights)}; a weight is at least 0")
    total = sum(weights)
    require(abs(total - 1) < 1e-6, f"{who}.weights sum to {total:g}; divide them by their sum")
    if aggregator.streaming:
        raw = np.array([aggregator.raw_weight(update.facts) for update in updates])
        require(
            bool(np.allclose(raw / raw.sum(), weights)),
            f"{who}.weights and raw_weight disagree; a streaming aggregation goes by raw_weight, leave weights alone",
        )


def _check_identities(aggregator: Aggregator, updates: Sequence[Update], result: Aggregated) -> None:
    who, first = type(aggregator).__name__, updates[0]
    equal = [replace(u, delta=first.delta, facts=replace(u.facts, effort=2.0)) for u in updates]
    found = aggregate(aggregator, equal).delta
    require(same(found, first.delta, 1e-4), f"{who}: equal updates do not give that very update; do weights sum to 1?")
    found = aggregate(aggregator, updates[2:3]).delta
    require(same(found, updates[2].delta, 1e-4), f"{who}: a cohort of one does not give its client's own update")
    still = [replace(update, delta=zeros_like(update.delta)) for update in updates]
    moved = norm(aggregate(aggregator, still).delta)
    require(moved == 0, f"{who} moves the model by {moved:g} when no client moved; combine the deltas alone")
    facts = replace(first.facts, client=6, examples=1000, finite=False)
    lost = Update(facts, scale(first.delta, math.nan), scale(first.buffers, 1.0), first.uploads)
    found = aggregate(aggregator, [*updates[:3], lost, *updates[3:]])
    require(same(found, result, 1e-4), f"{who}: a client that is not finite still counts; use the updates given alone")


def cohort(needs: str | None) -> list[Update]:
    """Six clients around three directions, different in everything an aggregation may look at."""
    rng = stream(0, "testing")

    def draw(size: Sequence[int]) -> Tensor:
        return torch.from_numpy(rng.normal(size=size)).float()

    centres = [{name: 3 * draw(shape) for name, shape in SHAPES.items()} for _ in range(3)]
    updates = []
    for k in range(6):
        delta = {name: centre + 0.1 * draw(centre.shape) for name, centre in centres[k % 3].items()}
        buffers = {"norm.running_mean": draw((3,)), "norm.num_batches_tracked": torch.tensor(3 * k)}
        tensors = {name: draw(shape).square() + 0.1 for name, shape in SHAPES.items()}
        # a need is met as a number and as a tree, whichever the aggregation reads
        facts = Facts(k, 10 + 7 * k, 1 + k, 1.0 + k, {needs: float(k)} if needs else {})
        updates.append(Update(facts, delta, buffers, {"part": {needs: tensors}} if needs else {}))
    return updates


def aggregate(aggregator: Aggregator, updates: Sequence[Update], cuts: Sequence[int] = ()) -> Aggregated:
    """Aggregate by the real code, from a global model of zeros; `cuts` says where the cohort is cut into groups."""
    method = Method(ce, aggregator, ServerSGD())
    state = rounds.ServerState(zeros_like(updates[0].delta), updates[0].buffers, {}, {})
    groups = [updates[a:b] for a, b in pairwise(cuts or (0, len(updates)))]
    try:
        bundle = bundles.merge(method, [bundles.collect(method, group) for group in groups])
        probe = rounds.ask(method, state, bundle, range(CLIENTS), stream(0, "testing"))
        answers = _answers(type(aggregator).__name__, probe) if probe else None
        new = rounds.server_round(method, state, bundle, CLIENTS, answers)
        weights = aggregator.weights([update for update in updates if update.facts.finite], answers)
    except AssertionError:
        raise
    except Exception as error:
        hint = "give a weight per client, go by the names of the deltas, name in `needs` what a mechanism must upload"
        raise AssertionError(f"{type(aggregator).__name__} raised {type(error).__name__}: {error}; {hint}") from error
    return Aggregated(new.params, new.buffers, list(weights))


def _answers(who: str, probe: Probe) -> Answers:
    """What clients say that all judge alike: the score of a candidate depends on the candidate alone."""
    asked = {client for group in probe.evaluators for client in group}
    strangers = sorted(asked - set(range(CLIENTS)))
    require(not strangers, f"{who}.ask asks clients {strangers}; ask only clients in `available`")
    complete = len(probe.deltas) == len(probe.buffers) == len(probe.evaluators) and all(map(len, probe.evaluators))
    require(complete, f"{who}.ask leaves a candidate without buffers or without evaluators; give every one both")
    scores = [1 / (1 + norm(delta)) for delta in probe.deltas]
    return Answers(probe, [[score] * len(group) for score, group in zip(scores, probe.evaluators, strict=True)])
