"""Rewrites of a recorded step that save passes over memory.

- a weight's new value is a linear combination of its old value, constants and a gradient: written as such and added
  up in place, the matrix product that makes a dense gradient folded in: addmm_(w, a, b, beta, alpha)
- a pull towards a fixed point is one lerp_
- the gradient of a dense bias, a sum over rows, is added in one product with ones
- what is done to examples or labels alone is taken out, to be done once for many batches
- double transposes cancel; the loss's own value, which nobody asks for, is dropped
- operations are called through torch's fast bindings

Every rewrite keeps the meaning; only the order of rounding changes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import Node

aten = torch.ops.aten
Number = int | float
Before = Callable[[Tensor], Tensor]


def rewrite(graph: fx.Graph, states: int) -> tuple[Before, Before]:
    """Rewrite a recorded step in place. Its first `states` inputs are replaced by its outputs, in order.

    Returns what is to be done to the examples and the labels of many batches at once, before the step sees them.
    """
    cancel_transposes(graph)
    simplify_cross_entropy(graph)
    graph.eliminate_dead_code()
    examples, labels = flat_beforehand(graph), labels_beforehand(graph)
    plain_sums(graph)
    update_in_place(graph, states)
    graph.eliminate_dead_code()
    fast_calls(graph)
    graph.lint()
    return examples, labels


def cancel_transposes(graph: fx.Graph) -> None:
    """t(t(x)) = x;  detach and alias are the tensor itself."""
    for node in graph.nodes:
        if _is(node, aten.t.default) and _is(node.args[0], aten.t.default):
            node.replace_all_uses_with(node.args[0].args[0])
        elif _is(node, aten.detach.default) or _is(node, aten.alias.default):
            node.replace_all_uses_with(node.args[0])


def simplify_cross_entropy(graph: fx.Graph) -> None:
    """The gradient of the mean cross-entropy is (softmax - one hot) / n, without the loss itself."""
    for node in list(graph.nodes):
        if not _is(node, aten._log_softmax_backward_data.default):
            continue
        inner, output, dim, _ = node.args
        if not (_is(inner, aten.nll_loss_backward.default) and _is(output, aten._log_softmax.default) and dim == 1):
            continue
        upstream, _, labels, weight, reduction, ignored, _ = inner.args
        if weight is not None or reduction != 1 or ignored != -100 or not _is(upstream, aten.ones_like.default):
            continue
        if output.args[0].meta["val"].dim() != 2:
            continue
        examples = output.args[0].meta["val"].shape[0]
        with graph.inserting_before(node):
            classes, dtype = output.args[0].meta["val"].shape[1], output.args[0].meta["val"].dtype
            wanted = graph.call_function(_wanted, (labels, classes, examples, dtype))
            softmax = graph.call_function(torch.softmax, (output.args[0], 1))
            new = graph.call_function(torch.add, (wanted, softmax), {"alpha": 1.0 / examples})
            wanted.meta = softmax.meta = new.meta = node.meta
        node.replace_all_uses_with(new)


def _wanted(labels: Tensor, classes: int, examples: int, dtype: torch.dtype) -> Tensor:
    """- one hot / n"""
    return _table(classes, examples, dtype).to(labels.device).index_select(0, labels)


@cache
def _table(classes: int, examples: int, dtype: torch.dtype) -> Tensor:
    """The row of each label."""
    with torch.inference_mode(False):  # it outlives the step that asks first
        return torch.eye(classes, dtype=dtype).mul_(-1.0 / examples)


def flat_beforehand(graph: fx.Graph) -> Before:
    """If the step only needs its examples (its last input but one) in another shape, each its own, give it that."""
    given = [node for node in graph.nodes if node.op == "placeholder"][-2]
    users: list[Any] = list(given.users)
    if len(users) != 1 or not _is(users[0], aten.view.default):
        return lambda x: x
    count, *shape = users[0].meta["val"].shape
    if count != given.meta["val"].shape[0]:
        return lambda x: x
    _give(graph, given, users[0])
    return lambda x: x.reshape(len(x), *shape)


def labels_beforehand(graph: fx.Graph) -> Before:
    """If the step only needs the one-hot form of its labels (its last input), give it that."""
    labels = [node for node in graph.nodes if node.op == "placeholder"][-1]
    users: list[Any] = list(labels.users)
    if len(users) != 1 or users[0].target is not _wanted:
        return lambda y: y
    _, *how = users[0].args
    _give(graph, labels, users[0])
    return lambda y: _wanted(y, *how)


def _give(graph: fx.Graph, given: Node, made: Node) -> None:
    """From now on the input is what the step made of it."""
    made.replace_all_uses_with(given)
    given.meta = made.meta
    graph.erase_node(made)


@dataclass
class Linear:
    """own * (old value) + sum of factors times terms."""

    own: float = 0.0
    terms: list[tuple[float, Node]] = field(default_factory=list)
    inner: set[Node] = field(default_factory=set)  # nodes that only serve this combination


def update_in_place(graph: fx.Graph, states: int) -> None:
    """Write the new value of each state into the old one where nothing needs the old one any more."""
    *_, output = graph.nodes
    inputs = [node for node in graph.nodes if node.op == "placeholder"][:states]
    results = list(output.args[0])
    order = {node: place for place, node in enumerate(graph.nodes)}
    forms: dict[int, Linear] = {}
    for index, (old, new) in enumerate(zip(inputs, results, strict=True)):
        form = linear_form(new, old)
        if form is None or results.count(new) > 1 or set(new.users) != {output} or not _dense(old):
            continue
        late = any(order[user] > order[new] for user in old.users)
        if not late and old not in results and all(_root(term) is not old for _, term in form.terms):
            forms[index] = form
    # updates happen one after another at the end of the step: none may read a state that an earlier one overwrote
    overwritten: set[Node] = set()
    kept = {_root(result) for index, result in enumerate(results) if index not in forms}
    for index, form in forms.items():
        if inputs[index] in kept or _read_by(form) & overwritten:
            continue
        new, old = results[index], inputs[index]
        with graph.inserting_before(output):
            results[index] = _emit(graph, old, new, form)
        results[index].meta = new.meta
        overwritten.add(old)
    output.args = (results,)


VIEWS = {
    aten.t.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.slice.Tensor,
    aten.select.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.as_strided.default,
    operator.getitem,
}


def _root(node: Any) -> Any:
    """The tensor whose storage a view shows."""
    while isinstance(node, Node) and node.op == "call_function" and node.target in VIEWS:
        node = node.args[0]
    return node


def _read_by(form: Linear) -> set[Any]:
    """The tensors that the in-place operations of a combination will read."""
    leaves = [term for _, term in form.terms]
    inside = [argument for leaf in leaves for argument in leaf.args if isinstance(argument, Node)]
    return {_root(node) for node in leaves + inside}


def linear_form(new: Node, old: Node) -> Linear | None:
    """`new` as a linear combination with `old` in it, or None."""
    form = Linear()

    def expand(node: Any, factor: float, top: bool) -> None:
        if node is old:
            form.own += factor
            return
        shareable = top or len(node.users) == 1
        if shareable and _same_shape(node, old):
            if _is(node, aten.add.Tensor) and _tensors(node):
                form.inner.add(node)
                expand(node.args[0], factor, False)
                expand(node.args[1], factor * node.kwargs.get("alpha", 1), False)
                return
            if _is(node, aten.sub.Tensor) and _tensors(node):
                form.inner.add(node)
                expand(node.args[0], factor, False)
                expand(node.args[1], -factor * node.kwargs.get("alpha", 1), False)
                return
            if _is(node, aten.mul.Tensor) and isinstance(node.args[1], Number) and isinstance(node.args[0], Node):
                form.inner.add(node)
                expand(node.args[0], factor * node.args[1], False)
                return
        form.terms.append((factor, node))

    if not isinstance(new, Node) or new is old:
        return None
    expand(new, 1.0, True)
    return form if form.own and _same_shape(new, old) and all(_same_shape(t, old) for _, t in form.terms) else None


def _emit(graph: fx.Graph, old: Node, new: Node, form: Linear) -> Node:
    """The in-place operations that make the new value out of the old one."""
    value, own = old, form.own
    products = [(f, t) for f, t in form.terms if _is(t, aten.mm.default) and set(t.users) <= form.inner | {new}]
    others = [(f, t) for f, t in form.terms if (f, t) not in products]
    for factor, term in others:
        pulled = _emit_pull(graph, value, factor, term, form, new)
        if pulled is not None:
            value = pulled
            others.remove((factor, term))
            break
    back = next(((f, t) for f, t in others if abs(own + f - 1) < 1e-9 and 0 < f < 1), None)
    if back is not None:  # (1 - f) old + f anchor: one pass, and the product keeps its fast form, with beta = 1
        value, own = graph.call_function(torch.Tensor.lerp_, (value, back[1], back[0])), 1.0
        others.remove(back)
    for factor, product in products:
        a, b = product.args
        value = graph.call_function(torch.Tensor.addmm_, (value, a, b), {"beta": own, "alpha": factor})
        own = 1.0
    sums = [(f, t) for f, t in others if _sums_rows(t) and set(t.users) <= form.inner | {new}]
    for factor, total in sums:
        rows: Any = total.args[0]
        way = next((user for user in rows.users if _is(user, aten.t.default)), None)
        way = way or graph.call_function(torch.t, (rows,))
        value = graph.call_function(
            torch.Tensor.addmv_, (value, way, _ones(graph, rows)), {"beta": own, "alpha": factor}
        )
        own = 1.0
        others.remove((factor, total))
    if own != 1.0:
        value = graph.call_function(torch.Tensor.mul_, (value, own))
    for factor, term in others:
        value = _emit_term(graph, value, factor, term, form, new)
    return value


def _emit_pull(graph: fx.Graph, value: Node, factor: float, term: Any, form: Linear, new: Node) -> Node | None:
    """old - rate * (old - anchor) in one pass: lerp(old, anchor, rate)."""
    if abs(factor + 1) > 1e-9 or form.own != 1.0 or not (_is(term, aten.mul.Tensor) and _tensors(term)):
        return None
    rate, way = term.args
    if not (_is(way, aten.sub.Tensor) and way.args[0] is value and len(way.args) == 2 and not way.kwargs):
        return None
    alone = set(term.users) <= form.inner | {new} and set(way.users) == {term}
    if not alone or not all(_same_shape(one, value) for one in (rate, way.args[1])):
        return None
    return graph.call_function(torch.Tensor.lerp_, (value, way.args[1], rate))


def _emit_term(graph: fx.Graph, value: Node, factor: float, term: Any, form: Linear, new: Node) -> Node:
    product = _is(term, aten.mul.Tensor) and _tensors(term) and set(term.users) <= form.inner | {new}
    if product and all(_same_shape(one, term) for one in term.args):
        return graph.call_function(torch.Tensor.addcmul_, (value, *term.args), {"value": factor})
    return graph.call_function(torch.Tensor.add_, (value, term), {"alpha": factor})


def _sums_rows(node: Any) -> bool:
    """Whether this is the sum of a matrix's rows, as in the gradient of a dense layer's bias."""
    return _is(node, torch.sum) and len(node.args) == 2 and node.args[1] == [0] and node.args[0].meta["val"].dim() == 2


def _ones(graph: fx.Graph, rows: Node) -> Node:
    """A constant vector with a one for each row."""
    value = rows.meta["val"]
    name = f"ones_{len(value)}_{str(value.dtype).removeprefix('torch.')}"
    setattr(graph.owning_module, name, torch.ones(len(value), dtype=value.dtype, device=value.device))
    return graph.create_node("get_attr", name)


def plain_sums(graph: fx.Graph) -> None:
    """view(sum(x, [0], keepdim=True), [n]) = sum(x, [0])."""
    for node in list(graph.nodes):
        inner: Any = node.args[0] if node.args else None
        if not (_is(node, aten.view.default) and _is(inner, aten.sum.dim_IntList) and len(inner.args) == 3):
            continue
        axes, shape = list(inner.args[1]), list(inner.meta["val"].shape)
        leading = inner.args[2] is True and axes == list(range(len(axes)))
        if leading and list(node.meta["val"].shape) == shape[len(axes) :]:
            with graph.inserting_before(node):
                new = graph.call_function(torch.sum, (inner.args[0], axes))
                new.meta = node.meta
            node.replace_all_uses_with(new)
    graph.eliminate_dead_code()


FAST: dict[Any, Callable[..., Any]] = {
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.t.default: torch.t,
    aten.relu.default: torch.relu,
    aten.view.default: torch.Tensor.view,
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div,
    aten.sqrt.default: torch.sqrt,
    aten.sum.dim_IntList: torch.sum,
    aten.exp.default: torch.exp,
    aten.logsumexp.default: torch.logsumexp,
    aten.max_pool2d_with_indices.default: torch._C._nn.max_pool2d_with_indices,  # type: ignore[attr-defined]
}


def fast_calls(graph: fx.Graph) -> None:
    """Call operations through torch's own bindings rather than through the dispatcher's Python front."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in FAST:
            node.target = FAST[node.target]


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def _tensors(node: Node) -> bool:
    return all(isinstance(argument, Node) for argument in node.args[:2])


def _same_shape(a: Any, b: Any) -> bool:
    return a.meta["val"].shape == b.meta["val"].shape and a.meta["val"].dtype == b.meta["val"].dtype


def _dense(node: Node) -> bool:
    value = node.meta["val"]
    return value.is_contiguous() or value.is_contiguous(memory_format=torch.channels_last)
