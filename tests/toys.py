"""Tiny federations for tests, run by the real `fedkeep.rounds`: clients with quadratic losses, small networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedkeep import bundles, rounds
from fedkeep.grammar import parse
from fedkeep.local_opt import SGD
from fedkeep.method import Facts, Loss, Memory, Method, Plan, Update
from fedkeep.model import Model
from fedkeep.rng import stream

torch.set_num_threads(1)


class Bowl(nn.Module):
    """Residuals root * (w - centre); an example is the row (roots, centres)."""

    def __init__(self, *start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        root, centre = x.chunk(2, dim=1)
        return root * (self.w - centre)


@dataclass(frozen=True)
class HalfSquare(Loss):
    """Half the squared residuals: with `Bowl` a client's loss is sum_j curvature_j / 2 (w_j - centre_j)^2.

    Sends: nothing.
    """

    name = "half-square"

    def value(self, logits, labels, adjustment):
        return 0.5 * logits.square().sum(1).mean()


@dataclass(frozen=True)
class Sum(Loss):
    """The sum of the logits: with `Slope` a client's gradient is constant.

    Sends: nothing.
    """

    name = "sum"

    def value(self, logits, labels, adjustment):
        return logits.sum(1).mean()


class Slope(nn.Module):
    """x * w, so that under `Sum` the gradient is the mean row of x."""

    def __init__(self, *start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class Network(nn.Module):
    """One hidden ReLU layer, with the names that `reference.mlp` expects."""

    def __init__(self, inputs: int = 4, hidden: int = 5, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        generator = np.random.default_rng(seed)
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, classes)
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.from_numpy(generator.normal(size=parameter.shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.relu(self.hidden(x)))


class Normed(nn.Module):
    """A network with batch norm in float64."""

    def __init__(self, inputs: int = 4, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        generator = np.random.default_rng(seed)
        self.hidden = nn.Linear(inputs, 6)
        self.norm = nn.BatchNorm1d(6)
        self.classifier = nn.Linear(6, classes)
        self.double()
        with torch.no_grad():
            for parameter in (*self.hidden.parameters(), *self.classifier.parameters()):
                parameter.copy_(torch.from_numpy(generator.normal(size=parameter.shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.relu(self.norm(self.hidden(x))))


def bowl(curvature: Sequence[float], centre: Sequence[float], examples: int = 1) -> rounds.ClientData:
    """A client of `Bowl`: every example is the same, so every batch has the client's whole gradient."""
    row = torch.cat([torch.tensor(curvature, dtype=torch.float64).sqrt(), torch.tensor(centre, dtype=torch.float64)])
    return constant(row, examples)


def constant(row: Tensor, examples: int) -> rounds.ClientData:
    """A client that holds the same row `examples` times."""
    y = torch.zeros(examples, dtype=torch.int64)
    return rounds.ClientData(row.repeat(examples, 1), y, torch.bincount(y, minlength=2))


def blobs(examples: int, labels: Sequence[int], seed: int = 0, inputs: int = 4, classes: int = 3) -> rounds.ClientData:
    """A client whose labels come from `labels`, with inputs that hint at them; float64."""
    generator = np.random.default_rng(seed)
    y = torch.from_numpy(generator.choice(np.asarray(labels), examples))
    x = torch.from_numpy(generator.normal(size=(examples, inputs)))
    return rounds.ClientData(x + 2 * nn.functional.one_hot(y, inputs), y, torch.bincount(y, minlength=classes))


@dataclass(frozen=True)
class Run:
    """Every state, memory and outcome of a run; entry 0 of states and memories is before round 1."""

    states: list[rounds.ServerState]
    memories: list[dict[int, Memory]]
    outcomes: list[dict[int, rounds.ClientOutcome]]

    @property
    def last(self) -> rounds.ServerState:
        return self.states[-1]


def play(
    method: Method | str,
    module: nn.Module,
    clients: Sequence[rounds.ClientData],
    cohorts: Sequence[Sequence[int]],
    plan: Plan,
    seed: int = 0,
    frozen: Sequence[str] = (),
) -> Run:
    """Run one round per cohort."""
    method = parse(method)
    trainer = rounds.Trainer.of(Model.of(module, frozen), method, plan)
    run = Run([rounds.begin(method, *trainer.model.initial())], [{}], [])
    for number, cohort in enumerate(cohorts, start=1):
        memories = dict(run.memories[-1])
        broadcast = rounds.broadcast_of(run.last)
        outcomes = {
            k: rounds.client_round(
                trainer, broadcast, clients[k], memories.get(k), k, stream(seed, "client", number, k)
            )
            for k in cohort
        }
        bundle = bundles.collect(method, (outcome.update for outcome in outcomes.values()))
        run.states.append(rounds.server_round(method, run.last, bundle, len(clients)))
        run.memories.append(memories | {k: outcome.memory for k, outcome in outcomes.items()})
        run.outcomes.append(outcomes)
    return run


def whole_batches(lr: float, steps: int, **more: float) -> Plan:
    """A plan whose every step sees all of a client's examples."""
    return Plan(SGD(lr, **more), batch_size=10**6, steps=steps)


def update(client: int = 0, examples: int = 1, effort: float = 1.0, buffers=None, uploads=None, numbers=None, **delta):
    """An update from plain lists, in float64."""
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in delta.items()}
    return Update(Facts(client, examples, 1, effort, numbers or {}), tensors, buffers or {}, uploads or {})


def as_numpy(tree: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """A tree as the twins take it."""
    return {name: tensor.detach().numpy().astype(np.float64) for name, tensor in tree.items()}


def as_tensors(tree: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """A tree of a twin as FedKeep takes it."""
    return {name: torch.from_numpy(np.asarray(array)) for name, array in tree.items()}


def assert_trees(found: dict[str, Tensor], expected: dict[str, np.ndarray], rtol: float = 1e-9, atol: float = 1e-11):
    """The same names, and the same numbers to a tolerance."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name].detach().numpy(), expected[name], rtol=rtol, atol=atol, err_msg=name)


def assert_same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """The same names, types and bits."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name
