"""What a run will need of memory, said before it begins: what cannot fit is refused and does not die on the way."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkeep.engine.workers import AHEAD
from fedkeep.errors import ConfigError
from fedkeep.method import Method, Plan
from fedkeep.tree import Params, nbytes

SERVER_COPIES = 5  # of the model: the module's own, the global one, the best one, the sum's mean, the next one
SAVING_COPIES = 2  # of what a checkpoint holds: the tensors once more, and the bytes of the file
LOCAL_COPIES = 5  # of the model in local training: weights, gradient, change, and two while a step is tried out


@dataclass(frozen=True)
class Need:
    """Bytes that a run will need at its peak, by what they are for."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def describe(self) -> str:
        """The need in words, the largest part first.

        >>> Need({"the server": 1_000_000_000, "local training": 2_500_000_000}).describe()
        '3.5 GB (local training 2.5, the server 1.0)'
        """
        largest = sorted(self.parts.items(), key=lambda part: -part[1])
        words = ", ".join(f"{what} {size / 1e9:.1f}" for what, size in largest if size >= self.total / 100)
        return f"{self.total / 1e9:.1f} GB ({words})"


def need(
    method: Method, params: Params, buffers: Params, plan: Plan, cohort: int, workers: int = 1, cache: int = 0
) -> Need:
    """What a run of this method will need beside the data, from the sizes of its tensors alone.

    One client sends one model and what its mechanisms upload. A streaming aggregation holds log2(cohort) + 1 sums of
    these, and what waits for its turn where there are workers; any other holds what the whole cohort sent.
    """
    model, aggregate = nbytes(params) + nbytes(buffers), method.aggregate
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in params.items()}
    slots = sum(_size(m.server_init(shapes)) for m in method.mechanisms)
    kept = sum(_size(m.client_init(shapes)) for m in method.mechanisms)
    track = sum(_size(m.track_init(shapes)) for m in method.mechanisms)
    sent = model + sum(nbytes(params) for m in method.mechanisms for _ in m.uploads if not m.sends_numbers)
    server = model + slots + _size(method.server_opt.init(shapes))
    local = LOCAL_COPIES * model + _size(plan.optimizer.init(shapes)) + slots + 2 * kept + track + sent
    if aggregate.streaming:
        sums, at_once = "sums of updates", (math.ceil(math.log2(cohort)) + 1) * sent
    else:
        sums, at_once = f"the updates of all {cohort} clients", cohort * (sent + int(aggregate.copies * model))
    waiting = (AHEAD + 1) * workers * (sent + kept) + server if workers > 1 else 0
    return Need(
        {
            "the server": (SERVER_COPIES - 1) * model + server + SAVING_COPIES * (server + model),
            "local training": min(workers, cohort) * local,
            sums: at_once,
            "updates on their way": waiting,
            "client memories": min(cache, 2 * cohort * kept),
        }
    )


def refuse_if_short(method: Method, needed: Need, limit_gb: float = 0.0) -> None:
    """Refuse a run that needs more than there is; `limit_gb` in place of what is free."""
    available = int(limit_gb * 1e9) if limit_gb else free_memory()
    if available is None or needed.total <= available:
        return
    wholly = (
        ""
        if method.aggregate.streaming
        else (f"; {method.aggregate.name} must see all updates of a round at once, which fedavg and fednova need not")
    )
    there = "--memory-gb allows" if limit_gb else "are free"
    raise ConfigError(
        f"this run needs about {needed.describe()}, {available / 1e9:.1f} GB {there}{wholly}. Take fewer clients in a "
        "round (--cohort), fewer --workers or a smaller model; --memory-gb sets another limit"
    )


def free_memory() -> int | None:
    """Bytes that this process may still use; None where the system does not say."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit.isdigit():
            found.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError, IndexError):
        pass
    return min(found, default=None)


@dataclass(frozen=True)
class Peak:
    """The most memory that was in use at a time, in bytes: this process, and the largest of those it started."""

    process: int
    worker: int

    @staticmethod
    def now() -> Peak:
        unit = 1 if sys.platform == "darwin" else 1024
        who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return Peak(*(resource.getrusage(one).ru_maxrss * unit for one in who))


def _size(nested: Mapping[str, Any]) -> int:
    return sum(t.nbytes if isinstance(t, Tensor) else _size(t) for t in nested.values())
