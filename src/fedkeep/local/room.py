"""Where clients are trained in the span of their examples, one after another, in the same memory.

What is to be done for many clients is written down as a table of calls and then done by one: between two clients no
Python runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeep.local.span import LARGEST, Setting, SpanStep, turned
from fedkeep.native import span as kernels
from fedkeep.native.arrays import ALIGN
from fedkeep.native.emit import Kernel, Program, Value, address, player
from fedkeep.native.span import Layer
from fedkeep.tree import Params

FLOAT, LONG = 4, 8  # bytes


class Slot(IntEnum):
    """What the kernels find where in a client's frame."""

    POOL = 0  # the examples of all clients
    ROWS = auto()  # those of this client
    COUNTS = auto()  # how many; columns in which any differs from the typical one; a batch, 0 if passes follow
    TYPICAL = auto()
    DIFFERENCES = auto()  # from the typical example
    MARKS = auto()  # where there are any
    COLUMNS = auto()
    LISTED = auto()
    WEIGHT = auto()  # of the layer, before
    TURNED = auto()  # the same, turned
    APPLIED = auto()  # the layer's outputs, before
    PRODUCTS = auto()  # inner products of examples
    NUMBERS = auto()  # all that steps change: coefficients, then the other weights
    OTHERS = auto()  # the other weights, before
    SQUARES = auto()  # the sum of the squares of all numbers
    FACTOR = auto()
    TOTAL = auto()  # sums over clients
    OTHERS_TOTAL = auto()
    TOTALS = auto()
    WRITTEN = auto()  # the layer's weight, after


class Call(IntEnum):
    """What can be done for a client, in this order."""

    BEGIN = 0
    WHOLE = auto()  # the steps of whole batches
    SHORT = auto()  # that of the last short batch
    CHECK = auto()
    ADD = auto()
    WRITE = auto()


OURS = [Call.BEGIN, Call.CHECK, Call.ADD, Call.WRITE]  # the others depend on batches

Steps = Mapping[int, tuple[SpanStep, Tensor]]
"""By batch size, with the labels of some rows in the form that the step wants."""


@dataclass(frozen=True)
class Passes:
    """What some clients do: passes over their examples."""

    x: Tensor  # flat examples
    rows: np.ndarray  # which of them, client by client, in the order of the first pass
    orders: Sequence[Sequence[np.ndarray]]  # for each client and pass, places among its own examples
    batch_size: int
    steps: Callable[[np.ndarray], Steps]  # of a pass over some rows
    fixed: Sequence[Sequence[int]]  # for each client, addresses of what steps read beside their own

    @property
    def sizes(self) -> list[int]:
        """How many rows each client has."""
        return [len(first) for first, *_ in self.orders]


@dataclass(frozen=True, eq=False)
class Start:
    """A global model as clients start from it."""

    weight: Tensor  # of the layer, [outputs, inputs]
    turned: Tensor  # the same turned, and below what the typical example gives
    others: Tensor  # all other weights in one vector


class Room:
    """Memory for one client at a time, and kernels that work in it."""

    def __init__(self, layer: Layer, setting: Setting, name: str, params: Params) -> None:
        self.layer, self.name, self.typical = layer, name, setting.typical
        self._shapes: dict[str, tuple[int, torch.Size]] = {}
        size = 0
        for key, tensor in params.items():
            if key != name:
                self._shapes[key] = size, tensor.shape
                size += -(-tensor.numel() * FLOAT // ALIGN) * ALIGN // FLOAT
        coefficients = layer.most * layer.outputs
        self._size, self._offset = size, -(-coefficients * FLOAT // ALIGN) * ALIGN // FLOAT
        memory = {
            Slot.TYPICAL: self.typical,
            Slot.DIFFERENCES: torch.zeros(layer.most, layer.inputs),
            Slot.MARKS: torch.zeros(layer.words, layer.inputs, dtype=torch.int32),
            Slot.COLUMNS: torch.zeros(layer.inputs, dtype=torch.int64),
            Slot.LISTED: torch.zeros(layer.inputs, dtype=torch.int64),
            Slot.APPLIED: torch.zeros(layer.most, layer.outputs),
            Slot.PRODUCTS: torch.zeros(layer.most, layer.most),
            Slot.NUMBERS: torch.zeros(self._offset + size),
            Slot.TOTALS: torch.zeros(layer.outputs),
        }
        self._memory = memory
        self._frame = np.zeros(len(Slot), np.int64)
        for slot, tensor in memory.items():
            self._frame[slot] = tensor.data_ptr()
        self.others = memory[Slot.NUMBERS][self._offset :]
        self.coefficients = memory[Slot.NUMBERS][:coefficients].view(layer.most, layer.outputs)
        self._programs = self._compile()
        self._calls = [address(program) for program in self._programs]
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def _compile(self) -> list[Any]:
        """What begins a client's training, checks its numbers, adds up its change, writes out its weights."""
        layer, size, offset = self.layer, self._size, self._offset
        n = Slot
        begin = [
            (kernels.gather, (layer,), (n.POOL, n.TYPICAL, n.ROWS, n.COUNTS, n.DIFFERENCES)),
            (kernels.mark, (layer,), (n.DIFFERENCES, n.COUNTS, n.MARKS, n.COLUMNS)),
            (
                kernels.apply,
                (layer,),
                (n.DIFFERENCES, n.COUNTS, n.MARKS, n.COLUMNS, n.LISTED, n.TURNED, n.APPLIED),
            ),
            (kernels.inner_products, (layer,), (n.DIFFERENCES, n.TYPICAL, n.COUNTS, n.PRODUCTS)),
            (kernels.reset, (offset, size), (n.OTHERS, n.NUMBERS)),
        ]
        check = [(kernels.squares, (offset + size,), (n.NUMBERS, n.SQUARES))]
        add = [
            (
                kernels.add_span,
                (layer,),
                (n.DIFFERENCES, n.COUNTS, n.MARKS, n.COLUMNS, n.NUMBERS, n.FACTOR, n.TOTAL),
            ),
            (kernels.add_change, (size, offset), (n.OTHERS, n.NUMBERS, n.FACTOR, n.OTHERS_TOTAL)),
        ]
        write = [
            (
                kernels.write_out,
                (layer,),
                (n.DIFFERENCES, n.TYPICAL, n.COUNTS, n.NUMBERS, n.WEIGHT, n.TOTALS, n.WRITTEN),
            ),
        ]
        return [_compiled(program) for program in (begin, check, add, write)]

    def start(self, params: Params) -> Start:
        """A global model as clients start from it."""
        others = torch.zeros(self._size)
        for key, tensor in self.named(others).items():
            tensor.copy_(params[key])
        weight = params[self.name].contiguous()
        return Start(weight, turned(weight, self.typical), others)

    def named(self, others: Tensor) -> Params:
        """The weights beside the layer's, as views of one vector."""
        return {key: others[at : at + math.prod(shape)].view(shape) for key, (at, shape) in self._shapes.items()}

    def empty(self) -> tuple[Tensor, Tensor]:
        """Sums of changes, still empty: the layer's, with a row for the typical example, and that of all others."""
        return torch.zeros(self.layer.inputs + 1, self.layer.outputs), torch.zeros(self._size)

    def line_up(self, start: Start, work: Passes) -> LineUp:
        """What is to be done for these clients, written down."""
        sizes = np.array(work.sizes)
        count, each = len(sizes), np.arange(len(sizes))
        firsts = np.cumsum(sizes) - sizes
        once = np.array([len(passes) == 1 for passes in work.orders])
        counts = np.zeros((count, 3), np.int64)
        counts[:, 0], counts[:, 2] = sizes, work.batch_size * once
        numbers = np.zeros((count, 2), np.float32)  # squares, factor
        frames = np.empty((count, len(Slot)), np.int64)
        frames[:] = self._frame
        frames[:, Slot.POOL] = work.x.data_ptr()
        frames[:, Slot.ROWS] = work.rows.ctypes.data + firsts * LONG
        frames[:, Slot.COUNTS] = counts.ctypes.data + each * (3 * LONG)
        frames[:, Slot.WEIGHT], frames[:, Slot.TURNED] = start.weight.data_ptr(), start.turned.data_ptr()
        frames[:, Slot.OTHERS] = start.others.data_ptr()
        frames[:, Slot.SQUARES] = numbers.ctypes.data + each * (2 * FLOAT)
        frames[:, Slot.FACTOR] = frames[:, Slot.SQUARES] + FLOAT
        table = np.zeros((count, len(Call), 3), np.int64)
        table[:, OURS, 0] = self._calls
        table[:, OURS, 1] = (frames.ctypes.data + each * (len(Slot) * LONG))[:, None]
        table[:, OURS, 2] = 1
        steps = work.steps(work.rows)
        moving = [(one, one.copy()) for one in self._steps(work.batch_size, steps, work.fixed, sizes, firsts, table)]
        return LineUp(self, work, start, table, frames, numbers, moving, bool(once.all()), (counts, steps))

    def _steps(
        self,
        batch_size: int,
        steps: Steps,
        fixed: Sequence[Sequence[int]],
        sizes: np.ndarray,
        firsts: np.ndarray,
        table: np.ndarray,
    ) -> list[np.ndarray]:
        """Write down the steps of a pass, whole batches and the last short one; returns their frames."""
        room = ALIGN + max(step.compiled.workspace for step, _ in steps.values())
        if len(self._workspace) < room:
            self._workspace = torch.empty(room, dtype=torch.uint8)
        whole = sizes // batch_size
        frames = []
        for size, (step, labels) in steps.items():
            full = size == batch_size
            wanted = whole > 0 if full else sizes % batch_size == size
            before = np.zeros_like(sizes) if full else whole * batch_size
            frame = self._step_frames(step, labels, fixed, firsts + before, before)
            place = table[:, Call.WHOLE if full else Call.SHORT]
            place[wanted, 0] = address(step.compiled.run)
            place[wanted, 1] = (frame.ctypes.data + np.arange(len(sizes)) * frame.strides[0])[wanted]
            place[wanted, 2] = whole[wanted] if full else 1
            frames.append(frame)
        return frames

    def _step_frames(
        self, step: SpanStep, labels: Tensor, fixed: Sequence[Sequence[int]], rows: np.ndarray, before: np.ndarray
    ) -> np.ndarray:
        """The frames of a step that begins, for each client, at a row of the labels and at an example of the room."""
        numbers = int(self._frame[Slot.NUMBERS])
        weights = [numbers + (self._offset + at) * FLOAT for at, _ in self._shapes.values()]
        weights.insert(step.place, numbers)
        fixed_count, count = len(fixed[0]), len(rows)
        frames = np.empty((count, len(weights) + fixed_count + 5), np.int64)
        frames[:, : len(weights)] = weights
        frames[:, step.place] += before * self.layer.outputs * FLOAT
        frames[:, len(weights) : len(weights) + fixed_count] = fixed
        frames[:, -5] = self._frame[Slot.APPLIED] + before * self.layer.outputs * FLOAT
        frames[:, -4] = labels.data_ptr() + rows * labels.stride(0) * labels.element_size()
        frames[:, -3] = self._frame[Slot.PRODUCTS] + before * self.layer.most * FLOAT
        frames[:, -2] = numbers
        frames[:, -1] = -(-self._workspace.data_ptr() // ALIGN) * ALIGN
        return frames

    def again(self, work: Passes, client: int, rows: np.ndarray) -> None:
        """Another pass of the client that is here, over rows in the order in which they are here."""
        table, nothing = np.zeros((1, len(Call), 3), np.int64), np.zeros(1, np.int64)
        steps = work.steps(rows)
        frames = self._steps(work.batch_size, steps, [work.fixed[client]], np.array([len(rows)]), nothing, table)
        player()(table[0, Call.WHOLE :].ctypes.data, 2)
        del frames, steps  # not before: the table points to them

    def reorder(self, order: Tensor) -> None:
        """Put what belongs to the examples into another order; what comes to place i is that of order[i]."""
        count = len(order)
        for rows in (self.coefficients, self._memory[Slot.APPLIED]):
            rows[:count] = rows.index_select(0, order)
        products = self._memory[Slot.PRODUCTS]
        products[:count, :count] = products.index_select(0, order).index_select(1, order)


@dataclass(frozen=True, eq=False)
class LineUp:
    """Clients that wait for their training, and the table of what is to be done for each of them."""

    room: Room
    work: Passes
    start: Start
    table: np.ndarray  # [client, call, (function, frame, times)]
    frames: np.ndarray
    numbers: np.ndarray
    moving: Sequence[tuple[np.ndarray, np.ndarray]]  # frames of steps, which go on with batches; as they were
    once: bool  # each client makes one pass
    held: Any  # memory that frames point to

    def train(self, client: int) -> Spanned:
        """Train one client."""
        self._ready(range(client, client + 1))
        self._play(client, Call.BEGIN, Call.CHECK)
        if len(self.work.orders[client]) > 1:
            self._go_on(client)
            self._play(client, Call.CHECK, Call.CHECK)
        return Spanned(self, client)

    def train_and_add(self, clients: range, factors: Sequence[float], sums: tuple[Tensor, Tensor]) -> bool:
        """Train neighbours and add their changes up; False if one of them is not finite, and so the sum neither."""
        if self.once:
            self._ready(clients)
            self._into(clients, factors, sums)
            table = np.ascontiguousarray(self.table[clients.start : clients.stop, : Call.ADD + 1])
            player()(table.ctypes.data, table.shape[0] * table.shape[1])
        else:
            for client, factor in zip(clients, factors, strict=True):
                self.train(client)
                self.add(client, factor, sums)
        return all(self.finite(client) for client in clients)

    def add(self, client: int, factor: float, sums: tuple[Tensor, Tensor]) -> None:
        """Add up the change of the client that was trained last."""
        self._into(range(client, client + 1), [factor], sums)
        self._play(client, Call.ADD, Call.ADD)

    def write(self, client: int) -> Params:
        """The weights of the client that was trained last."""
        room = self.room
        weight, others = torch.empty_like(self.start.weight), room.others.clone()
        self.frames[client, Slot.WRITTEN] = weight.data_ptr()
        self._play(client, Call.WRITE, Call.WRITE)
        return {room.name: weight, **room.named(others)}

    def finite(self, client: int) -> bool:
        """Whether a trained client's numbers are finite, and far from not being so."""
        return bool(self.numbers[client, 0] < LARGEST**2)

    def _go_on(self, client: int) -> None:
        """The passes after the first, which saw all examples: the room follows the order of each, and comes back."""
        first, *later = self.work.orders[client]
        before = sum(self.work.sizes[:client])
        rows = self.work.rows[before : before + len(first)]
        place, now = np.argsort(first), np.arange(len(first))
        for order in later:
            here = place[order]
            wanted = np.concatenate([here, np.setdiff1d(now, here)])
            self.room.reorder(torch.from_numpy(np.argsort(now)[wanted]))
            now = wanted
            self.room.again(self.work, client, rows[here])
        self.room.reorder(torch.from_numpy(np.argsort(now)))

    def _ready(self, clients: range) -> None:
        for frames, fresh in self.moving:
            frames[clients.start : clients.stop] = fresh[clients.start : clients.stop]

    def _into(self, clients: range, factors: Sequence[float], sums: tuple[Tensor, Tensor]) -> None:
        here = slice(clients.start, clients.stop)
        self.frames[here, Slot.TOTAL], self.frames[here, Slot.OTHERS_TOTAL] = (total.data_ptr() for total in sums)
        self.numbers[here, 1] = factors

    def _play(self, client: int, first: Call, last: Call) -> None:
        player()(self.table[client, first].ctypes.data, last - first + 1)


@dataclass(frozen=True)
class Spanned:
    """A client's model after its training; valid until the next one is trained in the same room."""

    line: LineUp
    client: int  # its place in the line

    @property
    def finite(self) -> bool:
        return self.line.finite(self.client)

    def add_to(self, total: Tensor, others: Tensor, factor: float) -> None:
        """Add the change of the model to sums: the layer's to what `weight_of` takes, that of the rest."""
        self.line.add(self.client, factor, (total, others))

    def params(self) -> Params:
        """The model's weights, written out."""
        return self.line.write(self.client)


def weight_of(total: Tensor, typical: Tensor) -> Tensor:
    """A sum of changes as a change of the layer's weight [outputs, inputs]."""
    return total[:-1].t().contiguous().addr_(total[-1], typical)


def _compiled(calls: Sequence[tuple[Callable[..., None], tuple[Any, ...], tuple[Slot, ...]]]) -> Any:
    program = Program()
    for write, arguments, slots in calls:
        with program.kernel() as kernel:
            write(kernel, *arguments, *_pointers(kernel, slots))
    return program.compile({})


def _pointers(kernel: Kernel, slots: Sequence[Slot]) -> list[Value]:
    return [kernel.pointer(int(slot), 0) for slot in slots]
