"""What runs on the nodes of a Ray cluster: the bench of a run, one thread, one core."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np
import torch

from fedkeep.engine.allocator import keep_freed_memory
from fedkeep.engine.base import Bench, portable
from fedkeep.engine.sealed import Sealed, opened, sealed
from fedkeep.errors import ConfigError
from fedkeep.local.traced import TracedStep
from fedkeep.rounds import begin, broadcast_of, warm_up


@dataclass(frozen=True)
class Greeting:
    """What a worker says of itself before it gets work."""

    node: str  # Ray's name of the node
    place: str  # its address
    versions: dict[str, str]
    processor: str  # which vector instructions torch uses: another choice rounds otherwise
    pid: int


def versions() -> dict[str, str]:
    """The versions that must be the same everywhere for results to be."""
    others = {name: metadata.version(name) for name in ("fedkeep", "llvmlite")}
    return {**others, "torch": torch.__version__, "numpy": np.__version__}


def greeting(node: str = "", place: str = "") -> Greeting:
    return Greeting(node, place, versions(), torch.backends.cpu.get_cpu_capability(), os.getpid())


def _greet() -> Greeting:
    import ray
    from ray.util import get_node_ip_address

    torch.set_num_threads(1)
    keep_freed_memory()
    return greeting(ray.get_runtime_context().get_node_id(), get_node_ip_address())


def packed(bench: Bench) -> Sealed:
    """A bench ready to travel: without recordings of its step, which every process makes for itself."""
    step = bench.trainer.step
    if isinstance(step, TracedStep):
        step = replace(step, programs={}, room=None)
    return sealed(replace(bench, trainer=replace(bench.trainer, step=step)))


def unpacked(bench: Sealed, device: str = "cpu") -> Bench:
    """The bench in another process, its step recorded from the same tensors as at home."""
    made: Bench = opened(bench, device=device)
    made.trainer.model.module.to(device)
    trainer = made.trainer
    warm_up(trainer, broadcast_of(begin(trainer.method, *trainer.model.initial())), made.client_data(0))
    return made


class BenchWorker:
    """An actor that trains clients and judges models. Data is read where it lies in the node's shared memory."""

    def __init__(self, bench: Sealed, device: str = "cpu") -> None:
        self._sealed, self._device = bench, device
        self._bench: Bench | None = None
        self._shared: tuple[int, Any] = (0, None)

    def hello(self) -> tuple[Exception | None, Greeting | None]:
        """Get ready."""
        try:
            me = _greet()
            if self._device != "cpu" and not torch.cuda.is_available():
                raise ConfigError(
                    f"node {me.place}: its torch finds no GPU; install a torch with CUDA, or --device cpu"
                )
            self._bench = unpacked(self._sealed, self._device)
            return None, me
        except Exception as error:
            return portable(error), None

    def do(
        self, kind: str, arguments: tuple[Any, ...], number: int, shared: Sealed, own: Sealed
    ) -> tuple[Exception | None, Sealed | None]:
        """One piece of work. What is shared has a number, so that several pieces open it once."""
        assert self._bench is not None
        try:
            if self._shared[0] != number:
                self._shared = (number, opened(shared, own=True, device=self._device))
            private = opened(own, own=True, device=self._device)
            return None, sealed(perform(self._bench, kind, arguments, self._shared[1], private))
        except Exception as error:
            return portable(error), None


def perform(bench: Bench, kind: str, arguments: tuple[Any, ...], shared: Any, own: Any) -> Any:
    """Do a piece of work at a bench."""
    if kind == "train":
        broadcast, rows = shared
        return bench.run_group(broadcast, arguments[0], own, rows)
    if kind == "judge":
        params, buffers = shared
        return bench.judge(params, buffers, *arguments)
    model, client = arguments
    params, buffers = shared[model]
    return bench.score(params, buffers, client)


class JobWorker:
    """An actor that does whole runs, one after another."""

    def hello(self) -> tuple[Exception | None, Greeting | None]:
        """Get ready; what is left of runs that are cut off lies where Ray's own leavings lie."""
        from ray._private import worker

        node = worker._global_node
        tempfile.tempdir = node.get_session_dir_path() if node else None
        return None, _greet()

    def do(self, function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
        """The answers of a generator function, one by one."""
        yield from function(*arguments)
