"""The traced step: one local step recorded once as a list of tensor operations, then replayed.

A step in plain PyTorch spends most of its time on small models outside the matrix products: building the autograd
graph, looking modules up, making new tensors. `torch.fx` records the operations of one step (forward, backward,
corrections, optimiser) for one batch shape; `rewrite.py` folds the update of each weight into the product that makes
its gradient; the rest is replayed in inference mode. The eager step is its twin: equal up to rounding.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedkeep.local.compiled import Compiled, compile_graph
from fedkeep.local.rewrite import rewrite
from fedkeep.local.room import Passes, Room
from fedkeep.local.span import Setting, SpanStep, span_step
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
    span: SpanStep | None = None  # the same in the span of the examples

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
    setting: Setting | None = None  # of the clients, where all are small
    room: Room | None = None  # made with the first recorded step that can be run in the span of examples

    def span_steps(
        self,
        state: Callable[[], LocalState],
        constants: Constants,
        data: tuple[Tensor, Tensor],
        passes: Sequence[int],
        batch_size: int,
    ) -> dict[int, tuple[SpanStep, Program]]:
        """The steps, by batch size, of a client whose passes are so long, in the span of its examples.

        None at all if one of them cannot be done there, or if it does not pay.
        """
        x, y = data
        steps: dict[int, tuple[SpanStep, Program]] = {}
        for batch in {batch_size for length in passes if length >= batch_size} | {n % batch_size for n in passes} - {0}:
            program = self.program(state, constants, x[:batch], y[:batch])
            if program is None or program.span is None or not program.span.pays(passes[0], sum(passes)):
                return {}
            steps[batch] = program.span, program
        return steps

    def open(self, state: LocalState, constants: Constants) -> Session:
        return _TracedSession(self, state, constants)

    def program(self, state: Callable[[], LocalState], constants: Constants, x: Tensor, y: Tensor) -> Program | None:
        """The recorded step for tensors like these, or None where the eager one is to be used."""
        if self.broken or (self.batch_sizes is not None and y.shape[0] not in self.batch_sizes):
            return None
        key = _key(constants, x)
        if key not in self.programs:
            self.programs[key] = self._record(state(), constants, x, y)
        return self.programs[key]

    def _record(self, state: LocalState, constants: Constants, x: Tensor, y: Tensor) -> Program | None:
        try:
            program = record(self.recipe, state, constants, x, y, self.compile, self.setting)
            if program.compiled is not None and agrees(program, self.recipe, state, constants, x, y):
                return self._with_span(program, state, constants, x, y)
            program = replace(program, compiled=None)
            if agrees(program, self.recipe, state, constants, x, y):
                return program
            why = "its recorded step does not give the same weights"
        except Exception as error:  # whatever a user's model does while it is recorded
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self.broken = True
        warnings.warn(f"this model's step cannot be traced ({why}); going on eagerly, which is slower", stacklevel=2)
        return None

    def _with_span(self, program: Program, state: LocalState, constants: Constants, x: Tensor, y: Tensor) -> Program:
        """The program as it is, its form in the span of the examples only if that one agrees too."""
        if program.span is None or self.setting is None:
            return program
        name = list(state.w)[program.span.place]
        room = self.room or Room(program.span.layer, self.setting, name, state.w)
        if not agrees_in_span(room, program, self.recipe, state, constants, x, y):
            return replace(program, span=None)
        self.room = room
        return program


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


def _key(constants: Constants, x: Tensor) -> Any:
    """Tensors for which the same program can be used have the same key."""
    return tuple(x.shape), x.is_contiguous(), str(pack(constants.mechanisms)[1]) if constants.mechanisms else ""


def record(
    recipe: StepRecipe,
    state: LocalState,
    constants: Constants,
    x: Tensor,
    y: Tensor,
    compile: bool = False,
    setting: Setting | None = None,
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
    span = None
    if compiled is not None and setting is not None and count == len(state.w) and len(y) <= setting.most:
        with suppress(Exception):
            span = span_step(recorded.graph, count, setting)
    return Program(recorded.forward, *beforehand, compiled, span)


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


def agrees_in_span(
    room: Room, program: Program, recipe: StepRecipe, state: LocalState, constants: Constants, x: Tensor, y: Tensor
) -> bool:
    """Whether two passes over these tensors, there and back, do the same as eagerly."""
    orders = [np.arange(len(y)), np.arange(len(y))[::-1].copy()]
    eager = EagerStep(recipe).open(state, constants)
    for order in orders:
        eager(x[torch.from_numpy(order)], y[torch.from_numpy(order)], len(y))
    assert program.span is not None
    work = passes_of({len(y): (program.span, program)}, [constants], (x, y), orders[0], [orders], len(y))
    line = room.line_up(room.start(state.w), work)
    params, wanted = line.train(0).params(), eager.state().w
    return all(_close(params[name], wanted[name], state.w[name]) for name in wanted)


def passes_of(
    programs: Mapping[int, tuple[SpanStep, Program]],
    constants: Sequence[Constants],
    data: tuple[Tensor, Tensor],
    rows: np.ndarray,
    orders: Sequence[Sequence[np.ndarray]],
    batch_size: int,
) -> Passes:
    """What clients do with these steps: `constants` are of each of them, or one for all.

    The rows of the data stand in the order of each client's first pass.
    """
    x, y = data

    def steps(rows: np.ndarray) -> dict[int, tuple[SpanStep, Tensor]]:
        given = y.index_select(0, torch.from_numpy(rows))
        return {batch: (span, program.labels(given)) for batch, (span, program) in programs.items()}

    flat = next(iter(programs.values()))[1].examples(x)
    fixed = [[tensor.data_ptr() for tensor in pack(_nested_constants(one))[0]] for one in constants]
    return Passes(flat, rows, orders, batch_size, steps, fixed * (len(orders) // len(fixed)))


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
