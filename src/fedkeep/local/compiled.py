"""A recorded step as machine code.

A step that is replayed operation by operation asks torch for each of them, and torch's library for matrix products is
made for larger ones. Here the rewritten graph of `rewrite.py` becomes one function for one batch shape, written by
`fedkeep.native` and called once for many batches. Elementwise operations that feed one another are one pass, and what
corrects a weight is done while its gradient's product is still in registers. A step with an operation that is not
known here is replayed instead; the replayed step is its twin: equal up to rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import Node

from fedkeep.local.image_operations import IMAGE_OPERATIONS
from fedkeep.local.operations import CONSTANTS, ELEMENTWISE, IN_PLACE, OPERATIONS, PRODUCTS, constant_of
from fedkeep.local.rewrite import VIEWS
from fedkeep.native.arrays import ALIGN, Array, Buffer, Walk, arranged, buffer_of, described, walk
from fedkeep.native.elementwise import each
from fedkeep.native.emit import Kernel, Program, Unsupported, Value, processor

SHOWS = VIEWS | {torch.t, torch.Tensor.view}
At = Callable[[Kernel, Walk, Sequence[Value], int], Value]
"""Some elements that lie side by side: where on which way through which arrays, and how many."""


@dataclass(frozen=True)
class Like:
    """How an input lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def laid(self, tensor: Tensor) -> Tensor:
        """The tensor itself where it lies as the kernels expect, else a copy that does; it may have more rows."""
        if tensor.dtype != self.dtype or tensor.shape[1:] != self.shape[1:]:
            raise RuntimeError(f"compiled for {self.shape}, {self.dtype}, given {tuple(tensor.shape)}, {tensor.dtype}")
        strides = tensor.stride()
        if strides == self.strides or all(
            a == b or size == 1 for size, a, b in zip(tensor.shape, strides, self.strides, strict=True)
        ):
            return tensor
        return torch.empty_strided(tensor.shape, self.strides, dtype=self.dtype).copy_(tensor)


@dataclass(frozen=True)
class Compiled:
    """Machine code for a function of tensors whose first results take the place of its first inputs."""

    run: Callable[[Any, int], None]
    inputs: tuple[Like, ...]
    workspace: int  # bytes

    def __call__(self, tensors: Sequence[Tensor], batches: int) -> list[Tensor]:
        """Run it for each batch; inputs that move on hold all batches. Returns the inputs, changed in place."""
        given = [like.laid(tensor) for tensor, like in zip(tensors, self.inputs, strict=True)]
        room = torch.empty(self.workspace + ALIGN, dtype=torch.uint8)
        places = [tensor.data_ptr() for tensor in given] + [-(-room.data_ptr() // ALIGN) * ALIGN]
        self.run((ctypes.c_void_p * len(places))(*places), batches)
        return given


def compile_graph(graph: fx.Graph, moving: Iterable[int]) -> Compiled:
    """Machine code for a recorded graph of which the inputs `moving` go on by their own size after each batch."""
    processor()  # refuses where there are no kernels
    plan = Plan(graph)
    workspace = arranged(plan.lifetimes())
    program = Program()
    for task in plan.tasks:
        with program.kernel() as kernel:
            task.write(kernel)
    run = program.compile({slot % len(plan.inputs): plan.buffers[slot].bytes for slot in moving})
    values = [node.meta["val"] for node in plan.inputs]
    return Compiled(run, tuple(Like(tuple(v.shape), tuple(v.stride()), v.dtype) for v in values), workspace)


@dataclass(frozen=True)
class Task:
    """A kernel to be written, and the buffers that it touches."""

    write: Callable[[Kernel], None]
    touches: list[Buffer]


class Plan:
    """What to compute, in which order, and from where to where."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.buffers = [buffer_of(node.meta["val"], slot) for slot, node in enumerate(self.inputs)]
        self.arrays: dict[Node, Array] = {
            node: described(node.meta["val"], buffer) for node, buffer in zip(self.inputs, self.buffers, strict=True)
        }
        self.numbers: dict[Node, float] = {}
        self.bordered: dict[Any, Array] = {}  # images with zeros around them
        self.tasks: list[Task] = []
        self._writes: list[tuple[int, Buffer]] = []
        *_, output = graph.nodes
        self.results: list[Node] = list(output.args[0])
        self._needed = self._all_needed()
        self._note_writes()
        for node in graph.nodes:
            if node in self._needed and node not in self.arrays:
                self._take(node)
        self._return()

    # -- what there is

    def _all_needed(self) -> set[Node]:
        """Nodes that the results depend on; what is the same whatever it is made from needs nothing."""
        needed: set[Node] = set()
        waiting = [*self.results, *(node for node in self.graph.nodes if node.target in IN_PLACE)]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                if node.target not in CONSTANTS:
                    waiting.extend(node.all_input_nodes)
        return needed

    def _note_writes(self) -> None:
        """Which inputs are overwritten, and when."""
        changed: dict[Node, Node] = {}
        for node in self.graph.nodes:
            if node.target in IN_PLACE:
                first = changed.get(node.args[0], node.args[0])
                if first not in self.arrays:
                    raise Unsupported("a change in place of something that is not an input")
                changed[node] = first
                self._writes.append((self.order[node], self.arrays[first].buffer))

    def new(self, node: Node) -> Array:
        """Memory for a node's value."""
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            raise Unsupported(f"{node.target}")
        self.arrays[node] = described(value, buffer_of(value, len(self.inputs)))
        return self.arrays[node]

    def task(self, write: Callable[[Kernel], None], *arrays: Array) -> None:
        self.tasks.append(Task(write, [array.buffer for array in arrays]))

    def lifetimes(self) -> list[tuple[Buffer, int, int]]:
        """The buffers of the workspace, each with the first and the last task that touches it."""
        found: dict[Buffer, tuple[int, int]] = {}
        for time, task in enumerate(self.tasks):
            for buffer in task.touches:
                if buffer.slot == len(self.inputs):
                    found[buffer] = (found.get(buffer, (time, time))[0], time)
        return [(buffer, *span) for buffer, span in found.items()]

    # -- node by node

    def _take(self, node: Node) -> None:
        target: Any = node.target
        if node.op == "get_attr" or target in CONSTANTS:
            self.numbers[node] = constant_of(node)
        elif target in SHOWS:
            self._show(node)
        elif target in IN_PLACE:
            self._change(node)
        elif target in ELEMENTWISE:
            self._elementwise(node)
        elif target in PRODUCTS:
            PRODUCTS[target](self, node, [])
        elif target in OPERATIONS:
            OPERATIONS[target](self, node)
        elif target in IMAGE_OPERATIONS:
            IMAGE_OPERATIONS[target](self, node)
        elif node.op != "output":
            raise Unsupported(f"{node.target}")

    def _show(self, node: Node) -> None:
        """A view of something."""
        source: Any = node.args[0]
        if source in self.numbers:
            self.numbers[node] = self.numbers[source]
            return
        if source not in self.arrays:
            raise Unsupported("a view of what has no place of its own")
        array, value = self.arrays[source], node.meta.get("val")
        if value is None and node.target is torch.t:
            self.arrays[node] = array.transposed
            return
        if not isinstance(value, Tensor):
            raise Unsupported(f"{node.target}")
        self.arrays[node] = described(value, array.buffer)

    def _elementwise(self, node: Node) -> None:
        if all(not isinstance(one, Node) or one in self.numbers for one in node.args):
            values = [torch.tensor(self.numbers[a]) if isinstance(a, Node) else a for a in node.args]
            self.numbers[node] = float(node.target(*values, **node.kwargs))  # type: ignore[operator]
            return
        users = [user for user in node.users if user in self._needed]
        if len(users) == 1 and node not in self.results and self._may_wait(node, users[0]):
            return
        leaves, target = self.leaves(node), self.new(node)
        self.fill(target, leaves, partial(self._operate, node))

    def fill(self, target: Array, reads: Sequence[Array], value: At) -> None:
        """One pass over an array: each element becomes what `value` says."""
        way = walk(target, reads)

        def write(kernel: Kernel) -> None:
            def body(indices: Sequence[Value], lanes: int) -> None:
                place, _ = way.place(kernel, target, indices)
                kernel.store(value(kernel, way, indices, lanes), target.pointer(kernel), place, target.dtype)

            each(kernel, way.sizes, way.vector, body)

        self.task(write, target, *reads)

    def _may_wait(self, node: Node, user: Node) -> bool:
        """Whether a node can be computed where its only user needs it, and only there."""
        if user.target not in ELEMENTWISE or (user.target in IN_PLACE and user.args[0] is node):
            return False
        read = {array.buffer for array in self.leaves(node)}
        return not any(self.order[node] < when < self.order[user] and buffer in read for when, buffer in self._writes)

    def leaves(self, node: Any) -> list[Array]:
        """The arrays that an expression reads."""
        if not isinstance(node, Node) or node in self.numbers:
            return []
        if node in self.arrays:
            return [self.arrays[node]]
        parts = [leaf for argument in node.args for leaf in self.leaves(argument)]
        if node.target in ELEMENTWISE:
            return parts
        raise Unsupported(f"{node.target}")

    def evaluate(
        self, node: Any, dtype: torch.dtype, kernel: Kernel, way: Walk, indices: Sequence[Value], lanes: int
    ) -> Value:
        """An expression's value at some elements that lie side by side."""
        if not isinstance(node, Node) or node in self.numbers:
            return kernel.number(self.numbers[node] if isinstance(node, Node) else node, lanes, dtype)
        if node not in self.arrays:
            return self._operate(node, kernel, way, indices, lanes)
        array = self.arrays[node]
        index, step = way.place(kernel, array, indices)
        if step or lanes == 1:
            return kernel.load(array.pointer(kernel), index, lanes, array.dtype)
        return kernel.spread(kernel.scalar(array.pointer(kernel), index, array.dtype), lanes)

    def _operate(self, node: Node, kernel: Kernel, way: Walk, indices: Sequence[Value], lanes: int) -> Value:
        """What an elementwise operation gives at these elements."""
        operands, operation = ELEMENTWISE[node.target]
        dtype = next(one.meta["val"].dtype for one in node.args if isinstance(one, Node))
        if not dtype.is_floating_point:
            raise Unsupported("arithmetic with integers")
        return operation(
            kernel, node, *(self.evaluate(one, dtype, kernel, way, indices, lanes) for one in node.args[:operands])
        )

    # -- products and changes in place

    def _change(self, node: Node) -> None:
        """Changes of one tensor are one pass over it, written where the last of them stands."""
        users = [user for user in node.users if user.target in IN_PLACE and user.args[0] is node]
        if users:
            return
        chain = [node]
        while isinstance(chain[0].args[0], Node) and chain[0].args[0].target in IN_PLACE:
            chain.insert(0, chain[0].args[0])
        between = {self.order[other] for other in self.graph.nodes if other.target in IN_PLACE and other not in chain}
        if any(self.order[chain[0]] < place < self.order[node] for place in between):
            raise Unsupported("changes of several tensors in turns")
        target = self.arrays[chain[0].args[0]]  # type: ignore[index]
        for one in chain:
            self.arrays[one] = target
        products = [one for one in chain if one.target in PRODUCTS]
        if len(products) > 1:
            raise Unsupported("several products into one tensor")
        if products:
            PRODUCTS[products[0].target](self, products[0], chain)
        else:
            self.fill(target, [target, *self.operands(chain)], partial(self.changed, target, chain))

    def operands(self, chain: Sequence[Node]) -> list[Array]:
        """What changes in place read besides the tensor itself, products left aside."""
        return [
            leaf
            for one in chain
            if one.target not in PRODUCTS
            for argument in one.args[1:]
            for leaf in self.leaves(argument)
        ]

    def changed(
        self, target: Array, chain: Sequence[Node], kernel: Kernel, way: Walk, indices: Sequence[Value], lanes: int
    ) -> Value:
        """Elements of a tensor after changes in place."""
        value = kernel.load(target.pointer(kernel), way.place(kernel, target, indices)[0], lanes, target.dtype)
        return self.change(value, chain, kernel, way, indices)

    def change(self, value: Value, chain: Sequence[Node], kernel: Kernel, way: Walk, indices: Sequence[Value]) -> Value:
        """A value after changes in place."""
        lanes = value.type.count
        for node in chain:
            dtype = self.arrays[node].dtype
            others = [self.evaluate(one, dtype, kernel, way, indices, lanes) for one in node.args[1:]]
            value = ELEMENTWISE[node.target][1](kernel, node, value, *others)
        return value

    def _return(self) -> None:
        """Bring every result into the place of the state that it replaces."""
        for node, given in zip(self.results, self.inputs, strict=False):
            source, target = self.arrays.get(node), self.arrays[given]
            if source is None or (source != target and source.buffer.slot < len(self.inputs)):
                raise Unsupported("a state that becomes a number, or takes the place of another")
            if source != target:
                self.fill(target, [source], partial(self.evaluate, node, source.dtype))
