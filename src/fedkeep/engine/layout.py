"""Which memory layout of images is faster here: measured once, at the start of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from fedkeep.local.step import Session
from fedkeep.rounds import Broadcast, ClientData, Trainer, opened

REPEATS = 5
GAIN = 0.95  # channels last must take at most this share of the usual layout's time


def has_convolutions(module: nn.Module) -> bool:
    """Whether the layout can matter."""
    return any(isinstance(part, nn.Conv2d) for part in module.modules())


def channels_last_is_faster(make: Callable[[bool], Trainer], broadcast: Broadcast, data: ClientData) -> bool:
    """Time a few local steps in both layouts, in turns, and compare the best of each."""
    best = {False: float("inf"), True: float("inf")}
    sessions: dict[bool, tuple[Session, torch.Tensor, torch.Tensor]] = {}
    for layout in best:
        trainer = make(layout)
        session, x = opened(trainer, broadcast, data)
        rows = torch.arange(min(trainer.plan.batch_size, 4 * len(data.y))) % len(data.y)
        sessions[layout] = (session, x[rows], data.y[rows])
    for repeat in range(REPEATS + 1):
        for layout, (session, x, y) in sessions.items():
            started = time.perf_counter()
            session(x, y, len(y))
            if repeat:  # the first step records
                best[layout] = min(best[layout], time.perf_counter() - started)
    return best[True] <= GAIN * best[False]
