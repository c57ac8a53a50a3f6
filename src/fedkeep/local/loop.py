"""The only SGD loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedkeep.local.step import Constants, LocalState, Step
from fedkeep.method import Plan


def passes(examples: int, plan: Plan, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The examples of each pass over the data, shuffled; with a number of steps, the last pass may be cut short.

    >>> from fedkeep.local_opt import SGD
    >>> [len(p) for p in passes(5, Plan(SGD(0.1), batch_size=2, epochs=2), np.random.default_rng(0))]
    [5, 5]
    >>> [len(p) for p in passes(5, Plan(SGD(0.1), batch_size=2, steps=4), np.random.default_rng(0))]
    [5, 2]
    """
    left = plan.local_steps(examples) if examples else 0
    per_pass = -(-examples // plan.batch_size)
    while left > 0:
        order = rng.permutation(examples)
        yield order if left >= per_pass else order[: left * plan.batch_size]
        left -= per_pass


def train(
    step: Step,
    state: LocalState,
    x: Tensor,
    y: Tensor,
    constants: Constants,
    orders: Iterable[np.ndarray],
    batch_size: int,
    double_single: bool = False,
) -> LocalState:
    """Run a client's local steps: passes over its examples, each in its own order, the last short batch included.

    `double_single`: a batch of one example is shown twice, because batch norm needs two values per channel; the mean
    loss of the batch stays the same.
    """
    session = step.open(state, constants)
    for order in orders:
        rows = torch.from_numpy(order).to(x.device)
        if double_single:
            rows = doubled(rows, batch_size)
        size = 2 if double_single and batch_size == 1 else batch_size
        session(rows_of(x, rows), y.index_select(0, rows), size)
    return session.state()


def rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Some of the examples, in the same memory layout (torch's own `index_select` gives channels first).

    >>> images = torch.zeros(5, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    >>> rows_of(images, torch.tensor([4, 1])).stride() == images.stride()
    True
    """
    if x.dim() == 4 and not x.is_contiguous():
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


def doubled(rows: Tensor, batch_size: int) -> Tensor:
    """The examples of a pass, those that would make a batch of one shown twice.

    >>> doubled(torch.tensor([4, 2, 7]), batch_size=2)
    tensor([4, 2, 7, 7])
    >>> doubled(torch.tensor([4, 2]), batch_size=1)
    tensor([4, 4, 2, 2])
    """
    if batch_size == 1:
        return rows.repeat_interleave(2)
    return torch.cat([rows, rows[-1:]]) if len(rows) % batch_size == 1 else rows
