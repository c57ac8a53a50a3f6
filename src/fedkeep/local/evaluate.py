"""A model and data -> which examples are right, and the summed loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkeep.local.forward import forward_of
from fedkeep.model import Model
from fedkeep.tree import Params

CHUNK = 500  # fixed, so that results do not depend on who evaluates


@dataclass(frozen=True)
class Judged:
    """The outcome of an evaluation, one entry per example."""

    correct: np.ndarray
    loss: float  # summed cross-entropy

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean()) if len(self.correct) else float("nan")


def logits_of(model: Model, params: Params, buffers: Params, x: Tensor) -> Tensor:
    """Logits in evaluation mode (batch norm uses its running statistics)."""
    with torch.inference_mode():
        forward = forward_of(model, params, buffers, x)
        if forward is not None:
            return forward(params, buffers, x)
        return torch.cat([model.forward(params, buffers, part, train=False)[0] for part in x.split(CHUNK)])


def right_of(model: Model, params: Params, buffers: Params, x: Tensor, y: Tensor) -> np.ndarray:
    """Whether a model is right on each example."""
    if len(y) == 0:
        return np.zeros(0, dtype=bool)
    return _right(logits_of(model, params, buffers, x), y)


def evaluate(model: Model, params: Params, buffers: Params, x: Tensor, y: Tensor) -> Judged:
    """Judge a model on examples with the plain softmax."""
    if len(y) == 0:
        return Judged(np.zeros(0, dtype=bool), 0.0)
    logits = logits_of(model, params, buffers, x)
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    return Judged(_right(logits, y), float(loss))


def _right(logits: Tensor, y: Tensor) -> np.ndarray:
    with torch.inference_mode():
        return (logits.argmax(1) == y).cpu().numpy()
