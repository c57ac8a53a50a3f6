from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedkeep as fk
from fedkeep.data.sampling import cohort
from fedkeep.errors import ConfigError, DataError, RunError
from fedkeep.experiment.build import Prepared, prepare, simulation_of
from fedkeep.model import Model
from fedkeep.rng import stream
from fedkeep.rounds import broadcast_of, client_round
from fedkeep.simulate import RoundRecord, Simulation
from fedkeep.tree import Params

TABLES = ("clients", "classes", "forgetting")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# -- worked by hand: example n is the number n, a model is the set of examples that it gets right

LABELS = np.array([0, 0, 1, 1, 1])
DATA = {0: (np.array([[0], [1], [2]]), LABELS[:3]), 1: (np.array([[3], [4]]), LABELS[3:])}


def right_on(*numbers: int) -> Callable[[np.ndarray], np.ndarray]:
    def logits(x: np.ndarray) -> np.ndarray:
        assert isinstance(x, np.ndarray)  # the data is numpy, so are the batches
        answer = np.where(np.isin(x[:, 0], numbers), LABELS[x[:, 0]], 1 - LABELS[x[:, 0]])
        return np.eye(2)[answer]

    return logits


def rounds_by_hand() -> fk.ForgettingMeter:
    meter = fk.ForgettingMeter(DATA, classes=2)
    meter.open(right_on(0, 3))
    meter.local(0, right_on(0, 1, 2))
    meter.local(1, right_on(3, 4))
    meter.close(right_on(0, 1, 3))
    meter.open(right_on(0, 1, 3), cohort=[1])
    meter.local(1, right_on(4))
    meter.close(right_on(4))
    meter.open(right_on(4), cohort=[0])
    meter.local(0, right_on(0, 3))
    meter.close(right_on(0))
    return meter


def test_pairs_by_hand() -> None:
    pairs = rounds_by_hand().frame("forgetting")
    first = pairs[pairs["round"] == 1]
    assert list(zip(first["data"], first["model"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    np.testing.assert_allclose(first["forgetting"], [-2 / 3, 1 / 3, 1 / 2, -1 / 2])
    later = pairs[pairs["round"] > 1][["round", "data", "model", "forgetting"]].to_numpy()
    # round 2: 1/2 -> 1/2 on client 1's own data; round 3: 0 -> 1/3 on client 0's
    np.testing.assert_allclose(later, [[2, 1, 1, 0], [3, 0, 0, -1 / 3]])


def test_flows_by_hand() -> None:
    clients = rounds_by_hand().frame("clients")
    first = clients[clients["round"] == 1].set_index("client")
    assert first["judged"].tolist() == [3, 2]
    assert first["right_before"].tolist() == [1, 1]
    assert first["learned_local"].tolist() == [2, 1]
    assert first["forgotten_local"].tolist() == [0, 0]
    assert first["forgotten_new"].tolist() == [1, 1]
    assert first["forgotten_known"].tolist() == [0, 0]
    assert first["right_after"].tolist() == [2, 1]
    classes = rounds_by_hand().frame("classes")
    assert classes[classes["round"] == 1]["right_after"].tolist() == [2, 1]  # examples 0, 1 of class 0 and 3 of class 1


def test_forgettable_examples_by_hand() -> None:
    clients = rounds_by_hand().frame("clients")
    counted = clients.pivot(index="round", columns="client", values="forgettable")
    # Round 2: client 1's model knew 3 and 4, the global model only 3. Round 3: client 0's last model, of round 1,
    # knew 0, 1, 2, of which the global model knows none. Nobody else trained.
    np.testing.assert_array_equal(counted.to_numpy(), [[math.nan, math.nan], [math.nan, 1], [3, math.nan]])


def test_forgettable_examples_are_counted_on_training_data_when_given() -> None:
    judged = {0: (np.array([[0]]), LABELS[:1]), 1: (np.array([[3]]), LABELS[3:4])}
    train = {0: (np.array([[1], [2]]), LABELS[1:3]), 1: (np.array([[4]]), LABELS[4:])}
    meter = fk.ForgettingMeter(judged, classes=2, train=train)
    for _ in range(2):
        meter.open(right_on(0, 3, 4))
        meter.local(0, right_on(0, 1, 2))
        meter.local(1, right_on(3, 4))
        measured = meter.close(right_on())
    assert measured.clients["forgettable"].tolist() == [2, 0]
    assert measured.clients["judged"].tolist() == [1, 1]


def test_summary_by_hand() -> None:
    rounds = rounds_by_hand().frame("rounds")
    assert rounds["round"].tolist() == [1, 2, 3]
    assert rounds["clients"].tolist() == [2, 1, 1]
    np.testing.assert_allclose(rounds["validation_accuracy"], [3 / 5, 1 / 5, 1 / 5])
    # model 0 lost 1/2 on client 1, model 1 lost 1/3 on client 0; with one client there are no others
    np.testing.assert_allclose(rounds["forgetting"], [5 / 12, math.nan, math.nan])
    assert rounds["forgettable"].tolist() == [0, 1, 3]


def test_a_client_that_holds_nothing_out_is_judged_on_its_training_examples() -> None:
    nothing = (np.zeros((0, 1), np.int64), np.zeros(0, np.int64))
    meter = fk.ForgettingMeter({0: nothing, 1: DATA[1]}, classes=2, train=DATA)
    meter.open(right_on(0))
    meter.local(0, right_on(0, 1))
    assert meter.close(right_on(0)).clients["accuracy_local"].tolist()[0] == pytest.approx(2 / 3)


@pytest.mark.parametrize("batch_size", [1, 2, 500])
def test_batches_change_nothing(batch_size: int) -> None:
    torch.manual_seed(0)
    data = {k: (torch.randn(7, 4), torch.randint(3, (7,))) for k in range(3)}
    before, after, *local = (nn.Linear(4, 3) for _ in range(5))
    meter, whole = (fk.ForgettingMeter(data, 3, batch_size=size) for size in (batch_size, 21))
    for each in (meter, whole):
        each.open(before)
        for client, model in enumerate(local):
            each.local(client, model)
        each.close(after)
    for table in (*TABLES, "rounds"):
        pd.testing.assert_frame_equal(meter.frame(table), whole.frame(table))


# -- the same records as a run


def experiment(forgetting: str, **options) -> Prepared:
    usual = {"limit": 300, "clients": 6, "fraction": 0.5, "partition": "dirichlet(alpha=0.3)", "validation": 0.2}
    return prepare(fk.Config(method="fedavg", forgetting=forgetting, seed=3, **(usual | options)))


def meter_of(prepared: Prepared) -> fk.ForgettingMeter:
    population = prepared.population
    held_out, train = {}, {}
    for client in range(len(population)):
        rows = torch.from_numpy(population.held_out.indices(client))
        held_out[client] = (population.x[rows], population.y[rows])
        train[client] = population.examples(client)
    return fk.ForgettingMeter(held_out, population.classes, train)


def module_of(model: Model, params: Params, buffers: Params) -> nn.Module:
    module = copy.deepcopy(model.module)
    module.load_state_dict({**params, **buffers})
    return module.train()


def local_models(simulation: Simulation, clients: list[int]) -> dict[int, nn.Module]:
    """What the coming round's clients will train, by running their rounds once more beforehand."""
    bench = simulation.engine.bench
    sent = broadcast_of(simulation.state)
    models = {}
    for client in clients:
        rng = stream(simulation.seed, "client", sent.round, client)
        memory = simulation.memories.get(client)
        outcome = client_round(bench.trainer, sent, bench.client_data(client), memory, client, rng)
        models[client] = module_of(bench.trainer.model, outcome.params, outcome.buffers)
    return models


def assert_same_records(meter: fk.ForgettingMeter, records: list[RoundRecord]) -> None:
    for table in TABLES:
        ours = pd.concat([pd.DataFrame(getattr(record.measured, table)) for record in records], ignore_index=True)
        pd.testing.assert_frame_equal(meter.frame(table), ours)
    rows = pd.DataFrame([record.row() for record in records])
    pd.testing.assert_frame_equal(meter.frame("rounds"), rows[meter.frame("rounds").columns], check_dtype=False)


@pytest.mark.parametrize(
    ("forgetting", "options"),
    [
        ("cohort", {}),
        ("all", {}),
        ("all", {"validation": 0.0, "fraction": 1.0}),
        ("cohort", {"model": "resnet-shallow", "limit": 40, "clients": 3, "fraction": 0.67, "local_epochs": 1}),
    ],
)
def test_a_simulation_gives_the_same_records(forgetting: str, options: dict) -> None:
    prepared = experiment(forgetting, **options)
    simulation, meter = simulation_of(prepared), meter_of(prepared)
    records = []
    for number in range(1, 4):
        clients = cohort(3, number, len(prepared.population), prepared.cohort_size).tolist()
        opening = module_of(prepared.model, simulation.state.params, simulation.state.buffers)
        meter.open(opening, cohort=clients if forgetting == "cohort" else None)
        for client, model in local_models(simulation, clients).items():
            meter.local(client, model)
        records.append(simulation.step())
        meter.close(module_of(prepared.model, simulation.state.params, simulation.state.buffers))
    assert_same_records(meter, records)
    assert meter.frame("rounds")["forgotten_aggregation"].sum() > 0
    if "model" not in options:
        assert meter.frame("rounds")["forgettable"].sum() > 0


def plain_training(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> None:
    """Two passes of plain SGD, batches of 32, in the order that the client's stream gives."""
    rng.integers(2**63)  # the stream's first number seeds dropout, which there is none of
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for rows in torch.from_numpy(rng.permutation(len(y))).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def test_a_plain_pytorch_loop_gives_the_same_records() -> None:
    prepared = experiment("cohort", local_epochs=2, batch_size=32, lr=0.05)
    simulation, meter = simulation_of(prepared), meter_of(prepared)
    model = module_of(prepared.model, *prepared.model.initial()).requires_grad_(True)
    records = [simulation.step() for _ in range(4)]
    for number in range(1, 5):
        clients = cohort(3, number, 6, 3).tolist()
        meter.open(model, cohort=clients)
        total = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
        sizes = {client: len(prepared.population.examples(client)[1]) for client in clients}
        for client in clients:
            mine = copy.deepcopy(model)
            plain_training(mine, *prepared.population.examples(client), stream(3, "client", number, client))
            meter.local(client, mine)
            for name, tensor in mine.state_dict().items():
                total[name] += tensor * (sizes[client] / sum(sizes.values()))
        model.load_state_dict(total)
        meter.close(model)
    assert_same_records(meter, records)


# -- what it leaves alone


class Layers(nn.Module):
    """Batch norm and dropout, one of them in evaluation mode for good; fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen_norm = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.dropout, self.classifier = nn.Dropout(0.5), nn.Linear(4, 3)
        self.broken = False
        self.train()
        self.frozen_norm.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.broken:
            raise ZeroDivisionError
        assert not self.training and not torch.is_grad_enabled()
        return self.classifier(self.dropout(self.frozen_norm(self.norm(x))))


def layer_data() -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return {k: (torch.randn(6, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])) for k in range(2)}


def test_modules_come_back_as_they_were() -> None:
    model, meter = Layers(), fk.ForgettingMeter(layer_data(), 3)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    meter.open(model)
    meter.local(0, model)
    meter.close(model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert [part.training for part in model.modules()] == [True, True, False, True, True]
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_modes_come_back_after_an_error_and_the_round_goes_on() -> None:
    model, meter = Layers(), fk.ForgettingMeter(layer_data(), 3)
    meter.open(model)
    model.broken = True
    with pytest.raises(ZeroDivisionError):
        meter.local(0, model)
    assert [part.training for part in model.modules()] == [True, True, False, True, True]
    model.broken = False
    meter.local(0, model)
    meter.close(model)


def test_the_data_is_copied_and_models_are_judged_at_once() -> None:
    x = np.array([[0], [1], [2]])
    meter = fk.ForgettingMeter({0: (x, LABELS[:3])}, classes=2)
    x[:] = 4
    model = nn.Linear(1, 2)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([1.0, 0.0]))
        meter.open(lambda batch: model(torch.as_tensor(batch, dtype=torch.float32)))
        model.bias.copy_(torch.tensor([0.0, 1.0]))
    meter.local(0, right_on(0, 1, 2))
    measured = meter.close(right_on(0))
    assert measured.clients["accuracy_before"].tolist() == [pytest.approx(2 / 3)]
    assert measured.clients["accuracy_after"].tolist() == [pytest.approx(1 / 3)]


def test_inputs_take_the_precision_of_the_module() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    meter = fk.ForgettingMeter({7: (np.array([[1.0, 0.0], [0.0, 1.0]]), [0, 0])}, classes=2)  # double precision
    meter.open(model)
    meter.local(7, model.double())
    assert meter.close(model.half()).clients["accuracy_after"].tolist() == [0.5]


def test_functions_get_tensors_when_the_data_is_tensors() -> None:
    seen = []

    def model(x):
        seen.append(type(x))
        return torch.zeros(len(x), 2)

    meter = fk.ForgettingMeter({0: (torch.zeros(3, 1), torch.tensor([0, 1, 0]))}, classes=2)
    meter.open(model)
    assert seen == [torch.Tensor]


# -- misuse


def opened(**more) -> fk.ForgettingMeter:
    meter = fk.ForgettingMeter(DATA, classes=2)
    meter.open(right_on(0), **more)
    return meter


def test_calls_in_the_wrong_order_are_refused() -> None:
    meter = fk.ForgettingMeter(DATA, classes=2)
    for call in (lambda: meter.local(0, right_on()), lambda: meter.close(right_on()), meter.abandon):
        with pytest.raises(RunError, match="no round is open; call open"):
            call()
    meter.open(right_on())
    with pytest.raises(RunError, match="round 1 is still open"):
        meter.open(right_on())
    with pytest.raises(RunError, match="round 1 has no local model"):
        meter.close(right_on())
    meter.local(0, right_on())
    with pytest.raises(RunError, match="client 0 has already given its model in round 1"):
        meter.local(0, right_on())
    with pytest.raises(RunError, match="no round has been closed yet"):
        meter.frame("clients")


def test_an_abandoned_round_leaves_no_trace() -> None:
    meter = opened()
    meter.local(0, right_on(0, 1, 2))
    meter.abandon()
    meter.open(right_on(), round=5)
    meter.local(0, right_on(0))
    measured = meter.close(right_on())
    assert measured.clients["round"].tolist() == [5, 5]
    assert np.isnan(measured.clients["forgettable"]).all()
    with pytest.raises(RunError, match="round 5 comes after round 5"):
        meter.open(right_on(), round=5)


def test_unknown_clients_and_tables_are_refused() -> None:
    meter = opened(cohort=[1])
    with pytest.raises(DataError, match="client 9 is unknown to the meter, which has data of 0, 1"):
        meter.local(9, right_on())
    with pytest.raises(RunError, match="client 0 is not in the cohort"):
        meter.local(0, right_on())
    with pytest.raises(DataError, match="client 9 is unknown"):
        fk.ForgettingMeter(DATA, classes=2).open(right_on(), cohort=[9])
    with pytest.raises(ConfigError, match='did you mean "clients"'):
        meter.frame("client")


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ({"weight": 1}, ConfigError, "client 1 in round 1 is a dict; give an nn.Module or a function"),
        (lambda x: np.zeros((len(x), 3)), DataError, r"logits of shape \[5, 3\], not \[5, 2\]"),
        (lambda x: np.full((len(x), 2), np.nan), RunError, "client 1 in round 1 gives logits that are no numbers"),
    ],
)
def test_models_that_cannot_be_judged_are_refused(model, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        opened().local(1, model)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "data has no client"),
        ({"a": DATA[0]}, "client 'a' is no number"),
        ({2**63: DATA[0]}, "is no number of 64 bits"),
        ({0: (np.array([[np.nan]]), [0])}, "data of client 0: x holds NaN or infinity"),
        ({0: (np.array([["a"]]), [0])}, "data of client 0: x holds <U1"),
        ({0: (np.zeros((2, 1)), [0])}, r"x has shape \[2, 1\], y \[1\]"),
        ({0: (np.zeros((1, 1)), [2])}, "y runs from 2 to 2; give labels 0 ... 1"),
        ({0: (np.zeros((1, 1)), [0.5])}, "y holds float64"),
        ({0: (np.zeros((0, 1)), [])}, "client 0 has no examples to judge models on"),
        ({0: (np.zeros((1, 1)), [0]), 1: (np.zeros((1, 2)), [0])}, "bring them to one shape"),
    ],
)
def test_bad_data_is_refused(data: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fk.ForgettingMeter(data, classes=2)


def test_data_and_training_data_must_be_of_the_same_clients() -> None:
    with pytest.raises(DataError, match="client 1 is in only one of data and train"):
        fk.ForgettingMeter(DATA, classes=2, train={0: DATA[0]})
    with pytest.raises(ConfigError, match="classes=0"):
        fk.ForgettingMeter(DATA, classes=0)
