"""Products with the examples of one client, without what they have in common with a typical example.

    x_i = typical + d_i

Where an example agrees with the typical one (the border of images, a word that a text does not use), d_i is zero, and
what is multiplied by it is left out. How many examples there are and where they differ is read when the kernels run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fedkeep.native.elementwise import each
from fedkeep.native.emit import INDEX, KINDS, Cell, Kernel, Value, processor
from fedkeep.native.products import dots, pieces, sums, tiles

Place = Value
"""A pointer."""
WORD = 30  # examples marked in one integer: whole strips, whether of five or of three


@dataclass(frozen=True)
class Layer:
    """A dense layer whose inputs are examples."""

    inputs: int
    outputs: int
    most: int  # examples

    @property
    def words(self) -> int:
        """How many integers it takes to mark examples."""
        return -(-self.most // WORD)


def across(kernel: Kernel, count: int) -> Iterator[tuple[Value, list[tuple[int, int]]]]:
    """(first, vectors) of the columns of a row of that length that are made together."""
    for first, wide in tiles(kernel, count, side() * processor().lanes):
        yield first, pieces(wide)


def side() -> int:
    """How many rows, and vectors of columns, of a result are made at a time."""
    return 5 if processor().registers > 16 else 3


def strips(kernel: Kernel, count: Value, write: Callable[[Value, int], None], most: int = 5) -> None:
    """write(first, how many): as many at a time as `side` says, but at most so many; then one by one."""
    high = min(side(), most)
    whole = kernel.builder.mul(kernel.builder.sdiv(count, INDEX(high)), INDEX(high))
    with kernel.range(INDEX(0), whole, high) as first:
        write(first, high)
    with kernel.range(whole, count) as first:
        write(first, 1)


def gather(
    kernel: Kernel, layer: Layer, pool: Place, typical: Place, rows: Place, counts: Place, differences: Place
) -> None:
    """How `counts[0]` examples of the pool differ from the typical one."""
    with kernel.range(INDEX(0), kernel.scalar(counts, INDEX(0), torch.int64)) as i:
        row = kernel.scalar(rows, i, torch.int64)

        def copy(indices: Sequence[Value], lanes: int) -> None:
            here = kernel.load(pool, kernel.at([(row, layer.inputs), (indices[0], 1)]), lanes)
            value = kernel.builder.fsub(here, kernel.load(typical, indices[0], lanes))
            kernel.store(value, differences, kernel.at([(i, layer.inputs), (indices[0], 1)]))

        each(kernel, [layer.inputs], True, copy)


def mark(kernel: Kernel, layer: Layer, differences: Place, counts: Place, marks: Place, columns: Place) -> None:
    """Where examples differ: a bit for each in marks [words, inputs], and a list of all columns with any.

    There are `counts[1]` of those.
    """
    builder, rows = kernel.builder, kernel.scalar(counts, INDEX(0), torch.int64)
    bits = KINDS[torch.int32]
    with kernel.range(INDEX(0), INDEX(layer.words)) as word:
        start = builder.mul(word, INDEX(WORD))
        end = builder.add(start, INDEX(WORD))
        end = kernel.choose(builder.icmp_signed("<", end, rows), end, rows)
        for first, parts in across(kernel, layer.inputs):
            found = [Cell(kernel, kernel.number(0, count, torch.int32)) for _, count in parts]
            with kernel.range(start, end) as row:
                bit = builder.shl(bits(1), builder.trunc(builder.sub(row, start), bits))
                for (place, count), cell in zip(parts, found, strict=True):
                    here = kernel.load(differences, kernel.at([(row, layer.inputs), (first, 1)], place), count)
                    other = builder.fcmp_unordered("!=", here, kernel.number(0.0, count))
                    marked = builder.or_(cell.get(), kernel.spread(bit, count))
                    cell.set(kernel.choose(other, marked, cell.get()))
            for (place, _), cell in zip(parts, found, strict=True):
                kernel.store(cell.get(), marks, kernel.at([(word, layer.inputs), (first, 1)], place), torch.int32)
    used = Cell(kernel, INDEX(0))
    with kernel.loop(layer.inputs) as column:
        here: Value = bits(0)
        for word in range(layer.words):
            here = builder.or_(here, kernel.scalar(marks, kernel.at([(column, 1)], word * layer.inputs), torch.int32))
        _list(kernel, columns, used, column, builder.icmp_signed("!=", here, bits(0)))
    kernel.put(used.get(), counts, INDEX(1), torch.int64)


def _list(kernel: Kernel, target: Place, used: Cell, value: Value, wanted: Value) -> None:
    """Append a value to a list, if it is wanted; no branch: what is not is overwritten by the next."""
    front = used.get()
    kernel.put(value, target, front, torch.int64)
    used.set(kernel.builder.add(front, kernel.builder.zext(wanted, INDEX)))


def apply(
    kernel: Kernel,
    layer: Layer,
    differences: Place,
    counts: Place,
    marks: Place,
    columns: Place,
    listed: Place,
    weights: Place,
    target: Place,
) -> None:
    """target = examples times weights [inputs + 1, outputs], whose last row is the typical example's result.

    `listed` is room for a list of columns.
    """
    builder, bits = kernel.builder, KINDS[torch.int32]
    rows, count = (kernel.scalar(counts, INDEX(place), torch.int64) for place in (0, 1))

    def write(row: Value, high: int) -> None:
        word = builder.sdiv(row, INDEX(WORD))
        shift = builder.trunc(builder.sub(row, builder.mul(word, INDEX(WORD))), bits)
        mask = builder.shl(bits((1 << high) - 1), shift)
        used = Cell(kernel, INDEX(0))
        with kernel.range(INDEX(0), count) as place:
            column = kernel.scalar(columns, place, torch.int64)
            marked = kernel.scalar(marks, kernel.at([(word, layer.inputs), (column, 1)]), torch.int32)
            _list(kernel, listed, used, column, builder.icmp_signed("!=", builder.and_(marked, mask), bits(0)))
        found = used.get()

        def at(k: Value) -> Value:
            return kernel.scalar(listed, k, torch.int64)

        def left(i: int, k: Value) -> Value:
            return kernel.scalar(differences, kernel.at([(row, layer.inputs), (at(k), 1)], i * layer.inputs))

        for first, lanes in across(kernel, layer.outputs):

            def right(place: int, count: int, k: Value, first=first) -> Value:
                return kernel.load(weights, kernel.at([(at(k), layer.outputs), (first, 1)], place), count)

            cells = sums(kernel, kernel.range(INDEX(0), found), high, lanes, left, right)
            for (i, j), cell in cells.items():
                place, wide = lanes[j]
                common = kernel.load(weights, kernel.at([(first, 1)], layer.inputs * layer.outputs + place), wide)
                value = builder.fadd(cell.get(), common)
                kernel.store(value, target, kernel.at([(row, layer.outputs), (first, 1)], i * layer.outputs + place))

    strips(kernel, rows, write)


def inner_products(
    kernel: Kernel, layer: Layer, differences: Place, typical: Place, counts: Place, target: Place
) -> None:
    """target[i, j] = example i times example j, for a table with rows of `layer.most`.

    Only for examples j of earlier batches than example i's, if `counts[2]` says how large batches are; all if it is 0.
    """
    builder = kernel.builder
    rows, batch = (kernel.scalar(counts, INDEX(place), torch.int64) for place in (0, 2))
    whole_table = builder.icmp_signed("==", batch, INDEX(0))
    size = kernel.choose(whole_table, INDEX(1), batch)

    def example(row: Value, i: int, k: Value, count: int) -> Value:
        place = kernel.at([(row, layer.inputs), (k, 1)], i * layer.inputs)
        whole = processor().lanes
        return builder.fadd(kernel.load(differences, place, count, of=whole), kernel.load(typical, k, count, of=whole))

    def write_rows(row: Value, high: int) -> None:
        def write(other: Value, wide: int) -> None:
            tile = dots(
                kernel,
                *(layer.inputs, high, wide),
                lambda i, k, count: example(row, i, k, count),
                lambda j, k, count: example(other, j, k, count),
            )
            for i, totals in enumerate(tile):
                kernel.store(totals, target, kernel.at([(row, layer.most), (other, 1)], i * layer.most))

        earlier = builder.mul(builder.sdiv(kernel.at([(row, 1)], high - 1), size), size)
        others = kernel.choose(whole_table, kernel.at([(row, 1)], high), earlier)
        strips(kernel, others, write, most=processor().lanes)  # sums of more vectors would not fit into one

    strips(kernel, rows, write_rows)
    with kernel.range(INDEX(0), kernel.choose(whole_table, rows, INDEX(0))) as i, kernel.range(INDEX(0), i) as j:
        here, there = (kernel.at([(a, layer.most), (b, 1)]) for a, b in ((i, j), (j, i)))
        kernel.put(kernel.scalar(target, here), target, there)


def add_span(
    kernel: Kernel,
    layer: Layer,
    differences: Place,
    counts: Place,
    marks: Place,
    columns: Place,
    coefficients: Place,
    factor: Place,
    target: Place,
) -> None:
    """target [inputs + 1, outputs] += factor * differences turned times coefficients.

    The last row of the target takes what the typical example is to be multiplied by: factor * the sum of coefficients.
    """
    rows, listed = (kernel.scalar(counts, INDEX(place), torch.int64) for place in (0, 1))
    scalar = kernel.scalar(factor, INDEX(0))

    def add(row: Value, first: Value, place: int, count: int, value: Value) -> None:
        here = kernel.at([(row, layer.outputs), (first, 1)], place)
        kernel.store(kernel.fma(kernel.spread(scalar, count), value, kernel.load(target, here, count)), target, here)

    for first, lanes in across(kernel, layer.outputs):

        def right(place: int, count: int, k: Value, first=first) -> Value:
            return kernel.load(coefficients, kernel.at([(k, layer.outputs), (first, 1)], place), count)

        cells = sums(kernel, kernel.range(INDEX(0), rows), 1, lanes, None, right)
        for j, (place, count) in enumerate(lanes):
            add(INDEX(layer.inputs), first, place, count, cells[0, j].get())

        def write(place: Value, high: int, first=first, lanes=lanes, right=right) -> None:
            here = [kernel.scalar(columns, kernel.at([(place, 1)], i), torch.int64) for i in range(high)]

            def left(i: int, k: Value) -> Value:
                return kernel.scalar(differences, kernel.at([(k, layer.inputs), (here[i], 1)]))

            cells = sums(kernel, _marked(kernel, layer, marks, here), high, lanes, left, right)
            for (i, j), cell in cells.items():
                add(here[i], first, lanes[j][0], lanes[j][1], cell.get())

        strips(kernel, listed, write)


def write_out(
    kernel: Kernel,
    layer: Layer,
    differences: Place,
    typical: Place,
    counts: Place,
    coefficients: Place,
    weight: Place,
    totals: Place,
    target: Place,
) -> None:
    """target = weight [outputs, inputs] + coefficients turned times examples; `totals` is room for one row."""
    rows = kernel.scalar(counts, INDEX(0), torch.int64)
    for first, lanes in across(kernel, layer.outputs):

        def coefficient(place: int, count: int, k: Value, first=first) -> Value:
            return kernel.load(coefficients, kernel.at([(k, layer.outputs), (first, 1)], place), count)

        cells = sums(kernel, kernel.range(INDEX(0), rows), 1, lanes, None, coefficient)
        for j, (place, _) in enumerate(lanes):
            kernel.store(cells[0, j].get(), totals, kernel.at([(first, 1)], place))

    for column, lanes in across(kernel, layer.inputs):
        for row, high in tiles(kernel, layer.outputs, side()):

            def left(i: int, k: Value, row=row) -> Value:
                return kernel.scalar(coefficients, kernel.at([(k, layer.outputs), (row, 1)], i))

            def right(place: int, count: int, k: Value, column=column) -> Value:
                return kernel.load(differences, kernel.at([(k, layer.inputs), (column, 1)], place), count)

            cells = sums(kernel, kernel.range(INDEX(0), rows), high, lanes, left, right)
            for (i, j), cell in cells.items():
                place, count = lanes[j]
                here = kernel.at([(row, layer.inputs), (column, 1)], i * layer.inputs + place)
                value = kernel.builder.fadd(cell.get(), kernel.load(weight, here, count))
                total = kernel.spread(kernel.scalar(totals, kernel.at([(row, 1)], i)), count)
                common = kernel.load(typical, kernel.at([(column, 1)], place), count)
                kernel.store(kernel.fma(total, common, value), target, here)


@contextmanager
def _marked(kernel: Kernel, layer: Layer, marks: Place, columns: Sequence[Value]) -> Iterator[Value]:
    """The examples that are marked in any of these columns."""
    builder, bits = kernel.builder, KINDS[torch.int32]
    with kernel.range(INDEX(0), INDEX(layer.words)) as word:
        found: Value = bits(0)
        for column in columns:
            here = kernel.at([(word, layer.inputs), (column, 1)])
            found = builder.or_(found, kernel.scalar(marks, here, torch.int32))
        with kernel.bits(found) as bit:
            yield builder.add(builder.mul(word, INDEX(WORD)), bit)


def reset(kernel: Kernel, coefficients: int, others: int, start: Place, target: Place) -> None:
    """target = so many zeros, and behind them `others` numbers from `start`."""

    def clear(indices: Sequence[Value], lanes: int) -> None:
        kernel.store(kernel.number(0.0, lanes), target, indices[0])

    def copy(indices: Sequence[Value], lanes: int) -> None:
        kernel.store(kernel.load(start, indices[0], lanes), target, kernel.at([(indices[0], 1)], coefficients))

    each(kernel, [coefficients], True, clear)
    each(kernel, [others], True, copy)


def squares(kernel: Kernel, count: int, numbers: Place, target: Place) -> None:
    """target[0] = the sum of the squares of so many numbers, a multiple of the vectors' length."""
    lanes = processor().lanes
    total = Cell(kernel, kernel.number(0.0, lanes))
    with kernel.loop(count, lanes) as place:
        here = kernel.load(numbers, place, lanes)
        total.set(kernel.fma(here, here, total.get()))
    kernel.put(kernel.total(total.get()), target, INDEX(0))


def add_change(kernel: Kernel, count: int, offset: int, start: Place, end: Place, factor: Place, total: Place) -> None:
    """total += factor * (end - start), for so many numbers; those of `end` begin after an offset."""
    scalar = kernel.scalar(factor, INDEX(0))

    def add(indices: Sequence[Value], lanes: int) -> None:
        after = kernel.load(end, kernel.at([(indices[0], 1)], offset), lanes)
        change = kernel.builder.fsub(after, kernel.load(start, indices[0], lanes))
        value = kernel.fma(kernel.spread(scalar, lanes), change, kernel.load(total, indices[0], lanes))
        kernel.store(value, total, indices[0])

    each(kernel, [count], True, add)
