"""A forward pass whose first layer is dense: what examples have in common with a typical one is not multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx import Node

from fedkeep.local import span
from fedkeep.local.compiled import Compiled, compile_graph
from fedkeep.local.rewrite import VIEWS
from fedkeep.native import span as kernels
from fedkeep.native.arrays import ALIGN
from fedkeep.native.emit import Program, address, player
from fedkeep.native.span import Layer
from fedkeep.tree import Params

CHUNK = 120  # examples whose first layer is computed at a time
SHOWS = VIEWS | {torch.Tensor.view}
FLOAT, LONG = 4, 8  # bytes


@dataclass(frozen=True, eq=False)
class SparseForward:
    """The logits of a model in evaluation mode; an example's do not depend on those beside it."""

    layer: Layer
    name: str  # of the layer's weight
    typical: Tensor
    first: Any  # what the layer gives before its bias, for a chunk of examples
    rest: Compiled  # the logits from that
    names: tuple[str, ...]  # of weights and buffers, in the order of the inputs of `rest`

    def __call__(self, params: Params, buffers: Params, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError(f"compiled for {torch.float32}, given {x.dtype}")
        tensors = {**params, **buffers}
        weight, layer, (rows, classes) = tensors[self.name], self.layer, self.rest.inputs[0].shape
        turned = span.turned(weight, self.typical)
        count = x.shape[0]
        logits = torch.empty(-(-count // rows) * rows, classes)
        chunks = [(first, min(layer.most, count - first)) for first in range(0, count, layer.most)]
        numbers, counts = np.arange(count), np.array([(size, 0) for _, size in chunks])
        differences, marks, columns, listed, applied, room = (
            torch.empty(layer.most, layer.inputs),
            torch.empty(layer.words, layer.inputs, dtype=torch.int32),
            torch.empty(layer.inputs, dtype=torch.int64),
            torch.empty(layer.inputs, dtype=torch.int64),
            torch.empty(layer.most, layer.outputs),
            torch.empty(self.rest.workspace + ALIGN, dtype=torch.uint8),
        )
        known = [one.data_ptr() for one in (differences, marks, columns, listed, turned, applied)]
        given = [like.laid(tensors[name]) for name, like in zip(self.names, self.rest.inputs[1:], strict=False)]
        weights = [one.data_ptr() for one in given]
        workspace = -(-room.data_ptr() // ALIGN) * ALIGN
        calls = []
        for number, (first, size) in enumerate(chunks):
            some, many = numbers.ctypes.data + first * LONG, counts.ctypes.data + number * 2 * LONG
            before = np.array([x.data_ptr(), self.typical.data_ptr(), some, many, *known])
            after = np.array([logits.data_ptr() + first * classes * FLOAT, *weights, applied.data_ptr(), workspace])
            calls += [(self.first, before, 1), (self.rest.run, after, -(-size // rows))]
        table = np.array([(address(run), frame.ctypes.data, times) for run, frame, times in calls])
        player()(table.ctypes.data, len(table))
        return logits[:count]


def sparse_forward(graph: fx.Graph, names: tuple[str, ...], typical: Tensor) -> SparseForward | None:
    """The recorded forward pass (place for logits, weights and buffers, x) -> logits, if its first layer allows it."""
    copy = span.copied(graph)
    inputs: list[Any] = [node for node in copy.nodes if node.op == "placeholder"]
    x = flat = inputs[-1]
    (user, *more) = [*flat.users]
    if not more and user.target in SHOWS and user.meta["val"].dim() == 2:
        flat = user
        (user, *more) = [*flat.users]
    if more or user.target not in (torch.addmm, torch.mm) or user.kwargs or user.args[-2] is not flat:
        return None
    turned: Any = user.args[-1]
    if not span.turns(turned) or turned.args[0] not in inputs:
        return None
    weight = turned.args[0]
    (outputs, columns), rows = weight.meta["val"].shape, x.meta["val"].shape[0]
    if columns != len(typical) or columns * outputs < span.LEAST:
        return None
    x.meta = {"val": torch.empty(rows, outputs)}
    with copy.inserting_before(user):
        now: Node = copy.call_function(torch.add, (x, user.args[0])) if user.target is torch.addmm else x
        now.meta = x.meta
    user.replace_all_uses_with(now)
    copy.eliminate_dead_code()
    layer = Layer(columns, outputs, CHUNK)
    name = names[inputs.index(weight) - 1]
    return SparseForward(layer, name, typical, _first(layer), compile_graph(copy, moving=(0, -1)), names)


def _first(layer: Layer) -> Any:
    program = Program()
    for write, slots in (
        (kernels.gather, (0, 1, 2, 3, 4)),
        (kernels.mark, (4, 3, 5, 6)),
        (kernels.apply, (4, 3, 5, 6, 7, 8, 9)),
    ):
        with program.kernel() as kernel:
            write(kernel, layer, *(kernel.pointer(slot, 0) for slot in slots))
    return program.compile({})
