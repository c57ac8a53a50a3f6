"""From a config to the things a run is made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedkeep import grammar, models
from fedkeep.data import Dataset, load
from fedkeep.data.partition import parse as parse_partition
from fedkeep.data.population import LISTED, Holding, Population
from fedkeep.data.resampled import Resampled
from fedkeep.engine import Engine, SerialEngine
from fedkeep.engine.base import Bench
from fedkeep.engine.layout import channels_last_is_faster, has_convolutions
from fedkeep.engine.ray_cluster import check_installed
from fedkeep.engine.ray_engine import ray_engine
from fedkeep.engine.workers import WorkerEngine
from fedkeep.errors import ConfigError
from fedkeep.experiment.budget import Need, need, refuse_if_short
from fedkeep.experiment.config import Config
from fedkeep.local.span import Setting, much_in_common, typical_of
from fedkeep.local.step import EagerStep, Step, StepRecipe
from fedkeep.local.traced import TracedStep, worth_recording
from fedkeep.memories import Memories
from fedkeep.method import Method
from fedkeep.model import Model
from fedkeep.rng import stream, torch_seeded
from fedkeep.rounds import ClientData, Trainer, begin, broadcast_of, check, warm_up
from fedkeep.simulate import Simulation, with_meter


@dataclass(frozen=True)
class Prepared:
    """Data, clients and model of an experiment, before round 1."""

    config: Config
    dataset: Dataset
    partition: Holding
    population: Population
    model: Model
    cohort_size: int


DataKey = tuple[str, str, int, str]
_lent: dict[DataKey, Dataset] = {}


def data_key(config: Config) -> DataKey:
    """All that the data set of an experiment depends on."""
    return config.data, config.data_root, config.limit, config.inputs


def lend(key: DataKey, dataset: Dataset) -> None:
    """Use this data set for that key: another process has loaded it."""
    _lent.clear()  # one at a time: it lies in shared memory
    _lent[key] = dataset


@lru_cache(maxsize=2)
def load_data(key: DataKey) -> Dataset:
    """The data set of that key, read once."""
    data, root, limit, inputs = key
    return _lent.get(key) or load(data, root or None, limit or None, inputs)


def prepare(config: Config) -> Prepared:
    """Load the data, deal it to the clients, build the model; every refusal happens here."""
    dataset = load_data(data_key(config))
    partition = who_holds_what(config, dataset)
    population = Population.of(
        dataset.train_x, dataset.train_y, partition, dataset.classes, config.validation, config.seed
    )
    with torch_seeded(stream(config.seed, "model")):
        module = models.build(config.model, dataset.shape, dataset.classes, config.norm)
    model = Model.of(module, config.frozen, compile=config.step == "auto")
    if model.compiled is not None and much_in_common(dataset.train_x, typical := typical_of(dataset.train_x)):
        model = replace(model, typical=typical)
    size = config.cohort_of(len(population))
    check(grammar.parse(config.method), config.plan, size)
    return Prepared(config, dataset, partition, population, model, size)


def who_holds_what(config: Config, dataset: Dataset) -> Holding:
    """The examples of each client: dealt out, or drawn by each client of a population."""
    labels, spec = dataset.train_y.numpy(), parse_partition(config.partition)
    if config.population:
        return Resampled(labels, spec, config.samples, config.seed).population(config.population)
    partition = spec.build(labels, config.clients or None, config.seed, groups=dataset.groups)
    if (partition.sizes == 0).any():
        empty = int((partition.sizes == 0).sum())
        raise ConfigError(f"partition {spec}: {empty} clients hold no example; use fewer clients")
    return partition


def simulation_of(prepared: Prepared, make_engine: Callable[[Bench], Engine] | None = None) -> Simulation:
    """The runtime of a prepared experiment, at round 0."""
    config = prepared.config
    forgetting = config.forgetting
    refuse_if_short(grammar.parse(config.method), memory_needed(prepared), config.memory_gb)
    method = with_meter(grammar.parse(config.method), forgetting)  # type: ignore[arg-type]
    trainer = trainer_for(prepared, method, config.layout == "channels-last")
    test = (prepared.dataset.test_x, prepared.dataset.test_y)
    bench = Bench(trainer, prepared.population, test, config.seed, config.availability)
    state = begin(method, *prepared.model.initial())
    warm_up(trainer, broadcast_of(state), bench.client_data(0))
    engine = make_engine(bench) if make_engine else SerialEngine(bench)
    return Simulation(
        method=method,
        population=prepared.population,
        engine=engine,
        state=state,
        seed=config.seed,
        cohort_size=prepared.cohort_size,
        forgetting=forgetting,  # type: ignore[arg-type]
        judge_every=config.judge_every,
        rounds=config.rounds,
        memories=Memories(int(config.cache_mb * 1e6)),
        availability=config.availability,
        panel=config.panel,
    )


def memory_needed(prepared: Prepared) -> Need:
    """What a run of a prepared experiment will need beside its data."""
    config = prepared.config
    method, model = grammar.parse(config.method), prepared.model.initial()
    size, cache = prepared.cohort_size, int(config.cache_mb * 1e6)
    return need(method, *model, config.plan, size, min(config.workers or cores(), size), cache)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def label_table(prepared: Prepared) -> dict[str, np.ndarray]:
    """Who holds which label: one row per client and class; of a large population those of the panel."""
    population, config = prepared.population, prepared.config
    everyone = len(population) <= LISTED
    clients = population.panel(0 if everyone else min(config.panel or LISTED, LISTED), config.seed)
    train, held = population.label_counts(clients)
    client, label = np.indices(train.shape)
    return {"client": clients[client.ravel()], "class": label.ravel(), "train": train.ravel(), "held_out": held.ravel()}


def trainer_for(prepared: Prepared, method: Method, channels_last: bool) -> Trainer:
    """What a client of this experiment trains with."""
    make_step = step_for(prepared.config, prepared.population)
    return Trainer.of(prepared.model, method, prepared.config.plan, make_step, channels_last)


def resolved(prepared: Prepared) -> Prepared:
    """The experiment with its layout decided: what `auto` stands for is measured, and saved with the run."""
    config = prepared.config
    if config.layout != "auto":
        return prepared
    layout = "rows"
    if has_convolutions(prepared.model.module):
        method = grammar.parse(config.method)
        state = begin(method, *prepared.model.initial())
        x, y = prepared.population.examples(0)
        data = ClientData(x, y, prepared.population.class_counts(y))
        faster = channels_last_is_faster(lambda last: trainer_for(prepared, method, last), broadcast_of(state), data)
        layout = "channels-last" if faster else "rows"
    return replace(prepared, config=replace(config, layout=layout))


def step_for(config: Config, population: Population) -> Callable[[StepRecipe], Step]:
    """How local steps are run: recorded once, then compiled or replayed; or eagerly."""
    if config.step == "eager":
        return EagerStep
    sizes = worth_recording(population.some_sizes, config.batch_size)
    if config.step == "traced":
        return lambda recipe: TracedStep(recipe, sizes)

    def make(recipe: StepRecipe) -> TracedStep:
        aside = all(mechanism.stands_aside for mechanism in recipe.mechanisms)
        setting = Setting.of(population.x, population.some_sizes) if aside else None
        return TracedStep(recipe, sizes, compile=True, setting=setting)

    return make


def engine_for(config: Config) -> Callable[[Bench], Engine]:
    """The engine that a config asks for."""
    if config.engine == "ray":
        check_installed()
        return lambda bench: ray_engine(bench, config.ray_address, config.workers, cores(), config.device)
    workers = config.workers or cores()
    if workers == 1 or not hasattr(os, "memfd_create"):
        return SerialEngine
    return lambda bench: WorkerEngine(bench, workers)
