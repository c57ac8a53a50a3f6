"""The operations that a recorded step may have in it, as kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from llvmlite import ir

from fedkeep.native.arrays import Array, grid
from fedkeep.native.elementwise import exp, logsumexp, positive, put_at_label, softmax, take_at_label, where_above
from fedkeep.native.emit import INDEX, KINDS, Kernel, Unsupported, Value
from fedkeep.native.products import Matrix, product

if TYPE_CHECKING:
    from fedkeep.local.compiled import Plan

aten = torch.ops.aten

CONSTANTS: dict[Any, float] = {
    aten.ones_like.default: 1.0,
    aten.zeros_like.default: 0.0,
    aten.new_zeros.default: 0.0,
}
"""Operations whose result is the same number everywhere."""


def constant_of(node: Any) -> float:
    """The number that a constant tensor holds in all places."""
    if node.target in CONSTANTS:
        return CONSTANTS[node.target]
    tensor = getattr(node.graph.owning_module, str(node.target))
    values = tensor.unique()
    if len(values) != 1 or tensor.dtype != torch.float32:
        raise Unsupported("a constant tensor")
    return float(values[0])


# -- element by element: how many operands, and what to do with them


def _add(kernel: Kernel, node: Any, a: Value, b: Value) -> Value:
    alpha = node.kwargs.get("alpha", 1)
    return kernel.builder.fadd(a, b) if alpha == 1 else kernel.fma(_like(kernel, alpha, a), b, a)


def _sub(kernel: Kernel, node: Any, a: Value, b: Value) -> Value:
    alpha = node.kwargs.get("alpha", 1)
    return kernel.builder.fsub(a, b) if alpha == 1 else kernel.fma(_like(kernel, -alpha, a), b, a)


def _addcmul(kernel: Kernel, node: Any, a: Value, b: Value, c: Value) -> Value:
    return kernel.fma(kernel.builder.fmul(_like(kernel, node.kwargs.get("value", 1), a), b), c, a)


def _addcdiv(kernel: Kernel, node: Any, a: Value, b: Value, c: Value) -> Value:
    return kernel.fma(_like(kernel, node.kwargs.get("value", 1), a), kernel.builder.fdiv(b, c), a)


def _lerp(kernel: Kernel, node: Any, a: Value, b: Value, rate: Value) -> Value:
    return kernel.fma(rate, kernel.builder.fsub(b, a), a)


def _copied(kernel: Kernel, node: Any, a: Value) -> Value:
    wanted = node.meta["val"].dtype
    if wanted == torch.float32 and a.type.element == KINDS[torch.float64]:
        return kernel.builder.fptrunc(a, ir.VectorType(KINDS[wanted], a.type.count))
    if a.type.element != KINDS[wanted]:
        raise Unsupported("a change of type")
    return a


def _like(kernel: Kernel, number: Any, value: Value) -> Value:
    return ir.Constant(value.type, [float(number)] * value.type.count)


ELEMENTWISE: dict[Any, tuple[int, Callable[..., Value]]] = {
    torch.add: (2, _add),
    torch.sub: (2, _sub),
    torch.mul: (2, lambda k, node, a, b: k.builder.fmul(a, b)),
    torch.div: (2, lambda k, node, a, b: k.builder.fdiv(a, b)),
    aten.div.Scalar: (2, lambda k, node, a, b: k.builder.fdiv(a, b)),
    aten.rsub.Scalar: (2, lambda k, node, a, b: k.builder.fsub(b, a)),
    aten.neg.default: (1, lambda k, node, a: k.builder.fneg(a)),
    aten.reciprocal.default: (1, lambda k, node, a: k.builder.fdiv(_like(k, 1.0, a), a)),
    torch.sqrt: (1, lambda k, node, a: k.apply("sqrt", a)),
    torch.exp: (1, lambda k, node, a: exp(k, a)),
    torch.relu: (1, lambda k, node, a: positive(k, a)),
    aten.threshold_backward.default: (2, lambda k, node, a, b: where_above(k, a, b, node.args[2])),
    aten.addcmul.default: (3, _addcmul),
    aten.addcdiv.default: (3, _addcdiv),
    aten.clone.default: (1, _copied),
    aten._to_copy.default: (1, _copied),
    torch.Tensor.add_: (2, _add),
    torch.Tensor.mul_: (2, lambda k, node, a, b: k.builder.fmul(a, b)),
    torch.Tensor.addcmul_: (3, _addcmul),
    torch.Tensor.lerp_: (3, _lerp),
}


# -- products


def into_new(plan: Plan, node: Any, a: Array | None, b: Array, bias: Any = None) -> None:
    """A product with memory of its own, perhaps on top of a bias."""
    target = plan.new(node)
    rows, columns = (1, *target.shape)[-2:]
    reads = plan.leaves(bias)
    way = grid((rows, columns), [target, *reads])

    def write(kernel: Kernel) -> None:
        def start(row: Value, column: Value, lanes: int) -> Value:
            if bias is None:
                return kernel.number(0.0, lanes)
            return plan.evaluate(bias, target.dtype, kernel, way, (row, column), lanes)

        def again(row: Value, column: Value, lanes: int) -> Value:
            return kernel.load(target.pointer(kernel), way.place(kernel, target, (row, column))[0], lanes)

        def finish(row: Value, column: Value, value: Value) -> None:
            kernel.store(value, target.pointer(kernel), way.place(kernel, target, (row, column))[0])

        shape = (rows, columns, b.shape[0])
        product(kernel, shape, a and _matrix(kernel, a), _matrix(kernel, b), 1.0, start, finish, again)

    plan.task(write, target, b, *([a] if a else []), *reads)


def _into_state(plan: Plan, node: Any, chain: Sequence[Any], a: Array | None, b: Array) -> None:
    """A product added to a tensor, with what else is done to that tensor before and after."""
    target, place = plan.arrays[node], chain.index(node)
    rows, columns = (1, *target.shape)[-2:]
    reads = plan.operands(chain)
    way = grid((rows, columns), [target, *reads])
    beta, alpha = float(node.kwargs.get("beta", 1)), float(node.kwargs.get("alpha", 1))

    def write(kernel: Kernel) -> None:
        def start(row: Value, column: Value, lanes: int) -> Value:
            value = plan.changed(target, chain[:place], kernel, way, (row, column), lanes)
            return value if beta == 1 else kernel.builder.fmul(value, kernel.number(beta, lanes))

        def finish(row: Value, column: Value, value: Value) -> None:
            value = plan.change(value, chain[place + 1 :], kernel, way, (row, column))
            kernel.store(value, target.pointer(kernel), way.place(kernel, target, (row, column))[0])

        shape = (rows, columns, b.shape[0])
        product(kernel, shape, a and _matrix(kernel, a), _matrix(kernel, b), alpha, start, finish)

    plan.task(write, target, b, *([a] if a else []), *reads)


def _matrix(kernel: Kernel, array: Array) -> Matrix:
    row, column = array.strides
    return Matrix(array.pointer(kernel), row, column)


def _floats(plan: Plan, *nodes: Any) -> list[Array]:
    """The arrays of matrices of single precision."""
    arrays = [plan.arrays.get(node) for node in nodes]
    found = [array for array in arrays if array is not None and array.dtype == torch.float32 and len(array.shape) == 2]
    if len(found) < len(nodes):
        raise Unsupported("a product of something else than matrices of single precision")
    return found


def _mm(plan: Plan, node: Any, chain: Sequence[Any]) -> None:
    into_new(plan, node, *_floats(plan, *node.args))


def _addmm(plan: Plan, node: Any, chain: Sequence[Any]) -> None:
    if node.kwargs:
        raise Unsupported("a scaled product")
    bias, *factors = node.args
    a, b = _floats(plan, *factors)
    into_new(plan, node, a, b, bias)


def _sum(plan: Plan, node: Any, chain: Sequence[Any]) -> None:
    if len(node.args) != 2 or list(node.args[1]) != [0]:
        raise Unsupported("a sum over other axes than the first")
    into_new(plan, node, None, *_floats(plan, node.args[0]))


def _addmm_in_place(plan: Plan, node: Any, chain: Sequence[Any]) -> None:
    _into_state(plan, node, chain, *_floats(plan, *node.args[1:]))


def _addmv_in_place(plan: Plan, node: Any, chain: Sequence[Any]) -> None:
    _, matrix, vector = node.args
    if plan.numbers.get(vector) != 1.0:
        raise Unsupported("a product with a vector")
    (array,) = _floats(plan, matrix)
    _into_state(plan, node, chain, None, array.transposed)


PRODUCTS: dict[Any, Callable[[Plan, Any, Sequence[Any]], None]] = {
    torch.mm: _mm,
    torch.addmm: _addmm,
    torch.sum: _sum,
    torch.Tensor.addmm_: _addmm_in_place,
    torch.Tensor.addmv_: _addmv_in_place,
}

IN_PLACE = {
    torch.Tensor.add_,
    torch.Tensor.mul_,
    torch.Tensor.addcmul_,
    torch.Tensor.lerp_,
    torch.Tensor.addmm_,
    torch.Tensor.addmv_,
}


# -- along rows


def _rows(plan: Plan, node: Any) -> tuple[Array, int, int]:
    """The matrix, row by row in memory, along whose rows something is done; its rows and columns."""
    (array,) = _floats(plan, node.args[0])
    rows, columns = array.shape
    if node.args[1] not in (1, -1, [1], [-1]) or array.strides != (columns, 1):
        raise Unsupported("another axis than the last")
    return array, rows, columns


def _softmax(plan: Plan, node: Any) -> None:
    (source, rows, columns), target = _rows(plan, node), plan.new(node)
    plan.task(lambda k: softmax(k, rows, columns, source.pointer(k), target.pointer(k)), source, target)


def _logsumexp(plan: Plan, node: Any) -> None:
    (source, rows, columns), target = _rows(plan, node), plan.new(node)
    plan.task(lambda k: logsumexp(k, rows, columns, source.pointer(k), target.pointer(k)), source, target)


def _labels(plan: Plan, node: Any, rows: int) -> Array:
    array = plan.arrays.get(node)
    if array is None or array.shape != (rows, 1) or array.strides[0] != 1 or array.dtype != torch.int64:
        raise Unsupported("labels that are no column")
    return array


def _gather(plan: Plan, node: Any) -> None:
    source, rows, columns = _rows(plan, node)
    labels, target = _labels(plan, node.args[2], rows), plan.new(node)

    def write(kernel: Kernel) -> None:
        take_at_label(kernel, rows, columns, labels.pointer(kernel), source.pointer(kernel), target.pointer(kernel))

    plan.task(write, source, labels, target)


def _scatter_add(plan: Plan, node: Any) -> None:
    base, axis, index, numbers = node.args
    target = plan.new(node)
    if plan.numbers.get(base) != 0.0 or axis != 1 or len(target.shape) != 2:
        raise Unsupported("numbers added at places of something else than zeros")
    rows, columns = target.shape
    labels, given = _labels(plan, index, rows), plan.leaves(numbers)
    way = grid((rows, 1), given)

    def write(kernel: Kernel) -> None:
        def number(row: Value) -> Value:
            return kernel.first(plan.evaluate(numbers, target.dtype, kernel, way, (row, INDEX(0)), 1))

        put_at_label(kernel, rows, columns, labels.pointer(kernel), number, target.pointer(kernel))

    plan.task(write, labels, target, *given)


OPERATIONS: dict[Any, Callable[[Plan, Any], None]] = {
    torch.softmax: _softmax,
    torch.logsumexp: _logsumexp,
    aten.gather.default: _gather,
    aten.scatter_add.default: _scatter_add,
}
