"""The rules of a mechanism."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from fedkeep import bundles, rounds
from fedkeep.aggregation import WeightedMean
from fedkeep.local_opt import SGD
from fedkeep.losses import ce
from fedkeep.method import Finish, Mechanism, Memory, Method, Plan
from fedkeep.model import Model
from fedkeep.rng import stream, torch_seeded
from fedkeep.server_opt import ServerSGD
from fedkeep.testing.compare import check_part, form, one_backwards, require, same

COHORTS = ((0, 1), (1, 2), (0, 1, 2))  # client 3 is never sampled
LABELS = ((0, 1, 1, 0, 1, 0, 0), (0, 1, 2, 2, 1, 0, 2, 1), (2,), (1, 1, 0))
PLAN = Plan(SGD(lr=0.05), batch_size=3, epochs=2)


def check_mechanism(mechanism: Mechanism, plan: Plan = PLAN) -> None:
    """Raise AssertionError if a mechanism breaks a rule that runtimes, aggregations and other mechanisms rely on.

    Three rounds of a tiny model with batch norm; one client has two of three classes, one a single example, one is
    never sampled. Hooks must be pure functions of their arguments that go by name, keep names, shapes and types, send
    what `uploads` names, keep what `client_init` began, and make finite numbers. `plan` is for mechanisms that refuse
    the plain one (SGD, lr 0.05).

    >>> from fedkeep.mechanisms import Proximal
    >>> check_mechanism(Proximal(mu=0.1))
    """
    check_part(mechanism)
    who = type(mechanism).__name__
    pull = mechanism.pull()
    require(math.isfinite(pull) and pull >= 0, f"{who}.pull() is {pull}; return a strength >= 0, 0 if there is none")
    pristine = copy.deepcopy(mechanism)
    watched = watch(mechanism)
    states, memories = play(watched, plan)
    unsent = sorted(set(mechanism.uploads) - watched.sent)
    require(not unsent, f"{who}.uploads names {unsent}, which client_end never sends; send it or drop the name")
    forms = [form(state.slots[mechanism.name]) for state in states[1:]]
    stable = all(one == forms[0] for one in forms)
    require(stable, f"{who}.server_end changes the form of its slots: {forms}; keep it from the second broadcast on")
    unchanged = same(vars(mechanism), vars(pristine))
    require(unchanged, f"{who} changed itself; clients that were not sampled must keep nothing: keep state in slots")
    again = play(pristine, plan)
    require(
        same((states, memories), again),
        f"{who} gives another result when the same rounds run again, so it keeps something outside its slots; "
        "a client that was never sampled must keep nothing: keep state in slots",
    )
    turned, _ = play(mechanism, plan, turned=True)
    require(
        same(states[-1], turned[-1], tolerance=1e-4),
        f"{who} depends on the order of the clients of a cohort; let server_end use nothing but its arguments",
    )


def play(mechanism: Mechanism, plan: Plan, turned: bool = False) -> tuple[list[rounds.ServerState], dict[int, Memory]]:
    """Three rounds through the real code: all states, and what the clients keep at the end."""
    with torch_seeded(stream(0, "testing")):
        network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    method = Method(ce, WeightedMean(), ServerSGD(), (mechanism,))
    rounds.check(method, plan)
    trainer = rounds.Trainer.of(Model.of(network), method, plan)
    states = [rounds.begin(method, *trainer.model.initial())]
    memories: dict[int, Memory] = {}
    for number, cohort in enumerate(COHORTS, start=1):
        updates = []
        broadcast = rounds.broadcast_of(states[-1])
        for k in cohort[::-1] if turned else cohort:
            rng = stream(0, "client", number, k)
            outcome = rounds.client_round(trainer, broadcast, examples(k), memories.get(k), k, rng)
            require(
                outcome.update.facts.finite,
                f"{type(mechanism).__name__}: client {k} (labels {LABELS[k]}) is not finite in round {number}; "
                "look for a division by zero or a step that overshoots",
            )
            memories[k] = outcome.memory
            updates.append(outcome.update)
        states.append(rounds.server_round(method, states[-1], bundles.collect(method, updates), len(LABELS)))
    return states, memories


def examples(client: int) -> rounds.ClientData:
    """What a client of the suite holds."""
    y = torch.tensor(LABELS[client])
    noise = stream(0, "testing", client=client).normal(size=(len(y), 4))
    x = torch.from_numpy(noise).float() + nn.functional.one_hot(y, 4)
    return rounds.ClientData(x, y, torch.bincount(y, minlength=3))


class Watched(Mechanism):
    """A mechanism every hook of which is checked at every call."""

    def __init__(self, inner: Mechanism) -> None:
        self.inner = inner
        self.who = type(inner).__name__
        self.sent: set[str] = set()
        self.upload_form: Any = None

    def pure(self, hook: str, *args: Any) -> Any:
        """Call a hook; again; and with the names of each tree in another order: equal results, untouched arguments."""
        what, call = f"{self.who}.{hook}", getattr(self.inner, hook)
        given = copy.deepcopy(args)
        try:
            result = call(*args)
            kept = copy.deepcopy(result)
            again = call(*args)
        except Exception as error:
            hint = "ctx.client is what client_end kept last (at first client_init), ctx.server what server_end returned"
            raise AssertionError(f"{what} raised {type(error).__name__}: {error}; {hint}") from error
        require(
            same(args, given), f"{what} changes what it is given; make new tensors instead of writing into old ones"
        )
        require(same(again, kept), f"{what} gives two results for equal arguments; make it a pure function of them")
        for turned in one_backwards(args):
            try:
                equal = same(call(*turned), kept, tolerance=1e-5)
            except Exception as error:
                raise AssertionError(f"{what} depends on the order of names ({error}); go by name") from error
            require(equal, f"{what} depends on the order of names in a tree; go by name, not by position")
        return result

    def slots(self, hook: str, *args: Any) -> Any:
        """Call a hook that returns slots."""
        return self.only_tensors(hook, self.pure(hook, *args))

    def only_tensors(self, what: str, slots: Any) -> Any:
        trees = slots.values() if isinstance(slots, dict) else [None]
        good = all(isinstance(tree, dict) and all(isinstance(t, Tensor) for t in tree.values()) for tree in trees)
        require(
            good, f'{self.who}.{what} returns {slots}; return slots of named tensors, {{"slot": {{"name": tensor}}}}'
        )
        return slots

    def check(self, plan):
        self.inner.check(plan)

    def pull(self):
        return self.inner.pull()

    def server_init(self, params):
        return self.slots("server_init", params)

    def client_init(self, params):
        return self.slots("client_init", params)

    def prepare(self, ctx):
        return self.slots("prepare", ctx)

    def track_init(self, params):
        return self.slots("track_init", params)

    def server_end(self, slots, mean_upload, fraction):
        return self.slots("server_end", slots, mean_upload, fraction)

    def track(self, state, before, gradient, after, ctx):
        found = self.slots("track", state, before, gradient, after, ctx)
        require(form(found) == form(state), f"{self.who}.track changes the form of its state to {form(found)}; keep it")
        return found

    def correction(self, w, ctx):
        found = self.pure("correction", w, ctx)
        if found is None:
            return None
        what = f"{self.who}.correction"
        extra, missing = sorted(set(found) - set(w)), sorted(set(w) - set(found))
        require(not extra, f"{what} corrects {extra}, which is not trained (buffers never are); return the names of w")
        require(not missing, f"{what} leaves out {missing}; return zeros where nothing is to be corrected")
        require(form(found) == form(w), f"{what} returns {form(found)}; keep the shapes and types of w: {form(w)}")
        return found

    def client_end(self, ctx, result):
        finish: Finish = self.pure("client_end", ctx, result)
        what = f"{self.who}.client_end"
        self.only_tensors("client_end's upload", finish.upload)
        self.only_tensors("client_end's keep", finish.keep)
        sent = {*finish.upload, *finish.numbers}
        hidden = sorted(sent - set(self.inner.uploads))
        require(not hidden, f"{what} sends {hidden}; name it in `uploads`, so that all see what leaves the client")
        self.sent |= sent
        numbers = dict(finish.numbers)
        require(all(map(math.isfinite, numbers.values())), f"{what} sends the numbers {numbers}; send finite ones")
        now = form(finish.upload)
        self.upload_form = now if self.upload_form is None else self.upload_form
        require(now == self.upload_form, f"{what} uploads {now}, before it was {self.upload_form}; keep the form")
        begun, kept = form(self.inner.client_init(ctx.start)), form(finish.keep)
        lost = [slot for slot in begun if kept.get(slot) != begun[slot]]
        require(not lost, f"{what} does not keep {lost}, which client_init began; put it into Finish(keep=...)")
        return finish


def watch(mechanism: Mechanism) -> Watched:
    """The mechanism, watched, under its own name."""
    attributes = {"name": mechanism.name, "uploads": mechanism.uploads}
    return type(type(mechanism).__name__, (Watched,), attributes)(mechanism)
