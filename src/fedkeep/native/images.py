"""Convolutions and pools of images whose channels lie side by side.

An image is [height][width][channels] in memory, with a border of zeros left and right where the convolution has one;
rows above and below the image are left out of the sums. So the pixels that a row of the filter sees lie side by side,
and a filter is [kernel height][kernel width * channels].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedkeep.native.elementwise import each
from fedkeep.native.emit import INDEX, Cell, Kernel, Terms, Value, processor
from fedkeep.native.products import part, pieces, tiles


@dataclass(frozen=True)
class Shape:
    """A convolution with step one: how large, and how many zeros around."""

    images: int
    height: int  # of the image that is read
    width: int
    channels: int
    filters: int
    kernel_height: int
    kernel_width: int
    top: int  # rows of zeros above; those below follow from the height of the result
    left: int
    out_height: int
    out_width: int

    @property
    def span(self) -> int:
        """Numbers that one row of a filter sees."""
        return self.kernel_width * self.channels

    @property
    def row(self) -> int:
        """Numbers in a row of the image with its border."""
        return (self.out_width + self.kernel_width - 1) * self.channels

    @property
    def bordered(self) -> int:
        """Numbers in all images with their borders."""
        return self.images * self.height * self.row


def with_border(kernel: Kernel, shape: Shape, source: Value, target: Value) -> None:
    """Images with zeros left and right of every row."""
    before, inside = shape.left * shape.channels, shape.width * shape.channels
    after = shape.row - before - inside
    with kernel.loop(shape.images * shape.height) as row:
        for first, count, copied in ((0, before, False), (before, inside, True), (before + inside, after, False)):

            def body(indices: Sequence[Value], lanes: int, first=first, copied=copied) -> None:
                there = kernel.at([(row, inside), (indices[0], 1)])
                value = kernel.load(source, there, lanes) if copied else kernel.number(0.0, lanes)
                kernel.store(value, target, kernel.at([(row, shape.row), (indices[0], 1)], first))

            if count:
                each(kernel, [count], True, body)


def filters_by_pixel(kernel: Kernel, shape: Shape, source: Value, strides: Sequence[int], target: Value) -> None:
    """[kernel height][span][filter]: what a pixel is multiplied with lies together.

    `strides` of the source: by filter, channel, row, column.
    """
    with (
        kernel.loop(shape.kernel_height) as y,
        kernel.loop(shape.kernel_width) as x,
        kernel.loop(shape.channels) as channel,
        kernel.loop(shape.filters) as one,
    ):
        value = kernel.scalar(source, kernel.at(list(zip((one, channel, y, x), strides, strict=True))))
        by = (shape.span * shape.filters, shape.channels * shape.filters, shape.filters, 1)
        kernel.put(value, target, kernel.at(list(zip((y, x, channel, one), by, strict=True))))


def filters_turned(kernel: Kernel, shape: Shape, source: Value, target: Value) -> None:
    """The filters, by pixel, of the convolution that takes gradients back to the image that `shape` reads.

    [filter][kernel height][kernel width][channel] -> [kernel height][kernel width][filter][channel], upside down.
    """
    high, wide, channels = shape.kernel_height, shape.kernel_width, shape.channels
    with kernel.loop(high) as y, kernel.loop(wide) as x, kernel.loop(shape.filters) as one:

        def body(indices: Sequence[Value], lanes: int) -> None:
            strides = [(one, high * shape.span), (y, -shape.span), (x, -channels), (indices[0], 1)]
            value = kernel.load(source, kernel.at(strides, (high - 1) * shape.span + (wide - 1) * channels), lanes)
            there = [
                (y, wide * shape.filters * channels),
                (x, shape.filters * channels),
                (one, channels),
                (indices[0], 1),
            ]
            kernel.store(value, target, kernel.at(there))

        each(kernel, [channels], True, body)


def convolve(kernel: Kernel, shape: Shape, image: Value, filters: Value, bias: Value | None, target: Value) -> None:
    """Bordered images and filters by pixel -> [height][width][filter]."""
    widest = processor().cells * processor().lanes // 4  # filters at a time
    for block, many in tiles(kernel, shape.filters, min(shape.filters, widest)):
        lanes = pieces(many)
        pixels = part(shape.out_width, max(1, processor().cells // len(lanes)))
        with kernel.loop(shape.images) as n, kernel.loop(shape.out_height) as y:
            first, last = rows_inside(kernel, shape, y, shape.kernel_height)
            for x, count in tiles(kernel, shape.out_width, pixels):
                start = [
                    kernel.load(bias, kernel.at([(block, 1)], p), c) if bias else kernel.number(0.0, c)
                    for p, c in lanes
                ]
                cells = [[Cell(kernel, value) for value in start] for _ in range(count)]
                with kernel.range(first, last) as ky:
                    above = kernel.builder.sub(kernel.builder.add(y, ky), INDEX(shape.top))
                    with kernel.loop(shape.span) as s:
                        here = [(ky, shape.span * shape.filters), (s, shape.filters), (block, 1)]
                        weights = [kernel.load(filters, kernel.at(here, p), c) for p, c in lanes]
                        there = [(n, shape.height * shape.row), (above, shape.row), (x, shape.channels), (s, 1)]
                        for i, sums in enumerate(cells):
                            number = kernel.scalar(image, kernel.at(there, i * shape.channels))
                            for cell, weight in zip(sums, weights, strict=True):
                                cell.set(kernel.fma(kernel.spread(number, weight.type.count), weight, cell.get()))
                out = [(n, shape.out_height * shape.out_width * shape.filters), (y, shape.out_width * shape.filters)]
                for i, sums in enumerate(cells):
                    for cell, (p, _) in zip(sums, lanes, strict=True):
                        place = kernel.at([*out, (x, shape.filters), (block, 1)], i * shape.filters + p)
                        kernel.store(cell.get(), target, place)


def rows_inside(kernel: Kernel, shape: Shape, row: Value, most: int) -> tuple[Value, Value]:
    """Which rows of the filter see the image from this row of the result; or, the other way round, from which rows of
    the result this row of the filter sees it. From the first to before the last of at most `most`."""
    first = kernel.apply("smax", INDEX(0), kernel.builder.sub(INDEX(shape.top), row))
    end = kernel.builder.sub(INDEX(shape.height + shape.top), row)
    return first, kernel.apply("smin", INDEX(most), end)


@dataclass(frozen=True)
class Side:
    """One of the two factors of a filter's gradient."""

    count: int  # numbers of it at one pixel
    pointer: Value
    pixel: Callable[[Value, Value], Terms]  # row and column of the result -> where they begin
    stride: int  # of the target, from one number to the next


def filter_gradient(
    kernel: Kernel, shape: Shape, image: Value, gradient: Value, target: Value, strides: tuple[int, int, int]
) -> None:
    """Bordered images, [height][width][filter] gradients: the sum over pixels of their products is added to a target.

    `strides`: of the target, by filter, by row of the filter, by number in that row. Those whose stride is one lie in
    vectors, the others are spread.
    """
    by_filter, by_row, by_number = strides
    out_row = shape.out_width * shape.filters

    with kernel.loop(shape.images) as n, kernel.loop(shape.kernel_height) as ky:
        first, last = rows_inside(kernel, shape, ky, shape.out_height)

        def in_image(y: Value, x: Value) -> Terms:
            above = kernel.builder.sub(kernel.builder.add(y, ky), INDEX(shape.top))
            return [(n, shape.height * shape.row), (above, shape.row), (x, shape.channels)]

        def in_gradient(y: Value, x: Value) -> Terms:
            return [(n, shape.out_height * out_row), (y, out_row), (x, shape.filters)]

        filters = Side(shape.filters, gradient, in_gradient, by_filter)
        numbers = Side(shape.span, image, in_image, by_number)
        a, b = (filters, numbers) if by_number == 1 else (numbers, filters)
        height, width = _tile(a.count, b.count)
        for row, high in tiles(kernel, a.count, height):
            for column, wide in tiles(kernel, b.count, width):
                lanes = pieces(wide)
                there = [(ky, by_row), (row, a.stride), (column, 1)]
                cells = {
                    (i, j): Cell(kernel, kernel.load(target, kernel.at(there, i * a.stride + place), count))
                    for i in range(high)
                    for j, (place, count) in enumerate(lanes)
                }
                with kernel.range(first, last) as y, kernel.loop(shape.out_width) as x:
                    here = [*b.pixel(y, x), (column, 1)]
                    values = [kernel.load(b.pointer, kernel.at(here, place), count) for place, count in lanes]
                    for i in range(high):
                        number = kernel.scalar(a.pointer, kernel.at([*a.pixel(y, x), (row, 1)], i))
                        for j, value in enumerate(values):
                            factor = kernel.spread(number, value.type.count)
                            cells[i, j].set(kernel.fma(factor, value, cells[i, j].get()))
                for (i, j), cell in cells.items():
                    kernel.store(cell.get(), target, kernel.at(there, i * a.stride + lanes[j][0]))


def _tile(rows: int, columns: int) -> tuple[int, int]:
    """Numbers to spread and numbers in vectors at a time."""
    lanes, cells = processor().lanes, processor().cells
    wide = part(-(-columns // lanes), 5 if rows > 3 else cells // rows)
    return part(rows, max(1, cells // wide)), min(columns, wide * lanes)


def clear(kernel: Kernel, count: int, target: Value) -> None:
    """Zeros."""
    each(kernel, [count], True, lambda indices, lanes: kernel.store(kernel.number(0.0, lanes), target, indices[0]))


@dataclass(frozen=True)
class Pool:
    """The largest of each square of two by two pixels."""

    images: int
    height: int  # of the images that are pooled
    width: int
    channels: int

    def squares(self, kernel: Kernel, body: Callable[[list[Value], Value, int], None]) -> None:
        """body(where the four pixels lie, where the result lies, lanes) for all squares and channels."""
        row = self.width * self.channels
        with (
            kernel.loop(self.images) as n,
            kernel.loop(self.height // 2) as y,
            kernel.loop(self.width // 2) as x,
        ):

            def inner(indices: Sequence[Value], lanes: int) -> None:
                corner = [(n, self.height * row), (y, 2 * row), (x, 2 * self.channels), (indices[0], 1)]
                places = [kernel.at(corner, offset) for offset in (0, self.channels, row, row + self.channels)]
                half = (self.width // 2) * self.channels
                there = [(n, (self.height // 2) * half), (y, half), (x, self.channels), (indices[0], 1)]
                body(places, kernel.at(there), lanes)

            each(kernel, [self.channels], True, inner)


def pooled(kernel: Kernel, pool: Pool, image: Value, target: Value) -> None:
    """The largest pixel of each square."""

    def body(places: list[Value], there: Value, lanes: int) -> None:
        values = [kernel.load(image, place, lanes) for place in places]
        largest = values[0]
        for value in values[1:]:
            larger = kernel.builder.fcmp_unordered(">", value, largest)
            largest = kernel.choose(larger, value, largest)
        kernel.store(largest, target, there)

    pool.squares(kernel, body)


def unpooled(kernel: Kernel, pool: Pool, image: Value, largest: Value, gradient: Value, target: Value) -> None:
    """The gradient goes to the first pixel of each square that is the largest one, and zero to all others."""
    if pool.height % 2 or pool.width % 2:
        clear(kernel, pool.images * pool.height * pool.width * pool.channels, target)

    def body(places: list[Value], there: Value, lanes: int) -> None:
        left, peak = kernel.load(gradient, there, lanes), kernel.load(largest, there, lanes)
        nothing = kernel.number(0.0, lanes)
        for place in places:
            here = kernel.builder.fcmp_ordered("==", kernel.load(image, place, lanes), peak)
            kernel.store(kernel.choose(here, left, nothing), target, place)
            left = kernel.choose(here, nothing, left)

    pool.squares(kernel, body)
