"""Whole runs: reproducible, independent of who goes first, finite for every method, and measured correctly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedkeep.data.partition import Partition
from fedkeep.data.population import Population
from fedkeep.data.sampling import cohort
from fedkeep.engine import SerialEngine
from fedkeep.engine.base import Bench
from fedkeep.errors import ConfigError
from fedkeep.experiment.build import prepare, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.grammar import TERMS, parse
from fedkeep.local_opt import SGD
from fedkeep.mechanisms import ForgettingEvents
from fedkeep.method import Plan
from fedkeep.metrics.measure import FLOWS, measure
from fedkeep.model import Model
from fedkeep.rng import stream
from fedkeep.rounds import NoUsableUpdate, Trainer, begin, broadcast_of, client_round
from fedkeep.simulate import Simulation, with_meter
from fedkeep.tree import finite
from toys import Network, Normed, assert_same_bits

TINY = Config(limit=60, clients=4, fraction=0.5, validation=0.2, local_steps=2, batch_size=8, rounds=2, step="eager")

LOSSES = ["ce", "tce", "wsm", "fedrs(alpha=0.5)", "fedlc(tau=1.0)"]
MECHANISMS = ["", "fedprox(mu=0.1)", "scaffold", "ewc(lam=1.0)", "rwalk(lam=1.0)", "events", "fedprox(mu=0.1)+scaffold"]
AGGREGATIONS = [
    "fedavg",
    "fedavg(weights=uniform)",
    "fednova",
    "fedwavg(alpha=0.3)",
    "fedwagg(clusters=2)",
    "importance(lam=1.0)",
    "importance(lam=1.0, walk=true)",
]
REFUSED = {("fedwavg", "events"), ("importance", "ewc"), ("importance", "rwalk")}  # they bring it themselves


def bare(term: str) -> str:
    return term.partition("(")[0]


def run(config: Config, rounds: int = 2, make_engine=None) -> tuple[Simulation, list]:
    simulation = simulation_of(prepare(config), make_engine)
    return simulation, [simulation.step() for _ in range(rounds)]


def rows(records) -> list[dict[str, float]]:
    """What is recorded, without the time it took."""
    return [{key: value for key, value in record.row().items() if key != "seconds"} for record in records]


def assert_equal_runs(a, b) -> None:
    """The same bits everywhere."""
    (one, first), (other, second) = a, b
    assert_same_bits(one.state.params, other.state.params)
    assert_same_bits(one.state.buffers, other.state.buffers)
    np.testing.assert_equal(rows(first), rows(second))
    assert [record.cohort for record in first] == [record.cohort for record in second]
    assert one.memories.keys() == other.memories.keys()
    for client, memory in one.memories.items():
        for mechanism, slots in memory.items():
            for slot, tree in slots.items():
                assert_same_bits(tree, other.memories[client][mechanism][slot])
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_equal(vars(mine.measured), vars(theirs.measured))


# ---------------------------------------------------------------- every method


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_combination_runs_and_stays_finite(mechanism, aggregation):
    for loss in LOSSES:
        name = "+".join(term for term in (aggregation, mechanism, loss) if term)
        if (bare(aggregation), bare(mechanism)) in REFUSED:
            with pytest.raises(ConfigError, match="twice; keep one"):
                parse(name)
            continue
        simulation, records = run(replace(TINY, method=name))
        assert finite(simulation.state.params), name
        assert simulation.state.round == 2
        for record in records:
            assert np.isfinite(record.loss) and 0 <= record.accuracy <= 1 and record.left_out == (), name
            assert len(record.cohort) == 2


def test_the_combinations_name_every_term_there_is():
    used = {bare(part) for group in (LOSSES, MECHANISMS, AGGREGATIONS) for term in group for part in term.split("+")}
    assert used - {""} == set(TERMS)


@pytest.mark.parametrize(
    ("norm", "method"), [("batch", "fedavg+wsm"), ("group", "scaffold+tce"), ("batch", "importance(lam=1.0)")]
)
def test_a_residual_network_with_either_norm(norm, method):
    config = replace(
        TINY,
        method=method,
        model="resnet-shallow",
        norm=norm,
        limit=12,
        clients=2,
        fraction=1.0,
        local_steps=1,
        batch_size=4,
    )
    simulation, records = run(config, rounds=1)
    assert finite(simulation.state.params) and finite(simulation.state.buffers)
    assert bool(simulation.state.buffers) == (norm == "batch")
    assert np.isfinite(records[-1].loss)


@pytest.mark.parametrize("server", ["sgd(lr=0.5)", "momentum", "adam(lr=0.01)", "yogi(lr=0.01)", "adagrad(lr=0.01)"])
def test_every_server_optimiser_runs(server):
    simulation, _ = run(replace(TINY, method=f"fedprox(mu=0.1)+wsm@{server}"))
    assert finite(simulation.state.params)


# ---------------------------------------------------------------- reproducible


METHODS = ["scaffold+wsm", "fedwavg(alpha=0.5)", "fedwagg(clusters=2)", "importance(lam=1.0)+tce"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_reproducible_to_the_last_bit(method):
    config = replace(TINY, method=method, forgetting="all")
    first = run(config, rounds=3)
    torch.manual_seed(99)
    np.random.seed(99)
    run(replace(TINY, method="fedavg", seed=5))
    assert_equal_runs(first, run(config, rounds=3))


def test_another_seed_is_another_run():
    first, second = run(TINY), run(replace(TINY, seed=1))
    assert not torch.equal(first[0].state.params["classifier.bias"], second[0].state.params["classifier.bias"])


class Backwards(SerialEngine):
    """The last clients go first, each on its own; results still come in order."""

    def train(self, broadcast, groups, memories, rows):
        done = {n: self.bench.run_group(broadcast, groups[n], memories, rows) for n in reversed(range(len(groups)))}
        return [done[n] for n in range(len(groups))]

    def score(self, models, evaluators):
        return list(reversed(SerialEngine(self.bench).score(models[::-1], evaluators[::-1])))


@pytest.mark.parametrize("method", METHODS)
def test_who_is_trained_first_does_not_matter(method):
    config = replace(TINY, method=method, clients=6, fraction=1.0)
    assert_equal_runs(run(config, 3), run(config, 3, Backwards))


class Many(SerialEngine):
    """An engine that says it has several workers, so that the cohort is cut otherwise."""

    workers = 3


@pytest.mark.parametrize("method", METHODS)
def test_how_the_cohort_is_cut_does_not_matter(method):
    config = replace(TINY, method=method, clients=15, fraction=1.0, partition="iid")
    assert_equal_runs(run(config, 2), run(config, 2, Many))


def test_every_client_and_round_has_a_stream_of_its_own():
    """What a client does follows from (seed, round, client) and what it received, and from each of them."""
    simulation = federation([0] * 9 + [1] * 9, [0, 1, 2] * 6, "fedavg")
    bench, nothing = simulation.engine.bench, np.zeros(0, dtype=np.int64)
    found = []
    for number in (1, 2):
        broadcast = replace(broadcast_of(simulation.state), round=number)
        bundle = bench.run_group(broadcast, [0], {}, nothing).bundle
        outcome = client_round(bench.trainer, broadcast, bench.client_data(0), None, 0, stream(0, "client", number, 0))
        assert_same_bits(bundle.total, bench.trainer.method.aggregate.contribution(outcome.update))
        found.append(outcome.params["hidden.weight"])
    other = client_round(bench.trainer, broadcast, bench.client_data(0), None, 0, stream(0, "client", 2, 1))
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[1], other.params["hidden.weight"])


def test_measuring_changes_nothing_in_training():
    states = [run(replace(TINY, method="scaffold+wsm", forgetting=kind))[0].state for kind in ("off", "cohort", "all")]
    for state in states[1:]:
        assert_same_bits(state.params, states[0].params)
    assert not any(isinstance(part, ForgettingEvents) for part in with_meter(parse("fedavg"), "off").mechanisms)
    assert with_meter(parse("fedwavg(alpha=0.1)"), "all") == parse("fedwavg(alpha=0.1)")


# ---------------------------------------------------------------- clients of every kind


def federation(
    owners,
    labels,
    method: str,
    validation: float = 0.0,
    size: int | None = None,
    module=None,
    plan=None,
    forgetting="cohort",
) -> Simulation:
    """A federation whose client owners[i] holds example i."""
    owners, labels = np.asarray(owners), np.asarray(labels)
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.normal(size=(len(labels), 4)) + 2 * np.eye(4)[labels])
    y = torch.from_numpy(labels)
    clients = int(owners.max()) + 1
    population = Population.of(x, y, Partition.from_owners(owners, clients), 3, validation, seed=0)
    parsed = with_meter(parse(method), forgetting)
    trainer = Trainer.of(Model.of(module or Network()), parsed, plan or Plan(SGD(0.1), batch_size=4))
    engine = SerialEngine(Bench(trainer, population, (x, y), 0))
    state = begin(parsed, *trainer.model.initial())
    return Simulation(parsed, population, engine, state, 0, size or clients, forgetting)


OWNERS = [0] * 9 + [1] + [2] * 2 + [3] * 5
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 2, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "method", ["fedavg+wsm", "scaffold+tce", "fedwavg(alpha=0.5)", "importance(lam=1.0)+fedlc(tau=1.0)"]
)
@pytest.mark.parametrize("module", [Network, Normed])
def test_clients_with_one_example_one_class_or_less_than_a_batch(method, module):
    simulation = federation(OWNERS, LABELS, method, validation=0.3, module=module())
    for _ in range(3):
        record = simulation.step()
        assert record.left_out == () and finite(simulation.state.params)
    # floor(0.3 * (9, 1, 2, 5)) are held out; where that is nothing, the training examples stand in
    assert simulation.population.held_out.sizes.tolist() == [2, 0, 0, 1]
    assert record.measured.clients["judged"].tolist() == [2, 1, 2, 1]


def test_clients_of_one_class_stand_still_under_wsm():
    """With one class on every client WSM has no gradient, so nothing ever moves; plain CE moves."""
    owners, labels = [0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 2]
    simulation = federation(owners, labels, "fedavg+wsm")
    before = simulation.state.params
    for _ in range(2):
        simulation.step()
    assert_same_bits(simulation.state.params, before)
    plain = federation(owners, labels, "fedavg")
    plain.step()
    assert not torch.equal(plain.state.params["output.bias"], before["output.bias"])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_partial_and_full_participation(size):
    simulation = federation(OWNERS, LABELS, "scaffold", size=size)
    seen: set[int] = set()
    for number in range(1, 5):
        record = simulation.step()
        assert record.cohort == tuple(cohort(0, number, 4, size).tolist())
        assert len(set(record.cohort)) == size
        seen |= set(record.cohort)
        assert set(simulation.memories) == seen  # who was never sampled keeps nothing
        assert record.measured.clients["client"][record.measured.clients["in_cohort"]].tolist() == list(record.cohort)
    assert simulation.state.round == 4


def test_a_run_that_diverges_stops_with_the_last_good_model():
    simulation = federation(OWNERS, LABELS, "fedavg", plan=Plan(SGD(1e200), batch_size=4, epochs=3))
    before = simulation.state
    with pytest.raises(NoUsableUpdate, match="round 1: none of the 4 updates was finite"):
        for _ in range(3):
            simulation.step()
    assert simulation.state is before and simulation.memories == {}


def test_bytes_up_and_down():
    floats = 4 * 5 + 5 + 5 * 3 + 3
    simulation = federation(OWNERS, LABELS, "scaffold", size=2, forgetting="off")
    record = simulation.step()
    assert record.bytes_down == 2 * 2 * 8 * floats  # the model and c, to two clients
    assert record.bytes_up == 2 * (2 * 8 * floats + 16)  # the change and dc, and two numbers, from each


def test_the_test_data_is_judged_when_it_is_due():
    simulation = federation(OWNERS, LABELS, "fedavg")
    simulation.judge_every, simulation.rounds = 2, 5
    accuracies = [simulation.step().accuracy for _ in range(5)]
    assert [bool(np.isnan(value)) for value in accuracies] == [True, False, True, False, False]


def test_accuracy_and_loss_are_those_of_the_new_global_model():
    simulation = federation(OWNERS, LABELS, "fedavg")
    record = simulation.step()
    module = Network()
    module.load_state_dict(simulation.state.params)
    x, y = simulation.engine.bench.test
    with torch.no_grad():
        logits = module(x)
    assert record.accuracy == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    assert record.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)))


# ---------------------------------------------------------------- forgetting


def hand_worked():
    """Six examples of three clients, of which 0 and 1 take part."""
    right = {"before": "101101", "local0": "110000", "local1": "001011", "after": "101110"}
    order = {name: np.array([letter == "1" for letter in word]) for name, word in right.items()}
    return np.array([0, 1, 1, 1, 0, 2]), np.array([0, 0, 1, 1, 2, 2]), order


def test_a_round_worked_by_hand():
    labels, owners, right = hand_worked()
    local = {0: right["local0"], 1: right["local1"]}
    found = measure(7, labels, owners, 3, right["before"], local, right["after"], {0: 3.0, 1: 1.0})
    # accuracies on the data of clients 0, 1, 2:  before .5 1 .5;  model 0: 1 0 0;  model 1: 0 .5 1;  after .5 1 .5
    # F[k, i] = before_k - model i on k:  [[-.5, .5], [1, .5], [.5, -.5]]
    nan = np.nan
    expected = {
        "round": [7, 7, 7],
        "client": [0, 1, 2],
        "in_cohort": [True, True, False],
        "judged": [2, 2, 2],
        "accuracy_before": [0.5, 1.0, 0.5],
        "accuracy_local": [1.0, 0.5, nan],
        "accuracy_after": [0.5, 1.0, 0.5],
        "forgetting_by_model": [0.75, 0.0, nan],
        "forgetting_by_data": [0.5, 1.0, 0.0],
        "forgettable": [3, 1, nan],
        # (before, own model, after): client 0 has 111 and 010, client 1 has 111 and 101
        "right_before": [1, 2, 0],
        "learned_local": [1, 0, 0],
        "forgotten_local": [0, 1, 0],
        "right_local": [2, 1, 0],
        "forgotten_aggregation": [1, 0, 0],
        "forgotten_known": [0, 0, 0],
        "forgotten_new": [1, 0, 0],
        "regained_aggregation": [0, 1, 0],
        "regained": [0, 1, 0],
        "taught_by_others": [0, 0, 0],
        "right_after": [1, 2, 0],
    }
    assert found.clients.keys() == expected.keys()
    for column, values in expected.items():
        np.testing.assert_allclose(found.clients[column], values, err_msg=column)
    pairs = {(m, d): f for m, d, f in zip(*(found.forgetting[c] for c in ("model", "data", "forgetting")), strict=True)}
    assert pairs == {(0, 0): -0.5, (1, 0): 0.5, (0, 1): 1.0, (1, 1): 0.5, (0, 2): 0.5, (1, 2): -0.5}
    np.testing.assert_allclose(found.classes["judged"], [2, 3, 1])
    np.testing.assert_allclose(found.classes["accuracy_before"], [0.5, 2 / 3, 1])
    np.testing.assert_allclose(found.classes["accuracy_after"], [1, 2 / 3, 0])
    # accuracy lost per class, mean of the two models: (0 + 0)/2, (1/3 + 1/3)/2, (1 + 0)/2
    np.testing.assert_allclose(found.classes["forgetting"], [0, 1 / 3, 0.5], atol=1e-12)
    # the cohort's own examples by class: label 0 has 111; label 1 has 010, 111, 101
    assert found.classes["right_before"].tolist() == [1, 2, 0]
    assert found.classes["learned_local"].tolist() == [0, 1, 0]
    assert found.classes["regained"].tolist() == [0, 1, 0]
    summary = found.summary
    assert (summary["forgetting"], summary["forgetting_outside"], summary["forgettable"]) == (0.75, 0.0, 4.0)
    assert (summary["right_before"], summary["right_local"], summary["right_after"]) == (3, 3, 3)


def test_the_same_round_probed_on_the_cohort_only():
    labels, owners, right = hand_worked()
    probed = np.arange(4)
    local = {0: right["local0"][:4], 1: right["local1"][:4]}
    found = measure(7, labels, owners, 3, right["before"], local, right["after"], probed=probed)
    np.testing.assert_allclose(found.clients["forgetting_by_model"], [1.0, 0.5, np.nan])
    np.testing.assert_allclose(found.clients["forgetting_by_data"], [0.5, 1.0, np.nan])
    np.testing.assert_allclose(found.clients["accuracy_after"], [0.5, 1.0, 0.5])
    np.testing.assert_allclose(found.classes["forgetting"], [0.5, 1 / 3, np.nan])
    assert np.isnan(found.summary["forgetting_outside"]) and found.summary["forgetting"] == 0.75
    assert found.forgetting["data"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("forgetting", ["cohort", "all"])
def test_the_decomposition_adds_up_in_every_round(forgetting):
    config = replace(TINY, limit=200, clients=6, forgetting=forgetting, local_steps=0, local_epochs=2, lr=0.3)
    _, records = run(config, rounds=4)
    seen = dict.fromkeys(FLOWS, 0.0)
    for record in records:
        tables = [record.measured.clients, record.measured.classes, record.measured.summary]
        for table in tables:
            t = {name: np.asarray(table[name]) for name in FLOWS}
            np.testing.assert_array_equal(
                t["right_local"], t["right_before"] + t["learned_local"] - t["forgotten_local"]
            )
            np.testing.assert_array_equal(
                t["right_after"], t["right_local"] + t["regained_aggregation"] - t["forgotten_aggregation"]
            )
            np.testing.assert_array_equal(t["regained_aggregation"], t["regained"] + t["taught_by_others"])
            np.testing.assert_array_equal(t["forgotten_aggregation"], t["forgotten_known"] + t["forgotten_new"])
        for name in FLOWS:
            assert record.measured.clients[name].sum() == record.measured.classes[name].sum() == record.row()[name]
            seen[name] += record.row()[name]
        clients = record.measured.clients
        inside = clients["in_cohort"]
        for right, accuracy in (("right_before", "before"), ("right_local", "local"), ("right_after", "after")):
            np.testing.assert_allclose(
                clients[right][inside], (clients["judged"] * clients[f"accuracy_{accuracy}"])[inside]
            )
    assert all(seen[name] > 0 for name in FLOWS if name not in ("regained", "forgotten_known"))


def test_the_tables_against_models_judged_one_by_one():
    """Accuracies and F_ki of a real run, from every model of the round loaded and asked by hand."""
    generator = np.random.default_rng(1)
    owners, labels = generator.integers(0, 4, 90), generator.integers(0, 3, 90)
    plan = Plan(SGD(0.5), batch_size=4, epochs=2)
    simulation = federation(owners, labels, "fedavg", 0.5, 2, Normed(), plan, "all")
    population, trainer = simulation.population, simulation.engine.bench.trainer
    simulation.step()
    for number in (2, 3):
        state = simulation.state
        record = simulation.step()

        def accuracy(params, buffers, k):
            held = population.held_out.indices(k)
            judged = held if len(held) else population.train.indices(k)
            module = Normed()
            module.load_state_dict({**params, **buffers})
            with torch.no_grad():
                return float((module.eval()(population.x[judged]).argmax(1) == population.y[judged]).double().mean())

        table = record.measured.clients
        before = [accuracy(state.params, state.buffers, k) for k in range(4)]
        np.testing.assert_allclose(table["accuracy_before"], before)
        after = [accuracy(simulation.state.params, simulation.state.buffers, k) for k in range(4)]
        np.testing.assert_allclose(table["accuracy_after"], after)
        assert before != after  # else a stale number would go unnoticed
        pairs = record.measured.forgetting
        expected = {}
        for i in record.cohort:
            data = simulation.engine.bench.client_data(i)
            outcome = client_round(trainer, broadcast_of(state), data, None, i, stream(0, "client", number, i))
            for k in range(4):
                expected[(i, k)] = before[k] - accuracy(outcome.params, outcome.buffers, k)
        found = {(m, d): f for m, d, f in zip(pairs["model"], pairs["data"], pairs["forgetting"], strict=True)}
        assert found.keys() == expected.keys()
        for pair, value in expected.items():
            assert found[pair] == pytest.approx(value, abs=1e-12)
        for i in record.cohort:
            others = [expected[(i, k)] for k in range(4) if k != i]
            assert table["forgetting_by_model"][i] == pytest.approx(np.mean(others), abs=1e-12)
