"""The recorded step, replayed and compiled, against its eager twin."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedkeep import grammar, models
from fedkeep.bundles import collect
from fedkeep.local.step import EagerStep, StepRecipe
from fedkeep.local.traced import TracedStep, worth_recording
from fedkeep.local_opt import SGD, Adam
from fedkeep.method import Plan
from fedkeep.model import Model
from fedkeep.rng import stream
from fedkeep.rounds import ClientData, Trainer, begin, broadcast_of, client_round, server_round

BASES = [
    "fedavg",
    "fedprox(mu=0.1)",
    "scaffold",
    "fednova",
    "fedwavg(alpha=0.3)",
    "importance(lam=10)",
    "fedavg+ewc(lam=1000)",
    "fedavg+rwalk(lam=0.1)",
]
LOSSES = ["ce", "tce", "wsm", "fedrs(alpha=0.5)", "fedlc(tau=1)"]


def federate(
    method_name, module, optimizer, step, rounds=3, clients=3, examples=(11, 8, 5), shape=(1, 8, 8), batch=4, last=False
):
    """A tiny federation with ragged clients; returns the server state and who was trained how."""
    model = Model.of(module)
    method = grammar.parse(method_name)
    trainer = Trainer.of(model, method, Plan(optimizer, batch_size=batch, epochs=2), step, channels_last=last)
    state = begin(method, *model.initial())
    memories: dict[int, dict] = {}
    for number in range(rounds):
        updates = []
        for client in range(clients):
            draw = np.random.default_rng(client)
            x = torch.from_numpy(draw.normal(size=(examples[client], *shape)).astype("float32"))
            y = torch.from_numpy(draw.integers(0, 4, size=examples[client]))
            data = ClientData(x, y, torch.bincount(y, minlength=5))
            rng = stream(0, "client", number, client)
            outcome = client_round(trainer, broadcast_of(state), data, memories.get(client), client, rng)
            memories[client] = outcome.memory
            updates.append(outcome.update)
        state = server_round(method, state, collect(method, updates), clients)
    return state, trainer


def traced(recipe: StepRecipe) -> TracedStep:
    return TracedStep(recipe)


def compiled(recipe: StepRecipe) -> TracedStep:
    return TracedStep(recipe, compile=True)


def all_compiled(step: TracedStep) -> bool:
    """Whether every recorded step has become machine code that gives the eager step's weights."""
    return not step.broken and all(program and program.compiled for program in step.programs.values())


def assert_close(a, b, tolerance=1e-5):
    for name, tensor in a.params.items():
        torch.testing.assert_close(tensor, b.params[name], rtol=1e-4, atol=tolerance)
    for name, tensor in a.buffers.items():
        torch.testing.assert_close(tensor, b.buffers[name], rtol=1e-4, atol=tolerance)


def build(name: str, shape=(1, 8, 8), norm="batch") -> nn.Module:
    torch.manual_seed(0)
    return models.build(name, shape, 5, norm)


@pytest.mark.parametrize(("base", "loss"), list(itertools.product(BASES, LOSSES)))
def test_traced_is_eager_for_every_method(base, loss):
    name = f"{base}+{loss}"
    eager, _ = federate(name, build("mlp"), SGD(0.05), EagerStep)
    fast, trainer = federate(name, build("mlp"), SGD(0.05), traced)
    assert not trainer.step.broken and trainer.step.programs
    assert_close(eager, fast)


@pytest.mark.parametrize(("base", "loss"), list(itertools.product(BASES, LOSSES)))
def test_compiled_is_eager_for_every_method(base, loss):
    name, options = f"{base}+{loss}", {"rounds": 2, "clients": 2, "examples": (11, 8)}
    eager, _ = federate(name, build("mlp"), SGD(0.05), EagerStep, **options)
    fast, trainer = federate(name, build("mlp"), SGD(0.05), compiled, **options)
    assert trainer.step.programs and all_compiled(trainer.step)
    assert_close(eager, fast)


@pytest.mark.parametrize("optimizer", [SGD(0.05), SGD(0.05, 0.9), SGD(0.05, 0.9, 0.01), SGD(0.05, 0.0, 0.1)])
@pytest.mark.parametrize(
    "base", ["fedavg", "fedprox(mu=0.1)", "scaffold", "fedavg+ewc(lam=10)", "fedavg+rwalk(lam=0.1)"]
)
def test_traced_is_eager_for_every_optimiser(base, optimizer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, _ = federate(base, build("mlp"), optimizer, EagerStep)
        fast, trainer = federate(base, build("mlp"), optimizer, traced)
        fastest, compiling = federate(base, build("mlp"), optimizer, compiled)
    assert not trainer.step.broken and all_compiled(compiling.step)
    assert_close(eager, fast)
    assert_close(eager, fastest)


def test_traced_is_eager_for_adam():
    # Adam makes a whole step of a gradient that is all rounding: a large eps keeps that out of the comparison
    optimizer = Adam(0.01, eps=1e-4)
    eager, _ = federate("fedavg", build("mlp"), optimizer, EagerStep)
    fast, trainer = federate("fedavg", build("mlp"), optimizer, traced)
    assert not trainer.step.broken
    assert_close(eager, fast, tolerance=1e-4)
    fastest, trainer = federate("fedavg", build("mlp"), optimizer, compiled)
    assert all_compiled(trainer.step)
    assert_close(eager, fastest, tolerance=1e-4)


CASES = [
    ("cnn", (1, 8, 8), "batch"),
    ("cnn2", (1, 16, 16), "batch"),
    ("lenet", (1, 28, 28), "batch"),
    ("resnet-shallow", (1, 8, 8), "group"),
    ("resnet18", (1, 8, 8), "group"),
]


@pytest.mark.parametrize(("name", "shape", "norm"), CASES)
@pytest.mark.parametrize("last", [False, True])
def test_traced_is_eager_for_every_model(name, shape, norm, last):
    options = {"rounds": 1, "clients": 1, "examples": (6,), "shape": shape}
    eager, _ = federate("fedavg+wsm", build(name, shape, norm), SGD(0.01), EagerStep, **options)
    fast, trainer = federate("fedavg+wsm", build(name, shape, norm), SGD(0.01), traced, last=last, **options)
    assert not trainer.step.broken
    assert_close(eager, fast, tolerance=1e-4)


@pytest.mark.parametrize("name", ["cnn", "cnn2", "lenet"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold+wsm", "fedprox(mu=0.1)+tce", "importance(lam=10)"])
def test_compiled_is_eager_for_images_with_their_channels_last(name, method):
    options = {"rounds": 2, "clients": 2, "examples": (4, 7), "shape": (3, 28, 28)}
    eager, _ = federate(method, build(name, (3, 28, 28)), SGD(0.01, 0.0, 1e-3), EagerStep, **options)
    fast, trainer = federate(method, build(name, (3, 28, 28)), SGD(0.01, 0.0, 1e-3), compiled, last=True, **options)
    assert all_compiled(trainer.step)
    assert_close(eager, fast, tolerance=1e-4)


@pytest.mark.parametrize(("name", "norm"), [("resnet-shallow", "batch"), ("cnn", "batch")])
def test_a_step_without_kernels_for_all_of_it_is_replayed(name, norm):
    options = {"rounds": 1, "clients": 1, "examples": (4,)}
    replayed, _ = federate("fedavg", build(name, norm=norm), SGD(0.01), traced, **options)
    fast, trainer = federate("fedavg", build(name, norm=norm), SGD(0.01), compiled, **options)  # channels first
    assert not trainer.step.broken and not any(program.compiled for program in trainer.step.programs.values())
    assert_close(replayed, fast, tolerance=0)


@pytest.mark.parametrize("name", ["resnet-shallow", "densenet121"])
def test_traced_is_eager_with_batch_norm_in_training_mode(name):
    # one step: batch norm on a map of one pixel magnifies rounding from step to step
    options = {"rounds": 1, "clients": 1, "examples": (4,), "shape": (1, 8, 8)}
    recipe_plan = SGD(0.01)
    eager, _ = federate("fedavg", build(name), recipe_plan, EagerStep, **options)
    fast, trainer = federate("fedavg", build(name), recipe_plan, traced, **options)
    assert not trainer.step.broken
    for key, buffer in eager.buffers.items():
        torch.testing.assert_close(buffer, fast.buffers[key], rtol=1e-3, atol=1e-4)
    moved = [(fast.params[k] - v).abs().max().item() for k, v in eager.params.items()]
    assert max(moved) < 2e-3


class Halves(nn.Module):
    """Looks at each example as two, or flat and as an image too: no one shape can be given to it beforehand."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.part, self.whole, self.again = nn.Linear(32, 5), nn.Linear(64, 5), again

    def forward(self, x):
        halves = self.part(x.view(-1, 32)).view(-1, 2, 5).sum(1)
        return self.whole(x.flatten(1)) + x.mean((2, 3)) if self.again else halves


@pytest.mark.parametrize("again", [False, True])
def test_examples_that_a_step_reshapes_in_its_own_way(again):
    torch.manual_seed(0)
    module = Halves(again)
    eager, _ = federate("fedavg", module, SGD(0.05), EagerStep)
    for step in (traced, compiled):
        fast, trainer = federate("fedavg", module, SGD(0.05), step)
        assert not trainer.step.broken
        assert_close(eager, fast)


def test_a_flat_model_is_given_flat_examples_once_a_pass():
    _, trainer = federate("fedavg", build("mlp"), SGD(0.05), traced)
    for program in trainer.step.programs.values():
        assert program.examples(torch.zeros(8, 1, 8, 8)).shape == (8, 64)
        assert "view" not in program.step.__self__.code and "reshape" not in program.step.__self__.code


class Branches(nn.Module):
    """A model whose path depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(64, 5)

    def forward(self, x):
        x = x.flatten(1)
        return self.classifier(x if x.sum() > 0 else -x)


class Counts(nn.Module):
    """A model that behaves otherwise after its first call: a recording of the first would be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(64, 5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.classifier(x.flatten(1)) * (1.0 if self.calls > 1 else 3.0)


@pytest.mark.parametrize("kind", [Branches, Counts])
def test_what_cannot_be_traced_runs_eagerly_and_says_so_once(kind):
    torch.manual_seed(0)
    eager, _ = federate("fedavg", kind(), SGD(0.05), EagerStep)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="cannot be traced") as caught:
        fast, trainer = federate("fedavg", kind(), SGD(0.05), traced)
    assert len(caught) == 1 and trainer.step.broken
    if kind is Branches:
        assert_close(eager, fast, tolerance=0)


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(64, 5)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.classifier(self.drop(x.flatten(1)))


def test_dropout_is_keyed_and_the_same_traced_and_eager():
    results = []
    for step in (EagerStep, EagerStep, traced, compiled):
        torch.manual_seed(0)
        results.append(federate("fedavg", Dropout(), SGD(0.05), step)[0])
    assert_close(results[0], results[1], tolerance=0)
    assert_close(results[0], results[2])
    assert_close(results[0], results[3])


def test_frozen_layers_are_traced_as_constants():
    def run(step):
        model = Model.of(build("mlp"), ("classifier",))
        method = grammar.parse("scaffold+wsm")
        trainer = Trainer.of(model, method, Plan(SGD(0.1), batch_size=4), step)
        state = begin(method, *model.initial())
        y = torch.arange(8) % 4
        data = ClientData(
            torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1)), y, torch.bincount(y, minlength=5)
        )
        return client_round(trainer, broadcast_of(state), data, None, 0, stream(0, "client")).update.delta

    a = run(EagerStep)
    for b in (run(traced), run(compiled)):
        assert a.keys() == b.keys() and not any("classifier" in name for name in a)
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)


def test_only_the_sizes_worth_it_are_recorded():
    sizes = worth_recording([11, 8, 5], batch_size=4)
    assert sizes == {4, 3, 1}
    _, trainer = federate("fedavg", build("mlp"), SGD(0.05), lambda recipe: TracedStep(recipe, frozenset({4})))
    assert {key[0][0] for key in trainer.step.programs} == {4}


@pytest.mark.parametrize("step", [traced, compiled])
def test_the_start_is_never_written_to(step):
    model = Model.of(build("mlp"))
    method = grammar.parse("fedavg")
    trainer = Trainer.of(model, method, Plan(SGD(0.5), batch_size=4), step)
    state = begin(method, *model.initial())
    kept = {name: tensor.clone() for name, tensor in state.params.items()}
    y = torch.arange(8) % 4
    data = ClientData(torch.randn(8, 1, 8, 8), y, torch.bincount(y, minlength=5))
    client_round(trainer, broadcast_of(state), data, None, 0, stream(0, "client"))
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.params.items())
