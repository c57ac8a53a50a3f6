"""Large populations and large models: nothing changes but what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep import bundles, grammar, rounds
from fedkeep.data.population import Drawn, Population
from fedkeep.engine import SerialEngine
from fedkeep.engine.workers import WorkerEngine
from fedkeep.errors import ConfigError
from fedkeep.experiment.budget import Need, Peak, free_memory, need, refuse_if_short
from fedkeep.experiment.build import Prepared, label_table, prepare, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.experiment.run import execute
from fedkeep.local_opt import SGD
from fedkeep.memories import Memories, size_of
from fedkeep.method import Aggregator, Facts, Plan, Update
from fedkeep.rng import stream
from fedkeep.simulate import Simulation
from toys import assert_same_bits

MANY = Config(
    method="scaffold+wsm",
    population=10**6,
    samples=12,
    cohort=6,
    rounds=4,
    local_epochs=1,
    batch_size=8,
    engine="eager",
    panel=20,
    workers=1,
    validation=0.2,
)


def run(config: Config, count: int = 3, make_engine=None, memories: Memories | None = None) -> tuple[Simulation, list]:
    simulation = simulation_of(prepare(config), make_engine)
    if memories is not None:
        simulation.memories = memories
    try:
        return simulation, [simulation.step() for _ in range(count)]
    finally:
        simulation.close()


def assert_equal_runs(a, b) -> None:
    (one, first), (other, second) = a, b
    assert_same_bits(one.state.params, other.state.params)
    assert one.memories.keys() == other.memories.keys()
    for client in one.memories:
        for mechanism, slots in one.memories[client].items():
            for slot, tree in slots.items():
                assert_same_bits(tree, other.memories[client][mechanism][slot])
    for mine, theirs in zip(first, second, strict=True):
        assert (mine.cohort, mine.dropped, mine.slow) == (theirs.cohort, theirs.dropped, theirs.slow)
        np.testing.assert_equal(vars(mine.measured), vars(theirs.measured))
        assert mine.validation_accuracy == theirs.validation_accuracy


# ---------------------------------------------------------------- populations


def as_function(prepared: Prepared) -> Prepared:
    """The same clients as a function in place of an index array."""
    data, config = prepared.dataset, prepared.config
    whole = Drawn(len(prepared.partition), prepared.partition.indices)
    made = Population.of(data.train_x, data.train_y, whole, data.classes, config.validation, config.seed)
    return replace(prepared, partition=whole, population=made)


@pytest.mark.parametrize("method", ["scaffold+wsm", "fedwavg(alpha=0.5)", "fedwagg(clusters=2)"])
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_function_and_an_index_array_give_the_same_bits(method, engine):
    config = Config(
        method=method, clients=9, limit=200, cohort=4, local_epochs=1, validation=0.2, engine=engine, panel=5
    )
    prepared = prepare(config)
    found = []
    for one in (prepared, as_function(prepared)):
        simulation = simulation_of(one)
        found.append((simulation, [simulation.step() for _ in range(3)]))
    assert_equal_runs(*found)
    tables = [label_table(one) for one in (prepared, as_function(prepared))]
    assert all(np.array_equal(tables[0][name], tables[1][name]) for name in tables[0])


def test_only_the_cohort_and_the_panel_are_looked_at():
    prepared = prepare(MANY)
    asked: set[int] = set()

    def rows(client: int) -> np.ndarray:
        asked.add(client)
        return prepared.partition.indices(client)

    data = prepared.dataset
    made = Population.of(data.train_x, data.train_y, Drawn(10**6, rows), data.classes, 0.2, 0)
    simulation = simulation_of(replace(prepared, population=made))
    asked.clear()
    records = [simulation.step() for _ in range(3)]
    cohorts = {client for record in records for client in record.cohort}
    assert asked == cohorts and len(cohorts) == 18  # of the panel the rows are known from the start
    assert set(simulation.memories) == cohorts
    for record in records:
        clients = record.measured.clients
        assert clients["in_cohort"].sum() == 6 and len(clients["client"]) <= 26
        assert len(record.measured.forgetting["model"]) == 36  # every model of the cohort on every client of it


def test_the_panel_is_judged_alike_whoever_is_in_the_cohort():
    """What is known of the panel from the round before is what a look at it would give."""
    simulation = simulation_of(prepare(replace(MANY, method="fedavg")))
    simulation.step()
    kept, simulation._before = simulation._before, None
    judging = simulation._judging(np.array([1, 2, 3]))
    assert np.array_equal(simulation._before_round(judging)[: judging.fixed], kept)
    other = simulation._judging(np.array([5]))
    assert np.array_equal(simulation._judge(other)[: other.fixed], kept)


def test_a_panel_of_everyone_is_as_before():
    config = replace(MANY, population=0, clients=8, cohort=3, limit=150, method="fedavg")
    assert_equal_runs(run(config), run(replace(config, panel=0)))


def test_forgetting_of_a_cohort_outside_the_panel():
    """F_ki of clients that are not in the panel is what it is where everyone is judged."""
    config = replace(MANY, population=40, cohort=5, method="fedavg")
    (_, few), (_, all_of_them) = run(replace(config, panel=3)), run(replace(config, panel=0))
    for one, other in zip(few, all_of_them, strict=True):
        for column in ("model", "data", "forgetting"):
            assert np.array_equal(one.measured.forgetting[column], other.measured.forgetting[column])
        assert one.measured.summary["forgetting"] == other.measured.summary["forgetting"]


# ---------------------------------------------------------------- memories


@pytest.mark.parametrize("method", ["scaffold+wsm", "fedwavg(alpha=0.5)"])
def test_the_size_of_the_cache_changes_nothing(method, tmp_path):
    config = replace(MANY, population=12, method=method)
    whole = run(config, 4)
    for number, limit in enumerate((0, 3 * size_of(whole[0].memories[whole[1][0].cohort[0]]))):
        small = run(config, 4, memories=Memories(limit, tmp_path / str(number)))
        assert small[0].memories.held <= limit
        assert_equal_runs(whole, small)


def test_workers_read_memories_from_disk_as_well(tmp_path):
    config = replace(MANY, population=12, cohort=9)
    serial = run(config)
    parallel = run(config, 3, lambda bench: WorkerEngine(bench, 2), Memories(0, tmp_path))
    assert_equal_runs(serial, parallel)


def test_a_resumed_run_remembers_the_same(tmp_path):
    config = replace(MANY, population=12, rounds=5, checkpoint_every=2)
    whole = execute(config, tmp_path / "whole")
    step = Simulation.step

    def stop(self):
        if self.state.round == 3:
            raise KeyboardInterrupt
        return step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            execute(config, tmp_path / "cut")
    found = list((tmp_path / "cut" / "segments" / "memories").rglob("*.tensors"))
    assert found
    again = execute(replace(config, cache_mb=0.0), tmp_path / "cut")
    assert_same_bits(whole.params, again.params)
    assert not (tmp_path / "cut" / "segments").exists()


def test_a_round_that_fails_leaves_no_memory():
    simulation = simulation_of(prepare(replace(MANY, method="scaffold")))
    simulation.step()
    known, state = dict.fromkeys(simulation.memories), simulation.state

    class Stops(SerialEngine):
        def judge(self, *arguments, **more):
            raise KeyboardInterrupt

    simulation.engine = Stops(simulation.engine.bench)
    with pytest.raises(KeyboardInterrupt):
        simulation.step()
    assert dict.fromkeys(simulation.memories) == known and simulation.state is state


# ---------------------------------------------------------------- clients that fail

FAILING = {"online": 0.7, "dropout": 0.3, "slow": 0.4, "slow_work": 0.5}


def test_workers_change_nothing_for_clients_that_fail():
    config = replace(MANY, population=30, cohort=9, **FAILING)
    assert_equal_runs(run(config), run(config, 3, lambda bench: WorkerEngine(bench, 2)))


def test_those_who_drop_out_send_nothing_and_remember_nothing():
    simulation, records = run(replace(MANY, cohort=20, **FAILING), 3)
    known = simulation.availability
    for record in records:
        fates = {k: known.work(0, record.round, k) for k in record.cohort}
        assert all(known.is_online(0, record.round, k) for k in record.cohort)
        assert record.dropped == tuple(k for k, work in fates.items() if work == 0) != ()
        assert record.slow == tuple(k for k, work in fates.items() if work == 0.5) != ()
        assert not set(record.dropped) & set(simulation.memories)
        inside = record.measured.clients["client"][record.measured.clients["in_cohort"]]
        assert set(inside.tolist()) == set(record.cohort) - set(record.dropped)
        assert record.row()["dropped"] == len(record.dropped) and record.row()["slow"] == len(record.slow)


def test_a_slow_client_does_a_part_of_its_steps():
    prepared = prepare(replace(MANY, local_epochs=4, slow=1.0, slow_work=0.3))
    bench = simulation_of(prepared).engine.bench  # 10 training examples of 12, batches of 8, 4 passes: 8 steps
    state = rounds.begin(bench.trainer.method, *prepared.model.initial())
    result = bench.run_group(rounds.broadcast_of(state), [1, 2], {}, np.zeros(0, np.int64))
    assert [fact.steps for fact in result.bundle.facts] == [2, 2]
    least = replace(bench, availability=replace(bench.availability, slow_work=0.01))
    assert least.run_group(rounds.broadcast_of(state), [1], {}, np.zeros(0, np.int64)).bundle.facts[0].steps == 1


@pytest.mark.parametrize("population", [40, 50_000])
def test_a_second_exchange_asks_those_who_are_there(population):
    config = replace(MANY, method="fedwagg(clusters=2, evaluators=12)", population=population, cohort=9, **FAILING)
    asked = []

    class Listening(SerialEngine):
        def score(self, models, evaluators):
            asked.append(evaluators)
            return super().score(models, evaluators)

    simulation = simulation_of(prepare(config), Listening)
    known = simulation.availability
    for number in (1, 2, 3):
        record = simulation.step()
        drawn = {client for evaluators in asked[-1] for client in evaluators}
        assert [len(set(evaluators)) for evaluators in asked[-1]] == [12, 12]
        assert all(known.is_online(0, number, client) for client in drawn) and not drawn & set(record.dropped)
        assert drawn - set(record.cohort)  # not only those who have trained


def test_nobody_there_changes_nothing_and_counts():
    simulation, records = run(replace(MANY, slow=1.0, slow_work=0.0), 2)
    start = simulation_of(prepare(MANY)).state
    assert_same_bits(simulation.state.params, start.params)
    assert simulation.state.round == 2 and all(len(record.dropped) == 6 for record in records)
    assert [record.bytes_up for record in records] == [0, 0] and records[0].bytes_down > 0


# ---------------------------------------------------------------- adding up


def updates(count: int, seed: int = 0) -> list[Update]:
    generator = stream(seed, "updates")
    return [
        Update(
            Facts(k, int(generator.integers(1, 50)), 3, 3.0, finite=bool(generator.random() > 0.1)),
            {"w": torch.from_numpy(generator.normal(size=7)).float()},
            {"n": torch.tensor([float(k)])},
            {"scaffold": {"dc": {"w": torch.from_numpy(generator.normal(size=7)).float()}}},
        )
        for k in range(count)
    ]


def slow_tree(leaves: list):
    """Pair by pair as the merging says, with plain sums: the largest power of two on the left."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    left, right = slow_tree(leaves[:half]), slow_tree(leaves[half:])
    return left + right if left is not None and right is not None else left if right is None else right


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 1000), st.booleans())
def test_sums_of_what_arrives_are_those_of_a_list(count, workers, seed, consume):
    method = grammar.parse("fedavg")
    wanted = slow_tree(
        [u.delta["w"] * float(u.facts.examples) if u.facts.finite else None for u in updates(count, seed)]
    )
    uploads = slow_tree([u.uploads["scaffold"]["dc"]["w"] if u.facts.finite else None for u in updates(count, seed)])
    made = updates(count, seed)
    cut = bundles.groups(count, workers)
    bundle = bundles.merge(method, (bundles.collect(method, [made[p] for p in g], consume) for g in cut))
    assert [fact.client for fact in bundle.facts] == list(range(count))
    if wanted is not None:
        assert torch.equal(bundle.total["w"], wanted)
        assert torch.equal(bundle.uploads["scaffold"]["dc"]["w"], uploads)
    for mine, fresh in zip(made, updates(count, seed), strict=True):
        assert torch.equal(
            mine.uploads["scaffold"]["dc"]["w"], fresh.uploads["scaffold"]["dc"]["w"]
        )  # never written to
        assert consume or torch.equal(mine.delta["w"], fresh.delta["w"])


class Clipped(Aggregator):
    """A contribution that is more than a factor."""

    def contribution(self, update):
        return {name: tensor.clamp(-0.1, 0.1) for name, tensor in update.delta.items()}


def test_a_contribution_of_ones_own_is_asked():
    method = replace(grammar.parse("fedavg"), aggregate=Clipped())
    made = [u for u in updates(5) if u.facts.finite]
    wanted = slow_tree([u.delta["w"].clamp(-0.1, 0.1) for u in made])
    assert torch.equal(bundles.collect(method, made, consume=True).total["w"], wanted)


def test_few_models_are_held_at_a_time():
    """While n models arrive, log2(n) + 1 sums are alive, and no model twice."""
    import weakref

    alive: list[weakref.ref] = []
    most = 0

    def arriving():
        nonlocal most
        for k in range(64):
            update = Update(Facts(k, 1, 1, 1.0), {"w": torch.zeros(3)})
            alive.append(weakref.ref(update.delta["w"]))
            most = max(most, sum(ref() is not None for ref in alive))
            yield update
            del update

    bundles.collect(grammar.parse("fedavg"), arriving(), consume=True)
    assert most <= 8


# ---------------------------------------------------------------- what a run needs


def test_the_need_of_hand_counted_methods():
    model = {"w": torch.zeros(1000)}
    plan = Plan(SGD(0.1))
    one = 4000

    def parts(name, cohort, workers=1, cache=10**9):
        return list(need(grammar.parse(name), model, {}, plan, cohort, workers, cache).parts.values())

    # four copies beside the state, the state, and twice state and best while saving; 5 local copies and one sent
    assert parts("fedavg", 8) == [9 * one, 6 * one, 4 * one, 0, 0]
    # + c on the server, saved twice; on the client c, c_k old and new, and dc; sums of two trees
    assert parts("scaffold", 8) == [12 * one, 10 * one, 8 * one, 0, 16 * one]
    assert parts("scaffold", 8, cache=5)[-1] == 5
    assert parts("fedwavg(alpha=0.5)", 8)[2] == 8 * one  # all updates; counts are plain numbers
    assert parts("importance(lam=1.0)", 8)[2] == 8 * (1 + 1 + 3) * one
    assert parts("fedavg", 8, workers=2)[1] == 2 * 6 * one


def test_what_does_not_fit_is_refused_beforehand():
    config = Config(method="importance(lam=1.0)", clients=10, fraction=1.0, memory_gb=0.001)
    with pytest.raises(ConfigError) as error:
        simulation_of(prepare(config))
    said = str(error.value)
    for word in ("needs about", "all 10 clients", "importance must see all updates", "--memory-gb", "--cohort"):
        assert word in said, said
    with pytest.raises(ConfigError, match=r"needs about .* are free"):
        refuse_if_short(grammar.parse("fedavg"), Need({"the server": 10**15}))
    refuse_if_short(grammar.parse("fedavg"), Need({"the server": 10}))
    simulation_of(prepare(replace(config, memory_gb=1.0)))


def test_the_machine_says_what_is_free_and_what_was_used():
    free = free_memory()
    assert free is None or 10**6 < free < 10**15
    assert 10**7 < Peak.now().process < 10**13


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": 10**6}, "fraction=0.5 of population=1000000 trains 500000 clients.*--cohort"),
        ({"population": 100, "clients": 7}, "clients=7 and population=100"),
        ({"population": 100, "partition": "natural"}, "natural with population=100.*dirichlet, shards, iid"),
        ({"population": -1}, "population=-1"),
        ({"cohort": 21}, "cohort=21 of 20 clients cannot be drawn"),
        ({"samples": 0}, "samples=0"),
        ({"online": 0.0}, "online=0.0"),
        ({"dropout": 2.0}, "dropout=2.0"),
        ({"cache_mb": -1.0}, "cache_mb=-1.0"),
        ({"panel": -5}, "panel=-5"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        Config(**options)


def test_options_of_a_population():
    config = Config(population=10**9, cohort=100)
    assert config.client_count == 10**9 and config.cohort_of(config.client_count) == 100
    assert replace(config, population=200).client_count == 200 and Config(clients=7).client_count == 7
    assert Config(population=1000).cohort_of(1000) == 500
    assert replace(config, cache_mb=3, memory_gb=8).identity() == config.identity()  # they change nothing but speed
    assert replace(config, panel=7).identity() != config.identity()


def test_the_partition_of_a_large_population_lists_the_panel():
    table = label_table(prepare(MANY))
    assert len(table["client"]) == 20 * 10 and len(np.unique(table["client"])) == 20
    assert table["train"].sum() == 20 * 10 and table["held_out"].sum() == 20 * 2
