"""The traced step: one local step recorded once as a list of tensor operations, then replayed.

A step in plain PyTorch spends most of its time on small models outside the matrix products: building the autograd
graph, looking modules up, making new tensors. `torch.fx` records the operations of one step (forward, backward,
corrections, optimiser) for one batch shape; `rewrite.py` folds the update of each weight into the product that makes
its gradient; the rest is replayed in inference mode. The eager step is its twin: equal up to rounding.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedkeep.local.compiled import Compiled, compile_graph
from fedkeep.local.rewrite import rewrite
from fedkeep.local.step import Constants, EagerStep, LocalState, Session, StepRecipe, autograd
from fedkeep.packing import pack, unpack


@dataclass(frozen=True)
class Program:
    """A recorded step: (state tensors..., constant tensors..., x, y) -> state tensors.

    May write into the state tensors it is given. What is done to examples or labels alone is done for all batches at
    once.
    """

    step: Callable[..., Sequence[Tensor]]
    examples: Callable[[Tensor], Tensor]
    labels: Callable[[Tensor], Tensor]
    compiled: Compiled | None = None  # the same as machine code

    def __call__(
        self, tensors: Sequence[Tensor], fixed: Sequence[Tensor], x: Tensor, y: Tensor, size: int
    ) -> Sequence[Tensor]:
        """One step for each batch of `size` examples."""
        if self.compiled is not None:
            return self.compiled([*tensors, *fixed, self.examples(x), self.labels(y)], len(y) // size)[: len(tensors)]
        step = self.step
        for inputs, labels in zip(self.examples(x).split(size), self.labels(y).split(size), strict=True):
            tensors = step(*tensors, *fixed, inputs, labels)
        return tensors


def worth_recording(sizes: Sequence[int], batch_size: int, most: int = 8) -> frozenset[int]:
    """The batch sizes to record for clients of these sizes: the full batch and the commonest last batches.

    >>> sorted(worth_recording([25, 25, 30, 7], batch_size=10))
    [5, 7, 10]
    """
    tails = Counter(int(size) % batch_size for size in sizes)
    common = [tail for tail, _ in sorted(tails.items(), key=lambda item: (-item[1], item[0])) if tail]
    full = [batch_size] if max(sizes, default=0) >= batch_size else []
    return frozenset([*full, *common[:most]])


@dataclass
class TracedStep:
    """Steps recorded per batch size; what cannot be recorded runs eagerly and says so once.

    `batch_sizes`: the batch sizes worth recording (None: all). It must not depend on who runs the step, or results
    would: a recorded step and an eager one differ in rounding.
    """

    recipe: StepRecipe
    batch_sizes: frozenset[int] | None = None
    programs: dict[Any, Program | None] = field(default_factory=dict)
    broken: bool = False
    compile: bool = False  # to machine code, where every operation is known

    def open(self, state: LocalState, constants: Constants) -> Session:
        return _TracedSession(self, state, constants)

    def program(self, state: Callable[[], LocalState], constants: Constants, x: Tensor, y: Tensor) -> Program | None:
        """The recorded step for tensors like these, or None where the eager one is to be used."""
        if self.broken or (self.batch_sizes is not None and len(y) not in self.batch_sizes):
            return None
        key = (tuple(x.shape), x.is_contiguous(), _shape_of(constants.mechanisms))
        if key not in self.programs:
            self.programs[key] = self._record(state(), constants, x, y)
        return self.programs[key]

    def _record(self, state: LocalState, constants: Constants, x: Tensor, y: Tensor) -> Program | None:
        try:
            program = record(self.recipe, state, constants, x, y, self.compile)
            if program.compiled is not None and agrees(program, self.recipe, state, constants, x, y):
                return program
            program = replace(program, compiled=None)
            if agrees(program, self.recipe, state, constants, x, y):
                return program
            why = "its recorded step does not give the same weights"
        except Exception as error:  # whatever a user's model does while it is recorded
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self.broken = True
        warnings.warn(f"this model's step cannot be traced ({why}); going on eagerly, which is slower", stacklevel=2)
        return None


class _TracedSession:
    def __init__(self, step: TracedStep, state: LocalState, constants: Constants) -> None:
        self._step, self._constants = step, constants
        self._tensors, self._skeleton = pack(_nested(state))
        self._fixed, _ = pack(_nested_constants(constants))
        self._programs: dict[int, Program | None] = {}

    def __call__(self, x: Tensor, y: Tensor, size: int) -> None:
        full = len(y) - len(y) % size
        if full:
            self._run(x[:full], y[:full], size)
        if full < len(y):
            self._run(x[full:], y[full:], len(y) - full)

    def _run(self, x: Tensor, y: Tensor, size: int) -> None:
        if size not in self._programs:
            self._programs[size] = self._step.program(self.state, self._constants, x[:size], y[:size])
        program = self._programs[size]
        if program is None:
            session = EagerStep(self._step.recipe).open(self.state(), self._constants)
            session(x, y, size)
            self._tensors, self._skeleton = pack(_nested(session.state()))
        else:
            with torch.inference_mode():
                self._tensors = program(self._tensors, self._fixed, x, y, size)

    def state(self) -> LocalState:
        ordinary = [t.clone() if t.is_inference() else t for t in self._tensors]  # autograd takes no inference tensors
        return LocalState(**unpack(ordinary, self._skeleton))


def _nested(state: LocalState) -> dict[str, Any]:
    return {"w": state.w, "buffers": state.buffers, "optimizer": state.optimizer, "track": state.track}


def _nested_constants(constants: Constants) -> dict[str, Any]:
    return {"start": constants.start, "loss": constants.loss, "mechanisms": constants.mechanisms}


def _shape_of(mechanisms: dict[str, Any]) -> str:
    return str(pack(mechanisms)[1])


def record(
    recipe: StepRecipe, state: LocalState, constants: Constants, x: Tensor, y: Tensor, compile: bool = False
) -> Program:
    """Record one step on tensors like these."""
    tensors, skeleton = pack(_nested(state))
    fixed, fixed_skeleton = pack(_nested_constants(constants))
    count = len(tensors)

    def flat(*arguments: Tensor) -> list[Tensor]:
        now = LocalState(**unpack(arguments[:count], skeleton))
        given = Constants(**unpack(arguments[count:-2], fixed_skeleton))
        return pack(_nested(recipe.apply(autograd, now, arguments[-2], arguments[-1], given)))[0]

    with torch.no_grad():
        trace = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)
        recorded = trace(*tensors, *fixed, x, y)
    beforehand = rewrite(recorded.graph, count)
    recorded.recompile()
    compiled = None
    if compile:
        with suppress(Exception):  # an operation without a kernel, or used in a way that none is written for
            compiled = compile_graph(recorded.graph, moving=(-2, -1))
    return Program(recorded.forward, *beforehand, compiled)


def agrees(program: Program, recipe: StepRecipe, state: LocalState, constants: Constants, x: Tensor, y: Tensor) -> bool:
    """Whether a recorded step does what the eager one does, on these tensors."""
    random = torch.get_rng_state()
    eager = EagerStep(recipe).open(state, constants)
    eager(x, y, len(y))
    wanted, _ = pack(_nested(eager.state()))
    torch.set_rng_state(random)
    tensors, _ = pack(_nested(state))
    fixed, _ = pack(_nested_constants(constants))
    with torch.inference_mode():
        got = program([t.clone() for t in tensors], fixed, x, y, len(y))
    torch.set_rng_state(random)
    return all(_close(a, b, before) for a, b, before in zip(got, wanted, tensors, strict=True))


def _close(got: Tensor, wanted: Tensor, before: Tensor) -> bool:
    """Equal up to rounding, seen against the size of the change that the step made.

    One element in a hundred may differ by more: where a gradient is all rounding, Adam makes a whole step of it.
    """
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    if not wanted.is_floating_point():
        return bool((got == wanted).all())
    if not wanted.numel() or not bool(torch.isfinite(wanted).all()):
        return True  # a step that overflows has no rounding to compare
    allowed = 1e-3 * (wanted - before).abs().max() + 1e-5 * wanted.abs().max() + 1e-8
    return int(((got - wanted).abs() > allowed).sum()) <= wanted.numel() // 100
