"""Which memory layout of images is faster here: measured once, at the start of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import torch
from torch import nn

from fedkeep.local.step import Session
from fedkeep.rounds import Broadcast, ClientData, Trainer, opened

REPEATS, SECONDS = 5, 0.4  # at least so many steps in each layout, and more while this time lasts
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
    for session, x, y in sessions.values():
        session(x, y, len(y))  # records the step
    end = time.perf_counter() + SECONDS
    for repeat in count():
        if repeat >= REPEATS and time.perf_counter() > end:
            break
        for layout, (session, x, y) in sessions.items():
            started = time.perf_counter()
            session(x, y, len(y))
            best[layout] = min(best[layout], time.perf_counter() - started)
    return best[True] <= GAIN * best[False]
