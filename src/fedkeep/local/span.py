"""Local training in the span of a client's examples.

With plain SGD, a dense layer that sees the examples themselves moves along them only:

    W = W_0 + sum_i a_i x_i^T            one row of coefficients a_i for each example i
    W x_j = W_0 x_j + sum_i a_i (x_i . x_j)

W_0 x_j and the inner products are computed once for a client; a step then changes the coefficients of its own batch and
reads those of the others. The weights, by far the most of a small model, are neither copied nor touched; what a client
adds to the sum over clients is one product in the end. For clients of few examples that is less work than training the
weights, and the more so the more passes they make. The recorded step is the twin: equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import Node

from fedkeep.local.compiled import Compiled, compile_graph
from fedkeep.native.span import Layer

LEAST = 1 << 16  # weights of a layer that it costs less to leave alone than to keep books on its examples
MOST = 256  # examples whose coefficients and inner products stay in the cache
SAMPLED = 101  # examples that the typical one is made of
COMMON = 0.25  # share of numbers that examples have in common with it
LARGEST = 1e15  # numbers up to here multiply without overflow


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known of all clients' examples beforehand."""

    typical: Tensor  # one flat example; wherever a client's examples all agree with it, there is less to do
    most: int  # examples of the largest client

    @staticmethod
    def of(x: Tensor, sizes: Sequence[int]) -> Setting | None:
        """The setting of clients that hold so many of these examples; None where they are not all small."""
        most = max(sizes, default=0)
        if not 0 < most <= MOST or x.dtype != torch.float32 or x.device.type != "cpu" or not x.is_contiguous():
            return None
        low, high = torch.aminmax(x)
        if not (float(low) > -LARGEST and float(high) < LARGEST):
            return None
        return Setting(typical_of(x), int(most))


def typical_of(x: Tensor) -> Tensor:
    """An example with the usual number in every place, flat: the median of some."""
    return _some(x).median(0).values.contiguous()


def much_in_common(x: Tensor, typical: Tensor) -> bool:
    """Whether examples agree with the typical one in so many places that it pays to look where."""
    return float((_some(x) == typical).float().mean()) >= COMMON


def _some(x: Tensor) -> Tensor:
    return x[torch.linspace(0, len(x) - 1, min(len(x), SAMPLED)).long()].flatten(1)


@dataclass(frozen=True)
class SpanStep:
    """A step for one batch size.

    Inputs: the weights, the layer's place taken by the batch's coefficients; constants; W_0 x; labels; inner products
    with all examples; all coefficients.
    """

    layer: Layer
    place: int  # of the layer's weight among the weights
    compiled: Compiled

    def pays(self, examples: int, seen: int) -> bool:
        """Whether it is less work than training the weights themselves, or hardly more.

        `seen`: examples in all steps; more than there are if there is more than one pass.
        """
        inputs, outputs = self.layer.inputs, self.layer.outputs
        along = examples * (2 * inputs * outputs + examples * inputs / 2) + seen * self.layer.most * outputs
        return examples <= self.layer.most and along <= 1.25 * seen * 2 * inputs * outputs


def span_step(graph: fx.Graph, states: int, setting: Setting) -> SpanStep | None:
    """A recorded and rewritten step in the span of the examples, if its first layer allows that.

    `states`: how many of its first inputs are replaced by its results; all of them must be weights.
    """
    copy = copied(graph)
    *_, output = copy.nodes
    inputs: list[Any] = [node for node in copy.nodes if node.op == "placeholder"]
    results: list[Any] = list(output.args[0])  # type: ignore[call-overload]
    x = inputs[-2]
    found = [(i, _applied(inputs[i], results[i], x)) for i in range(states)]
    place, applied = next(((i, applied) for i, applied in found if applied is not None), (0, None))
    if applied is None:
        return None
    weight, change = inputs[place], results[place]
    outputs, columns = weight.meta["val"].shape
    if columns != len(setting.typical) or columns * outputs < LEAST:
        return None
    _, turned, _ = change.args
    gradient, rows = turned.args[0], x.meta["val"].shape[0]

    def described(node: Node, *shape: int) -> Node:
        node.meta = {"val": torch.empty(shape)}
        return node

    with copy.inserting_after(inputs[-1]):
        coefficients = described(copy.placeholder("coefficients"), setting.most, outputs)
        products = described(copy.placeholder("products"), rows, setting.most)
    described(x, rows, outputs)
    described(weight, rows, outputs)
    with copy.inserting_before(applied):
        bias = applied.args[0] if applied.target is torch.addmm else None
        before = x if bias is None else described(copy.call_function(torch.add, (x, bias)), rows, outputs)
        now = described(copy.call_function(torch.addmm, (before, products, coefficients)), rows, outputs)
    applied.replace_all_uses_with(now)
    with copy.inserting_before(change):
        results[place] = copy.call_function(torch.add, (weight, gradient), {"alpha": change.kwargs["alpha"]})
        results[place].meta = gradient.meta
    output.args = (results,)
    for node in (change, turned, applied):
        if not node.users:
            copy.erase_node(node)
    copy.eliminate_dead_code()
    layer = Layer(columns, outputs, setting.most)
    return SpanStep(layer, place, compile_graph(copy, moving=(place, -4, -3, -2)))


def copied(graph: fx.Graph) -> fx.Graph:
    """A graph that can be changed, of the same operations."""
    copy = fx.Graph(owning_module=graph.owning_module)
    copy.output(copy.graph_copy(graph, {}))
    return copy


def turned(weight: Tensor, typical: Tensor) -> Tensor:
    """A layer's weight as [inputs, outputs], and below it what the typical example gives."""
    return torch.cat([weight.t(), (weight @ typical)[None]])


def _applied(weight: Node, change: Any, x: Node) -> Node | None:
    """Where the examples meet the weight, if that is all that is done with either, and the weight moves along them."""
    if not (isinstance(change, Node) and change.target is torch.Tensor.addmm_ and change.args[0] is weight):
        return None
    turned = change.args[1]
    if change.args[2] is not x or change.kwargs.get("beta", 1) != 1 or not turns(turned):
        return None
    (first, *more) = [user for user in weight.users if user is not change] or [None]
    if more or first is None or not turns(first) or len(first.users) != 1:
        return None
    (applied,) = first.users
    if set(x.users) != {applied, change} or applied.target not in (torch.addmm, torch.mm) or applied.kwargs:
        return None
    return applied if tuple(applied.args[-2:]) == (x, first) else None


def turns(node: Any) -> bool:
    """Whether a node is a matrix turned."""
    return isinstance(node, Node) and node.target in (torch.t, torch.ops.aten.t.default)
