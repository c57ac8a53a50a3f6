"""One local step as a pure function of named tensors, and its eager form.

    state, x, y, constants -> state

The same function is run eagerly here and traced in `traced.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedkeep.method import LocalOptimizer, Loss, Mechanism, StepContext
from fedkeep.model import Model
from fedkeep.tree import Params, Slots, add, clone

Gradient = Callable[[Callable[[Params], tuple[Tensor, Params]], Params], tuple[Params, Params]]
"""(w -> (loss, buffers), w) -> (gradient of the loss, buffers)"""


@dataclass(frozen=True)
class LocalState:
    """What changes from step to step."""

    w: Params
    buffers: Params
    optimizer: Slots
    track: dict[str, Slots]


@dataclass(frozen=True)
class Constants:
    """What is fixed during one client's round."""

    start: Params
    loss: Params
    mechanisms: dict[str, Slots]


class Session(Protocol):
    """One client's local training under way; may reuse the storage of the state it was opened with."""

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        """One step for each batch of `size` examples, in order; the last batch may be short."""
        ...

    def state(self) -> LocalState: ...


class Step(Protocol):
    """How local steps are run."""

    def open(self, state: LocalState, constants: Constants) -> Session: ...


@dataclass(frozen=True)
class StepRecipe:
    """Everything that determines a step, apart from tensors."""

    model: Model
    loss: Loss
    mechanisms: tuple[Mechanism, ...]
    optimizer: LocalOptimizer

    def initial(self, start: Params, buffers: Params) -> LocalState:
        """The state before the first step, with storage of its own."""
        track = {m.name: m.track_init(start) for m in self.mechanisms}
        return LocalState(clone(start), clone(buffers), self.optimizer.init(start), track)

    def apply(self, gradient: Gradient, state: LocalState, x: Tensor, y: Tensor, constants: Constants) -> LocalState:
        """Gradient of the loss, corrections, optimiser, tracking: the whole of local training."""

        def loss_of(w: Params) -> tuple[Tensor, Params]:
            logits, buffers = self.model.forward(w, state.buffers, x, train=True)
            return self.loss.value(logits, y, constants.loss), buffers

        of_loss, buffers = gradient(loss_of, state.w)
        total = of_loss
        lr = self.optimizer.lr
        contexts = {m.name: StepContext(constants.start, constants.mechanisms[m.name], lr) for m in self.mechanisms}
        for mechanism in self.mechanisms:
            correction = mechanism.correction(state.w, contexts[mechanism.name])
            if correction is not None:
                total = add(total, correction)
        w, optimizer = self.optimizer.step(state.w, total, state.optimizer)
        track = {m.name: m.track(state.track[m.name], state.w, of_loss, w, contexts[m.name]) for m in self.mechanisms}
        return LocalState(w, buffers, optimizer, track)


def autograd(loss_of: Callable[[Params], tuple[Tensor, Params]], w: Params) -> tuple[Params, Params]:
    """The gradient by plain autograd."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in w.items()}
    with torch.enable_grad():
        loss, buffers = loss_of(leaves)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    named = {
        name: torch.zeros_like(tensor) if gradient is None else gradient
        for (name, tensor), gradient in zip(leaves.items(), gradients, strict=True)
    }
    return named, buffers


@dataclass(frozen=True)
class EagerStep:
    """The plain step: slow, obvious, works for every model."""

    recipe: StepRecipe

    def open(self, state: LocalState, constants: Constants) -> Session:
        return _EagerSession(self.recipe, state, constants)


class _EagerSession:
    def __init__(self, recipe: StepRecipe, state: LocalState, constants: Constants) -> None:
        self._recipe, self._state, self._constants = recipe, state, constants

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        with torch.no_grad():
            for inputs, labels in zip(x.split(size), y.split(size), strict=True):
                self._state = self._recipe.apply(autograd, self._state, inputs, labels, self._constants)

    def state(self) -> LocalState:
        return self._state
