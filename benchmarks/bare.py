"""Torch's limit in a race: the matrix products and convolutions of a workload's steps, and nothing else.

They are taken from FedKeep's recorded step and called again and again on the same tensors, as often as a round needs
them, in one process with one thread per core: no data, no activation, no sum over clients. Whoever computes the same
step with torch's library cannot be faster; FedKeep's own kernels can.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import fx
from turns import OPTIONS, Turns

from fedkeep import grammar
from fedkeep.engine.allocator import keep_freed_memory
from fedkeep.experiment.build import Prepared, cores, prepare, resolved
from fedkeep.experiment.config import Config
from fedkeep.local.step import Constants, StepRecipe
from fedkeep.local.traced import record
from fedkeep.model import laid_out
from fedkeep.packing import pack

HEAVY = {
    torch.mm,
    torch.addmm,
    torch.Tensor.addmm_,
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
}
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Listening(fx.Interpreter):
    """Runs a recorded step and writes its heavy calls down."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.calls: list[Call] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in HEAVY:
            self.calls.append((target, args, kwargs))
        return super().call_function(target, args, kwargs)


def heavy_calls(prepared: Prepared) -> list[Call]:
    """Those of one step of plain training with a full batch."""
    config, people, method = prepared.config, prepared.population, grammar.parse(prepared.config.method)
    lay = laid_out if config.layout == "channels-last" else (lambda nested: nested)
    params, buffers = prepared.model.initial()
    x, y = people.examples(0)
    x, y = lay(x[: config.batch_size]), y[: config.batch_size]
    recipe = StepRecipe(prepared.model, method.loss, method.mechanisms, config.plan.optimizer)
    constants = Constants(lay(params), method.loss.adjust(people.class_counts(y)), {})
    state = recipe.initial(constants.start, buffers)
    program = record(recipe, state, constants, x, y)
    listening = Listening(program.step.__self__)  # type: ignore[attr-defined]
    with torch.inference_mode():
        listening.run(*pack(vars(state))[0], *pack(vars(constants))[0], program.examples(x), program.labels(y))
    return listening.calls


def serve(calls: list[Call], steps: int, line: Any) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    line.send(None)
    while line.recv():
        with torch.inference_mode():
            for _ in range(steps):
                for function, args, kwargs in calls:
                    function(*args, **kwargs)
        line.send(None)


def main() -> None:
    torch.set_num_threads(1)
    turns, given = Turns(), json.loads(os.environ[OPTIONS])
    prepared = resolved(prepare(Config(**given["run"])))
    config = prepared.config
    each = config.plan.local_steps(prepared.population.some_sizes[0])
    calls, processes = heavy_calls(prepared), cores()
    steps = -(-prepared.cohort_size * each // processes)
    context = multiprocessing.get_context("fork")
    lines = []
    for _ in range(processes):
        mine, theirs = context.Pipe()
        context.Process(target=serve, args=(calls, steps, theirs), daemon=True).start()
        lines.append(mine)
    for line in lines:
        line.recv()
    turns.ready(version=torch.__version__, how=f"{processes} processes x 1 thread", layout=config.layout)
    for _ in range(config.rounds - 1):
        turns.start()
        for line in lines:
            line.send(True)
        for line in lines:
            line.recv()
        turns.stop()
    turns.end({})
    for line in lines:
        line.send(False)


if __name__ == "__main__":
    main()
