"""Matrix products of fixed shape, the sums kept in registers.

    C[m, n] = finish(start(m, n) + alpha sum_k A[m, k] B[k, n])

What is added to and what becomes of the result is the caller's to say, so that a bias, or a whole update of a weight
with its corrections, costs no pass over memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fedkeep.native.emit import INDEX, Cell, Kernel, Unsupported, Value, processor

DEEP = 1 << 18  # bytes of B above which it is read in blocks of rows
BLOCK = 8  # rows of such a block
FLOAT = 4  # bytes
ZERO = INDEX(0)
ABREAST = 4  # columns of the result whose sums are taken together, where both factors lie along the sum

Start = Callable[[Value, Value, int], Value]
"""(row, column, lanes) -> what to add to, for neighbouring elements of a row."""
Finish = Callable[[Value, Value, Value], None]
"""(row, column, sums) -> what becomes of them."""


@dataclass(frozen=True)
class Matrix:
    """Where the elements of a matrix lie."""

    pointer: Value
    row: int  # strides
    column: int


def product(
    kernel: Kernel,
    shape: tuple[int, int, int],
    a: Matrix | None,  # None: all ones
    b: Matrix,
    alpha: float,
    start: Start,
    finish: Finish,
    again: Start | None = None,
) -> None:
    """Write a product of shape (rows, columns, depth).

    `again`: how to read what `finish` wrote, if that can be added to.
    """
    rows, columns, depth = shape
    if b.column == 1 and a and again and depth > BLOCK and depth * columns * FLOAT > DEEP:
        _by_rows(kernel, (rows, columns, BLOCK), a, b, alpha, start, finish)
        for first, deep in tiles(kernel, depth - BLOCK, BLOCK):
            _by_rows(kernel, (rows, columns, deep), a, b, alpha, again, finish, _plus(kernel, first, BLOCK))
    elif b.column == 1:
        _by_rows(kernel, shape, a, b, alpha, start, finish)
    elif a is not None and a.column == 1 and b.row == 1:
        _by_dots(kernel, shape, a, b, alpha, start, finish)
    else:
        raise Unsupported("a product of matrices that lie like this")


def _by_rows(
    kernel: Kernel,
    shape: tuple[int, int, int],
    a: Matrix | None,
    b: Matrix,
    alpha: float,
    start: Start,
    finish: Finish,
    first: Value = ZERO,
) -> None:
    """Rows of B lie in memory, from the first on: an element of A times a vector of B."""
    rows, columns, depth = shape
    height, width = _tile(rows, columns)
    for row, high in tiles(kernel, rows, height):
        for column, wide in tiles(kernel, columns, width):
            lanes = pieces(wide)

            def left(i: int, step: Value, row=row) -> Value:
                k = kernel.builder.add(first, step)
                return kernel.scalar(a.pointer, kernel.at([(row, a.row), (k, a.column)], i * a.row))  # type: ignore[union-attr]

            def right(place: int, count: int, step: Value, column=column) -> Value:
                k = kernel.builder.add(first, step)
                return kernel.load(b.pointer, kernel.at([(k, b.row), (column, 1)], place), count)

            cells = sums(kernel, kernel.loop(depth), high, lanes, left if a else None, right)
            for (i, j), cell in cells.items():
                m, n = _plus(kernel, row, i), _plus(kernel, column, lanes[j][0])
                finish(m, n, _on_top(kernel, alpha, cell.get(), start(m, n, lanes[j][1])))


def sums(
    kernel: Kernel,
    steps: AbstractContextManager[Value],
    high: int,
    lanes: Sequence[tuple[int, int]],
    left: Callable[[int, Value], Value] | None,  # None: all ones
    right: Callable[[int, int, Value], Value],
) -> dict[tuple[int, int], Cell]:
    """A tile of a product: for some rows and vectors of columns, the sums over k of left(row, k) right(vector, k)."""
    cells = {(i, j): Cell(kernel, kernel.number(0.0, count)) for i in range(high) for j, (_, count) in enumerate(lanes)}
    with steps as k:
        vectors = [right(place, count, k) for place, count in lanes]
        for i in range(high):
            factor = left and left(i, k)
            for j, vector in enumerate(vectors):
                if factor is None:
                    cells[i, j].set(kernel.builder.fadd(vector, cells[i, j].get()))
                    continue
                cells[i, j].set(kernel.fma(kernel.spread(factor, vector.type.count), vector, cells[i, j].get()))
    return cells


def _on_top(kernel: Kernel, alpha: float, sums: Value, start: Value) -> Value:
    """start + alpha sums"""
    if alpha == 1:
        return kernel.builder.fadd(sums, start)
    return kernel.fma(kernel.number(alpha, sums.type.count), sums, start)


def _by_dots(
    kernel: Kernel, shape: tuple[int, int, int], a: Matrix, b: Matrix, alpha: float, start: Start, finish: Finish
) -> None:
    """Rows of A and columns of B lie in memory: sums of products of vectors."""
    rows, columns, depth = shape
    lanes = processor().lanes
    width = min(columns, ABREAST)
    height = part(rows, processor().cells // ABREAST)
    for row, high in tiles(kernel, rows, height):
        for column, wide in tiles(kernel, columns, width):

            def left(i: int, k: Value, count: int, row=row) -> Value:
                return kernel.load(a.pointer, kernel.at([(row, a.row), (k, 1)], i * a.row), count, of=lanes)

            def right(j: int, k: Value, count: int, column=column) -> Value:
                return kernel.load(b.pointer, kernel.at([(column, b.column), (k, 1)], j * b.column), count, of=lanes)

            for i, sums_of_row in enumerate(dots(kernel, depth, high, wide, left, right)):
                m = _plus(kernel, row, i)
                finish(m, column, _on_top(kernel, alpha, sums_of_row, start(m, column, wide)))


def dots(
    kernel: Kernel,
    depth: int,
    high: int,
    wide: int,
    left: Callable[[int, Value, int], Value],
    right: Callable[[int, Value, int], Value],
) -> list[Value]:
    """A tile of a product whose factors both lie along the sum: for each row, its sums side by side.

    left, right: (row or column, first k, how many) -> a whole vector, zeros behind.
    """
    lanes = processor().lanes
    full = depth // lanes * lanes
    cells = {(i, j): Cell(kernel, kernel.number(0, lanes)) for i in range(high) for j in range(wide)}

    def add(k: Value, count: int) -> None:
        vectors = [right(j, k, count) for j in range(wide)]
        for i in range(high):
            one = left(i, k, count)
            for j, vector in enumerate(vectors):
                cells[i, j].set(kernel.fma(one, vector, cells[i, j].get()))

    if full:
        with kernel.loop(full, lanes) as k:
            add(k, lanes)
    if full < depth:
        add(INDEX(full), depth - full)
    return [kernel.totals([cells[i, j].get() for j in range(wide)]) for i in range(high)]


def _plus(kernel: Kernel, index: Value, more: int) -> Value:
    return kernel.at([(index, 1)], more)


def _tile(rows: int, columns: int) -> tuple[int, int]:
    """How many rows and columns of the result to make at a time."""
    lanes, cells = processor().lanes, processor().cells
    across = -(-columns // lanes)
    height = part(rows, 8 if across == 1 else 5)
    return height, lanes * min(across, max(1, cells // height))


def part(count: int, most: int) -> int:
    """The size of equal parts, but for the last, of at most `most`.

    >>> part(14, 6), part(10, 6), part(4, 6)
    (5, 5, 4)
    """
    return -(-count // -(-count // most))


def tiles(kernel: Kernel, count: int, size: int) -> Iterator[tuple[Value, int]]:
    """(first, how many) for whole tiles, in a loop, and for the rest."""
    whole = count // size * size
    if whole:
        with kernel.loop(whole, size) as first:
            yield first, size
    if whole < count:
        yield INDEX(whole), count - whole


def pieces(wide: int) -> list[tuple[int, int]]:
    """(place, how many) of the vectors that make up a row of a tile."""
    lanes = processor().lanes
    return [(place, min(lanes, wide - place)) for place in range(0, wide, lanes)]
