"""Whole rounds of small clients, trained in the span of their examples and added up together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeep.bundles import Bundle, groups, merge, together
from fedkeep.data.partition_core import Partition
from fedkeep.engine.ray_worker import packed, unpacked
from fedkeep.engine.serial import SerialEngine
from fedkeep.engine.workers import WorkerEngine
from fedkeep.experiment.build import prepare, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.grammar import parse
from fedkeep.local import room as rooms
from fedkeep.local import span as spans
from fedkeep.method import Facts
from fedkeep.rounds import begin, broadcast_of

SMALL = Config(data="digits", limit=700, clients=70, fraction=1.0, batch_size=4, forgetting="off", workers=1)
METHODS = ["fedavg", "fednova+wsm", "fedavg(weights=uniform)+tce@momentum(beta=0.5)"]
ROUNDS = 2


@pytest.fixture(autouse=True)
def layers_of_any_size(monkeypatch):
    monkeypatch.setattr(spans, "LEAST", 0)


def run(config, make_engine=SerialEngine):
    """The simulation after some rounds, and what was recorded of them."""
    simulation = simulation_of(prepare(config), make_engine)
    try:
        return simulation, [simulation.step() for _ in range(ROUNDS)]
    finally:
        simulation.close()


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def assert_close(a, b):
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("budget", [{}, {"local_epochs": 2}, {"local_steps": 2}, {"slow": 0.5}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_those_of_the_eager_step(method, budget):
    config = replace(SMALL, method=method, **budget)
    simulation, records = run(config)
    eager, wanted = run(replace(config, step="eager"))
    assert simulation.engine.bench.trainer.room is not None and eager.engine.bench.trainer.room is None
    assert_close(simulation.state.params, eager.state.params)
    assert [r.bytes_up for r in records] == [r.bytes_up for r in wanted]
    assert [(r.cohort, r.slow) for r in records] == [(r.cohort, r.slow) for r in wanted]


@pytest.mark.parametrize("clients", [70, 33])
@pytest.mark.parametrize("method", METHODS)
def test_workers_change_no_bit(method, clients):
    config = replace(SMALL, method=method, clients=clients, limit=10 * clients)
    serial, _ = run(config)
    for workers in (2, 3):
        spread, _ = run(config, lambda bench, workers=workers: WorkerEngine(bench, workers))
        assert_same_bits(spread.state.params, serial.state.params)


def test_whether_a_client_is_trained_in_the_span_does_not_depend_on_those_beside_it():
    ragged = {
        "partition": "quantity_skew(alpha=2)",
        "batch_size": 16,
        "local_epochs": 2,
    }  # many last batches, few recorded
    config = replace(SMALL, method="fedavg", **ragged)
    serial, _ = run(config)
    bench, clients = serial.engine.bench, list(range(70))
    line = bench._line_up(broadcast_of(serial.state), clients)
    assert line is not None and 10 < len(line.places) < 60
    for client in clients:
        alone = bench._line_up(broadcast_of(serial.state), [client])
        assert (alone is not None) == (client in line.places)
    for workers in (2, 5):
        spread, _ = run(config, lambda bench, workers=workers: WorkerEngine(bench, workers))
        assert_same_bits(spread.state.params, serial.state.params)
    assert_close(serial.state.params, run(replace(config, step="eager"))[0].state.params)


@pytest.mark.parametrize("budget", [{}, {"local_epochs": 2}], ids=str)
def test_measuring_changes_no_bit(budget):
    config = replace(SMALL, method="fedavg+wsm", validation=0.2, **budget)
    states = [run(replace(config, forgetting=kind))[0].state for kind in ("off", "cohort", "all")]
    for state in states[1:]:
        assert_same_bits(state.params, states[0].params)


def test_measured_models_are_those_that_were_trained():
    config = replace(SMALL, method="fedavg", validation=0.2, forgetting="cohort")
    _, records = run(config)
    _, wanted = run(replace(config, step="eager"))
    for one, other in zip(records, wanted, strict=True):
        assert one.measured is not None and other.measured is not None
        assert one.measured.summary == pytest.approx(other.measured.summary, abs=0.02, nan_ok=True)


def test_a_bench_that_has_travelled_changes_no_bit():
    simulation = simulation_of(prepare(replace(SMALL, method="fedavg+wsm")), SerialEngine)
    bench, broadcast = simulation.engine.bench, replace(broadcast_of(simulation.state), together=4)
    there = unpacked(packed(bench))
    assert there.trainer.room is not None and there.trainer.room is not bench.trainer.room
    nothing, clients = np.zeros(0, np.int64), list(range(10))
    one, other = (b.run_group(replace(broadcast, made={}), clients, {}, nothing).bundle for b in (bench, there))
    assert_same_bits(one.change, other.change)
    assert one.facts == other.facts


def test_whoever_is_not_finite_is_left_out_and_the_rest_kept(monkeypatch):
    """The sum of a few neighbours is thrown away, and each of them trained by itself."""
    config = replace(SMALL, method="fedavg", clients=64, limit=640)
    usual, _ = run(config)
    finite = rooms.LineUp.finite
    monkeypatch.setattr(rooms.LineUp, "finite", lambda line, client: client % 7 != 3 and finite(line, client))
    simulation, records = run(config)
    assert not any(record.left_out for record in records)  # trained weight by weight they are finite
    assert_close(simulation.state.params, usual.state.params)
    assert not torch.equal(simulation.state.params["hidden.weight"], usual.state.params["hidden.weight"])


def test_clients_that_blow_up_are_left_out():
    prepared = prepare(replace(SMALL, method="fedavg", lr=1e3, clients=64, limit=640))
    simulation = simulation_of(prepared, SerialEngine)
    people = prepared.population
    people.x[people.train.indices(5)] *= 1e14  # within what is taken for a number, but not for long
    record = simulation.step()
    assert 5 in record.left_out
    assert all(bool(torch.isfinite(tensor).all()) for tensor in simulation.state.params.values())


def test_a_large_client_among_small_ones_is_trained_weight_by_weight():
    config = replace(SMALL, method="fedavg", clients=16, limit=160)
    bench, eager = (
        simulation_of(prepare(replace(config, step=s)), SerialEngine).engine.bench for s in ("auto", "eager")
    )
    room, people = bench.trainer.room, bench.population
    assert room is not None
    sizes = [10 * (k < 3) or room.layer.most + 1 for k in range(4)]
    train = Partition(np.arange(sum(sizes)) % 160, np.concatenate([[0], np.cumsum(sizes)]))
    state = begin(bench.trainer.method, *bench.trainer.model.initial())
    broadcast, nothing = replace(broadcast_of(state), together=4), np.zeros(0, np.int64)
    found, wanted = (
        replace(one, population=replace(people, train=train)).run_group(broadcast, [0, 1, 2, 3], {}, nothing).bundle
        for one in (bench, eager)
    )
    assert found.facts == wanted.facts and found.typical and not wanted.typical
    for name, tensor in wanted.total.items():
        torch.testing.assert_close(found.change[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["fedwavg(alpha=0.3)", "fedwagg(clusters=2)", "importance(lam=10)", "scaffold+wsm"])
def test_methods_that_need_single_models_or_change_steps_are_left_alone(method):
    simulation = simulation_of(prepare(replace(SMALL, method=method)), SerialEngine)
    assert simulation.engine.bench.trainer.room is None


def test_a_penalty_that_begins_in_the_second_round_is_not_missed():
    config = replace(SMALL, method="fedavg+ewc(lam=1e5)", lr=0.5)
    (fast, _), (eager, _), (free, _) = (
        run(c) for c in (config, replace(config, step="eager"), replace(config, method="fedavg"))
    )
    assert fast.engine.bench.trainer.room is None
    assert_close(fast.state.params, eager.state.params)
    with pytest.raises(AssertionError):
        assert_close(fast.state.params, free.state.params)


def test_nothing_is_remembered_of_clients_that_have_nothing_to_remember():
    simulation, _ = run(replace(SMALL, method="fedavg"))
    assert len(simulation.memories) == 0
    simulation, _ = run(replace(SMALL, method="fedwavg(alpha=0.3)"))
    assert len(simulation.memories) == 70


@given(st.integers(1, 400), st.integers(1, 9), st.sampled_from([1, 2, 4]))
def test_however_a_cohort_is_cut_the_tree_of_sums_is_the_same(count, workers, least):
    """Sums are written as words, so that their order can be seen."""

    class Word(str):
        def add_(self, other):
            return Word(f"({self}+{other})")

    method = parse("fedavg")

    def single(first):
        few = range(first, min(first + least, count))
        facts = tuple(Facts(k, 1, 1, 1.0) for k in few)
        return Bundle(facts, {"w": Word("".join(f"[{k}]" for k in few))})  # type: ignore[dict-item]

    def cut(workers):
        blocks = groups(count, workers, least)
        assert [k for block in blocks for k in block] == list(range(count))
        assert all(block.start % least == 0 for block in blocks)
        return merge(method, (merge(method, map(single, block[::least])) for block in blocks)).total["w"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkeep.bundles.add_into", lambda a, b: {k: v.add_(b[k]) for k, v in a.items()})
        assert cut(workers) == cut(1)


def test_few_clients_are_not_held_together():
    assert [together(count) for count in (1, 31, 32, 63, 64, 10**6)] == [1, 1, 2, 2, 4, 4]
