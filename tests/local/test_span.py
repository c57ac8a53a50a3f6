"""Training in the span of a client's examples, against eager training of the weights themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedkeep import grammar
from fedkeep.local import span as spans
from fedkeep.local.loop import passes, train
from fedkeep.local.room import weight_of
from fedkeep.local.span import LARGEST, MOST, Setting
from fedkeep.local.step import Constants, EagerStep, StepRecipe
from fedkeep.local.traced import TracedStep, passes_of
from fedkeep.local_opt import SGD, Adam
from fedkeep.method import LocalContext, Plan
from fedkeep.model import Model
from fedkeep.models.mlp import MLP

SHAPE, CLASSES, HIDDEN = (1, 10, 12), 4, 40
INPUTS = 120


@pytest.fixture(autouse=True)
def layers_of_any_size(monkeypatch):
    monkeypatch.setattr(spans, "LEAST", 0)


def drawn(count, seed=0, blank=0.5):
    """Images with blank pixels, and labels."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, *SHAPE)).astype("float32")
    x[draw.random(x.shape) < blank] = -0.5
    return torch.from_numpy(x), torch.from_numpy(draw.integers(0, CLASSES, count))


class Federation:
    """Clients of some sizes that share a pool of examples, trained by steps of a method."""

    def __init__(self, sizes, method="fedavg", optimizer=None, module=None, batch_size=4, setting=None, **budget):
        torch.manual_seed(3)
        self.sizes, self.plan = sizes, Plan(optimizer or SGD(0.1), batch_size=batch_size, **budget)
        self.pool = drawn(max(sizes) + 40)
        parsed, model = grammar.parse(method), Model.of(module or MLP(SHAPE, CLASSES, HIDDEN))
        self.recipe = StepRecipe(model, parsed.loss, parsed.mechanisms, self.plan.optimizer)
        self.start, _ = model.initial()
        draw = np.random.default_rng(1)
        self.rows = [draw.permutation(len(self.pool[1]))[:size] for size in sizes]
        self.orders = [list(passes(size, self.plan, np.random.default_rng(k))) for k, size in enumerate(sizes)]
        self.step = TracedStep(self.recipe, compile=True, setting=setting or Setting.of(self.pool[0], sizes))
        counts = [torch.bincount(self.pool[1][rows], minlength=CLASSES) for rows in self.rows]
        slots = {m.name: {} for m in parsed.mechanisms}
        self.constants = [Constants(self.start, parsed.loss.adjust(count), slots) for count in counts]

    def state(self):
        return self.recipe.initial(self.start, {})

    def line(self):
        x, y = self.pool
        for size in {self.plan.batch_size, *(s % self.plan.batch_size for s in self.sizes)} - {0}:
            self.step.program(self.state, self.constants[0], x[:size], y[:size])
        rows = np.concatenate([rows[orders[0]] for rows, orders in zip(self.rows, self.orders, strict=True)])
        size, steps = self.plan.batch_size, {}
        for passes_of_one in self.orders:
            lengths = [len(order) for order in passes_of_one]
            found = self.step.span_steps(self.state, self.constants[0], self.pool, lengths, size)
            assert found and self.step.room is not None
            steps.update(found)
        work = passes_of(steps, self.constants, self.pool, rows, self.orders, size)
        return self.step.room.line_up(self.step.room.start(self.start), work)

    def eager(self, client):
        """The client's weights, trained step by step."""
        x, y = (tensor[self.rows[client]] for tensor in self.pool)
        step, orders = EagerStep(self.recipe), self.orders[client]
        return train(step, self.state(), x, y, self.constants[client], orders, self.plan.batch_size).w


def assert_close(found, wanted, tolerance=2e-5):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=tolerance)


BUDGETS = [{"epochs": 1}, {"epochs": 3}, {"steps": 2}, {"steps": 7}]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("loss", ["ce", "tce", "wsm", "fedrs(alpha=0.5)", "fedlc(tau=1)"])
def test_models_are_those_of_eager_training(loss, budget):
    people = Federation([11, 8, 3, 12], f"fedavg+{loss}", **budget)
    line = people.line()
    for client in (2, 0, 3, 1):
        trained = line.train(client)
        assert trained.finite
        assert_close(trained.params(), people.eager(client))


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_sums_are_those_of_the_models(budget):
    people = Federation([11, 8, 3, 12, 9], **budget)
    line, factors = people.line(), [0.5, 2.0, 1.0]
    room = people.step.room
    sums = room.empty()
    assert line.train_and_add(range(1, 4), factors, sums)
    found = {room.name: weight_of(sums[0], room.typical), **room.named(sums[1])}
    models = [people.eager(client) for client in (1, 2, 3)]
    for name, before in people.start.items():
        wanted = sum(factor * (model[name] - before).double() for factor, model in zip(factors, models, strict=True))
        torch.testing.assert_close(found[name].double(), wanted, rtol=1e-3, atol=5e-5)


def test_one_by_one_or_in_one_go_is_the_same_to_the_bit():
    people = Federation([11, 8, 3, 12, 9])
    line, room = people.line(), people.step.room
    together, alone = room.empty(), room.empty()
    assert line.train_and_add(range(5), [1.0, 2.0, 3.0, 4.0, 5.0], together)
    for client in range(5):
        line.train(client).add_to(*alone, client + 1.0)
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_a_client_does_not_see_who_was_trained_before():
    people = Federation([11, 8, 12], epochs=2)
    line = people.line()
    first = line.train(1).params()
    line.train(2), line.train(0)
    assert all(torch.equal(first[name], again) for name, again in line.train(1).params().items())


@pytest.mark.parametrize("typical", ["zeros", "an example", "far away"])
def test_which_example_is_typical_does_not_matter(typical):
    one = {
        "zeros": torch.zeros(INPUTS),
        "an example": drawn(1, seed=9)[0].flatten(),
        "far away": torch.full((INPUTS,), 3.0),
    }
    people = Federation([11, 8], setting=Setting(one[typical], 11), epochs=2)
    line = people.line()
    for client in range(2):
        assert_close(line.train(client).params(), people.eager(client))


def test_a_model_without_other_weights_can_be_trained():
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(INPUTS, CLASSES, bias=False)

        def forward(self, x):
            return self.layer(x.flatten(1))

    people = Federation([1, 2], module=Linear(), epochs=2)
    line = people.line()
    for client in range(2):
        assert_close(line.train(client).params(), people.eager(client))


@pytest.mark.parametrize(
    ("method", "optimizer", "possible"),
    [
        ("fedavg", SGD(0.1), True),
        ("fednova+wsm", SGD(0.1), True),
        ("fedwavg(alpha=0.3)", SGD(0.1), True),  # looks at models, but leaves their training alone
        ("fedprox(mu=0.1)", SGD(0.1), False),
        ("scaffold", SGD(0.1), False),
        ("fedavg+ewc(lam=10)", SGD(0.1), False),
        ("fedavg+rwalk(lam=0.1)", SGD(0.1), False),
        ("fedavg", SGD(0.1, momentum=0.9), False),
        ("fedavg", SGD(0.1, weight_decay=0.1), False),
        ("fedavg", Adam(0.01), False),
    ],
)
def test_only_what_moves_along_examples_is_trained_in_their_span(method, optimizer, possible):
    people = Federation([8, 8], method, optimizer)
    x, y = people.pool
    mechanisms = {m.name: prepared(m, people.start) for m in people.recipe.mechanisms}
    people.step.program(people.state, replace(people.constants[0], mechanisms=mechanisms), x[:4], y[:4])
    (program,) = people.step.programs.values()
    assert program is not None and program.compiled is not None
    assert (program.span is not None) == (people.step.room is not None) == possible


def prepared(mechanism, start):
    """What a mechanism reads during local steps, in a round that is not the first."""
    ones = {name: torch.ones_like(tensor) for name, tensor in start.items()}
    server = {"importance": ones} if mechanism.name == "ewc" else mechanism.server_init(start)
    return mechanism.prepare(LocalContext(start, server, mechanism.client_init(start), 8, 2, 0.1, 2))


def test_a_convolution_is_not_trained_in_the_span():
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(160, CLASSES)

        def forward(self, x):
            return self.last(self.first(x).flatten(1))

    people = Federation([8], module=Convolution())
    x, y = people.pool
    people.step.program(people.state, people.constants[0], x[:4], y[:4])
    assert people.step.room is None


def test_it_has_to_pay(monkeypatch):
    people = Federation([12])
    line = people.line()
    (step,) = [program.span for program in people.step.programs.values()]
    assert line is not None and step.layer.most == 12
    assert step.pays(12, 24) and not step.pays(13, 26)  # there is no room for more
    few = step.layer
    wide = spans.SpanStep(type(few)(784, 200, 200), 0, step.compiled)
    assert wide.pays(60, 60) and not wide.pays(200, 200) and wide.pays(200, 2000)
    monkeypatch.setattr(spans, "LEAST", INPUTS * HIDDEN + 1)
    small = Federation([12])
    small.step.program(small.state, small.constants[0], small.pool[0][:4], small.pool[1][:4])
    assert small.step.room is None


def test_a_client_that_diverges_is_seen():
    people = Federation([11, 8, 12], optimizer=SGD(1e20), epochs=1)
    line, room = people.line(), people.step.room
    assert not line.train(0).finite
    assert not line.train_and_add(range(3), [1.0] * 3, room.empty())


def test_the_typical_example_is_that_of_most():
    x, _ = drawn(300, blank=0.8)
    setting = Setting.of(x, [20, 7])
    assert setting is not None and setting.most == 20
    assert torch.equal(setting.typical, torch.full((INPUTS,), -0.5))


def test_large_clients_and_odd_examples_have_no_setting():
    x, _ = drawn(10)
    assert Setting.of(x, [4]) is not None
    assert Setting.of(x, [4, MOST + 1]) is None and Setting.of(x, []) is None
    assert Setting.of(x.double(), [4]) is None and Setting.of(x.transpose(2, 3), [4]) is None
    for odd in (torch.nan, torch.inf, -2 * LARGEST):
        y = x.clone()
        y[3, 0, 2, 2] = odd
        assert Setting.of(y, [4]) is None
