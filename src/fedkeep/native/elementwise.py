"""What is done to each element, or along each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from llvmlite import ir

from fedkeep.native.emit import INDEX, Cell, Kernel, Unsupported, Value, processor

LOWEST, HIGHEST = -87.33654, 88.37626  # exp of less is no normal number, of more it overflows
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # Cody and Waite: their sum is ln 2, the first is exact in few bits
POLYNOMIAL = (  # of Cephes' expf: (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def each(kernel: Kernel, sizes: Sequence[int], vector: bool, body: Callable[[Sequence[Value], int], None]) -> None:
    """Nested loops; the innermost in vectors if its elements lie side by side."""

    def inner(indices: list[Value], left: Sequence[int]) -> None:
        if len(left) > 1:
            with kernel.loop(left[0]) as index:
                inner([*indices, index], left[1:])
            return
        lanes = processor().lanes if vector else 1
        whole = left[0] // lanes * lanes
        if whole:
            with kernel.loop(whole, lanes) as index:
                body([*indices, index], lanes)
        if whole < left[0]:
            body([*indices, INDEX(whole)], left[0] - whole)

    inner([], sizes or [1])


def exp(kernel: Kernel, x: Value) -> Value:
    """e^x of single precision: 2^n times a polynomial; exactly 0 at -inf, and nan stays nan."""
    if x.type.element != ir.FloatType():
        raise Unsupported("exp in double precision")
    builder, lanes = kernel.builder, x.type.count

    def number(value: float) -> Value:
        return kernel.number(value, lanes)

    inside = kernel.apply("minnum", kernel.apply("maxnum", x, number(LOWEST)), number(HIGHEST))
    n = kernel.apply("rint", builder.fmul(inside, number(math.log2(math.e))))
    r = kernel.fma(n, number(-LN2_LOW), kernel.fma(n, number(-LN2_HIGH), inside))
    p = number(POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        p = kernel.fma(p, r, number(coefficient))
    value = builder.fadd(kernel.fma(builder.fmul(p, r), r, r), number(1.0))
    integers = ir.VectorType(ir.IntType(32), lanes)
    exponent = builder.add(builder.fptosi(n, integers), ir.Constant(integers, [127] * lanes))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(integers, [23] * lanes)), x.type)
    value = builder.fmul(value, power)
    value = kernel.choose(builder.fcmp_ordered("<", x, number(LOWEST)), number(0.0), value)
    value = kernel.choose(builder.fcmp_ordered(">", x, number(HIGHEST)), number(math.inf), value)
    return kernel.choose(builder.fcmp_unordered("uno", x, x), x, value)


def positive(kernel: Kernel, x: Value) -> Value:
    """relu: x where it is above 0 or nan."""
    zero = kernel.number(0.0, x.type.count)
    return kernel.choose(kernel.builder.fcmp_ordered("<=", x, zero), zero, x)


def where_above(kernel: Kernel, gradient: Value, x: Value, threshold: float) -> Value:
    """threshold_backward: the gradient where x is above the threshold."""
    low = kernel.builder.fcmp_ordered("<=", x, kernel.number(threshold, x.type.count))
    return kernel.choose(low, kernel.number(0.0, x.type.count), gradient)


def softmax(kernel: Kernel, rows: int, columns: int, source: Value, target: Value) -> None:
    """Along each row of a matrix that lies row by row."""
    with kernel.loop(rows) as row:
        _, total = _peak_and_total(kernel, row, columns, source, target)
        share = kernel.builder.fdiv(ir.Constant(ir.FloatType(), 1.0), total)

        def scale(indices: Sequence[Value], lanes: int) -> None:
            place = kernel.at([(row, columns), (indices[0], 1)])
            value = kernel.load(target, place, lanes)
            kernel.store(kernel.builder.fmul(value, kernel.spread(share, lanes)), target, place)

        each(kernel, [columns], True, scale)


def logsumexp(kernel: Kernel, rows: int, columns: int, source: Value, target: Value) -> None:
    """Along each row of a matrix that lies row by row."""
    with kernel.loop(rows) as row:
        peak, total = _peak_and_total(kernel, row, columns, source, None)
        kernel.put(kernel.builder.fadd(peak, kernel.apply("log", total)), target, row)


def _peak_and_total(
    kernel: Kernel, row: Value, columns: int, source: Value, target: Value | None
) -> tuple[Value, Value]:
    """The largest element of a row, 0 if that is infinite, and the sum of e^(element - largest), kept where asked."""
    number = ir.FloatType()
    peak, total = Cell(kernel, ir.Constant(number, -math.inf)), Cell(kernel, ir.Constant(number, 0.0))

    def look(indices: Sequence[Value], lanes: int) -> None:
        value = kernel.load(source, kernel.at([(row, columns), (indices[0], 1)]), lanes)
        peak.set(kernel.apply("maxnum", peak.get(), kernel.largest(value)))

    each(kernel, [columns], True, look)
    size = kernel.apply("fabs", peak.get())
    endless = kernel.builder.fcmp_ordered("==", size, ir.Constant(number, math.inf))
    peak.set(kernel.choose(endless, ir.Constant(number, 0.0), peak.get()))

    def add(indices: Sequence[Value], lanes: int) -> None:
        place = kernel.at([(row, columns), (indices[0], 1)])
        value = kernel.load(source, place, lanes)
        value = exp(kernel, kernel.builder.fsub(value, kernel.spread(peak.get(), lanes)))
        if target is not None:
            kernel.store(value, target, place)
        total.set(kernel.builder.fadd(total.get(), kernel.total(value)))

    each(kernel, [columns], True, add)
    return peak.get(), total.get()


def put_at_label(
    kernel: Kernel, rows: int, columns: int, labels: Value, numbers: Callable[[Value], Value], target: Value
) -> None:
    """scatter_add to zeros: in each row, the row's number at its label's place."""
    with kernel.loop(rows) as row:

        def clear(indices: Sequence[Value], lanes: int) -> None:
            kernel.store(kernel.number(0.0, lanes), target, kernel.at([(row, columns), (indices[0], 1)]))

        each(kernel, [columns], True, clear)
        label = kernel.scalar(labels, row, torch.int64)
        kernel.put(numbers(row), target, kernel.at([(row, columns), (label, 1)]))


def take_at_label(kernel: Kernel, rows: int, columns: int, labels: Value, source: Value, target: Value) -> None:
    """gather: of each row, the number at its label's place."""
    with kernel.loop(rows) as row:
        label = kernel.scalar(labels, row, torch.int64)
        kernel.put(kernel.scalar(source, kernel.at([(row, columns), (label, 1)])), target, row)
