"""What each side works with: the model on both, examples on the client, test examples on the server.

Where the data is one of FedKeep's own sets, every client deals it as the simulator does and takes its own part, so that
both compute the same. Where clients bring their own examples, these never leave them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeep import grammar, models
from fedkeep.data.partition import Partition
from fedkeep.data.population import Population
from fedkeep.deploy.options import Options
from fedkeep.errors import ConfigError, DataError
from fedkeep.experiment.build import label_table, prepare, step_for
from fedkeep.experiment.config import Config
from fedkeep.method import Method
from fedkeep.model import Model
from fedkeep.rng import stream, torch_seeded
from fedkeep.rounds import Trainer, check
from fedkeep.simulate import with_meter

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class ServerScene:
    """What the server works with."""

    config: Config
    options: Options
    method: Method
    model: Model
    classes: int
    cohort_size: int
    test: Examples | None
    labels: dict[str, np.ndarray] | None  # who holds which label; None where only clients know
    shape: tuple[int, ...]  # of one example


@dataclass(frozen=True, eq=False)
class ClientScene:
    """What one client works with; its examples are those of client `index` of the population."""

    config: Config
    options: Options
    method: Method
    model: Model
    population: Population
    index: int
    name: str

    @property
    def classes(self) -> int:
        return self.population.classes

    def trainer(self) -> Trainer:
        make_step = step_for(self.config, self.population)
        return Trainer.of(self.model, self.method, self.config.plan, make_step, self.config.layout == "channels-last")

    def judged(self) -> Examples:
        """The examples on which this client judges models."""
        rows, _ = self.population.judging_rows(np.array([self.index]))
        index = torch.from_numpy(rows)
        return self.population.x.index_select(0, index), self.population.y.index_select(0, index)


def method_of(config: Config) -> Method:
    """The method, counting forgettable examples where forgetting is measured."""
    return with_meter(grammar.parse(config.method), config.forgetting)  # type: ignore[arg-type]


def server_scene(config: Config, options: Options) -> ServerScene:
    """Everything the server needs before round 1; every refusal happens here."""
    options.client_names(config.clients)
    if not options.load:
        prepared = prepare(config)
        test = (prepared.dataset.test_x, prepared.dataset.test_y)
        classes, labels = prepared.dataset.classes, label_table(prepared)
        shape = prepared.dataset.shape
        return ServerScene(
            config, options, method_of(config), prepared.model, classes, prepared.cohort_size, test, labels, shape
        )
    size = config.cohort_of(config.clients)
    check(grammar.parse(config.method), config.plan, size)
    test = None
    if options.test:
        test = examples_of(options.test, None, options, "test examples")
    model, shape = _own_model(config, options), options.example_shape
    return ServerScene(config, options, method_of(config), model, options.classes, size, test, None, shape)


def client_scene(config: Config, options: Options, name: str, load: str = "") -> ClientScene:
    """Everything a client needs; `load` is the node's own function, which comes before the federation's."""
    names = options.client_names(config.clients)
    if name not in names:
        raise ConfigError(f'client name "{name}" is not one of this federation: {", ".join(names[:20])}')
    index = names.index(name)
    if not options.load:
        prepared = prepare(config)
        return ClientScene(config, options, method_of(config), prepared.model, prepared.population, index, name)
    x, y = examples_of(load or options.load, name, options, f"examples of {name}")
    population = own_population(x, y, index, options.classes, config)
    return ClientScene(config, options, method_of(config), _own_model(config, options), population, index, name)


def own_population(x: Tensor, y: Tensor, index: int, classes: int, config: Config) -> Population:
    """A population of which only client `index` is here; what it holds out is drawn as in a simulation."""
    offsets = np.zeros(index + 2, dtype=np.int64)
    offsets[-1] = len(y)
    return Population.of(x, y, Partition(np.arange(len(y)), offsets), classes, config.validation, config.seed)


def _own_model(config: Config, options: Options) -> Model:
    if options.classes < 2:
        raise ConfigError(f"classes={options.classes}: with --load, give the number of classes, at least 2")
    with torch_seeded(stream(config.seed, "model")):
        module = models.build(config.model, options.example_shape, options.classes, config.norm)
    return Model.of(module, config.frozen)


def examples_of(reference: str, client: str | None, options: Options, what: str) -> Examples:
    """What a user's function returns, checked."""
    function = function_of(reference)
    try:
        found = function() if client is None else function(client)
    except Exception as error:
        raise DataError(f"{reference}: raised {type(error).__name__}: {error} instead of returning {what}") from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise DataError(f"{reference}: returned {type(found).__name__}, not a pair (x, y) of arrays or tensors")
    x, y = (value if isinstance(value, Tensor) else torch.from_numpy(np.array(value)) for value in found)
    return checked_examples(x, y, options, f"{reference} ({what})")


def checked_examples(x: Tensor, y: Tensor, options: Options, where: str) -> Examples:
    """Examples of the promised shape with labels of the promised classes."""
    shape = options.example_shape
    if tuple(x.shape[1:]) != shape or x.dim() < 2:
        raise DataError(f"{where}: x has shape {tuple(x.shape)}, not (n, {', '.join(map(str, shape))}); see --shape")
    if y.dim() != 1 or len(y) != len(x) or not len(y):
        raise DataError(
            f"{where}: y has shape {tuple(y.shape)} for {len(x)} examples; give one label for each, not none"
        )
    if y.is_floating_point() or y.is_complex():
        raise DataError(f"{where}: y holds {y.dtype}; give whole numbers 0 ... {options.classes - 1}")
    x, y = x.detach().float(), y.detach().long()
    if not bool(torch.isfinite(x).all()):
        raise DataError(f"{where}: x holds NaN or infinity; clean the examples first")
    if int(y.min()) < 0 or int(y.max()) >= options.classes:
        raise DataError(f"{where}: labels run from {int(y.min())} to {int(y.max())}, not 0 ... {options.classes - 1}")
    return x, y


def function_of(reference: str) -> Callable[..., Any]:
    """The function that FILE.py:FUNCTION or MODULE:FUNCTION names."""
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise ConfigError(f'"{reference}" names no function; write FILE.py:FUNCTION or MODULE:FUNCTION')
    try:
        module = _from_file(Path(place).expanduser()) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise ConfigError(f"{reference}: {place} cannot be imported ({type(error).__name__}: {error})") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{reference}: {place} has no function {name}")
    return function


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(f"fedkeep_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
