"""Where the tensors of a step lie in memory, and in which order to walk through several of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkeep.native.emit import BYTES, Kernel, Terms, Unsupported, Value

ALIGN = 64


@dataclass(eq=False)
class Buffer:
    """Memory: that of an input of the step (its slot), or a place in the workspace, given later."""

    bytes: int
    slot: int
    offset: int = 0
    skipped: int = 0  # elements before the first one in the storage that the step was recorded with


@dataclass(frozen=True)
class Array:
    """A tensor in a buffer."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    first: int = 0  # elements before the first one

    def pointer(self, kernel: Kernel) -> Value:
        return kernel.pointer(self.buffer.slot, self.buffer.offset + self.first * BYTES[self.dtype])

    @property
    def transposed(self) -> Array:
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    def within(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Its strides where it takes part in something of that shape, by torch's rules of broadcasting."""
        missing = len(shape) - len(self.shape)
        if missing < 0 or any(a not in (1, b) for a, b in zip(self.shape, shape[missing:], strict=True)):
            raise Unsupported(f"{self.shape} within {tuple(shape)}")
        own = [0 if size == 1 else stride for size, stride in zip(self.shape, self.strides, strict=True)]
        return (0,) * missing + tuple(own)


def buffer_of(value: Tensor, slot: int) -> Buffer:
    """Memory for a tensor like this, from its first element to its last."""
    if value.dtype not in BYTES or value.device.type != "cpu" or not value.numel():
        raise Unsupported(f"{tuple(value.shape)}, {value.dtype} on {value.device}")
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return Buffer((reach + 1) * BYTES[value.dtype], slot, skipped=int(value.storage_offset()))


def described(value: Tensor, buffer: Buffer) -> Array:
    """The array that lies in a buffer as this tensor lies in its storage."""
    first = int(value.storage_offset()) - buffer.skipped
    return Array(buffer, tuple(value.shape), tuple(value.stride()), value.dtype, first)


@dataclass(frozen=True)
class Walk:
    """A way through several arrays, as few nested loops as their strides allow."""

    sizes: tuple[int, ...]
    strides: dict[int, tuple[int, ...]]  # by the array's id
    vector: bool  # the innermost elements lie side by side, or are all the same

    def place(self, kernel: Kernel, array: Array, indices: Sequence[Value]) -> tuple[Value, int]:
        """An element's index, and the stride of those that follow."""
        strides = self.strides[id(array)]
        terms: Terms = list(zip(indices, strides, strict=True))
        return kernel.at(terms), strides[-1] if strides else 0


def walk(target: Array, others: Iterable[Array]) -> Walk:
    """Through the target in the order of its memory."""
    arrays = [target, *others]
    order = sorted(range(len(target.shape)), key=lambda axis: -target.strides[axis])
    order = [axis for axis in order if target.shape[axis] != 1]
    sizes = [target.shape[axis] for axis in order]
    strides = [[array.within(target.shape)[axis] for axis in order] for array in arrays]
    place = 0
    while place + 1 < len(sizes):
        if all(one[place] == one[place + 1] * sizes[place + 1] for one in strides):
            sizes[place] *= sizes[place + 1]
            del sizes[place + 1]
            for one in strides:
                del one[place]
        else:
            place += 1
    if not sizes:
        sizes, strides = [1], [[0] for _ in arrays]
    vector = strides[0][-1] == 1 and all(one[-1] in (0, 1) for one in strides)
    return Walk(tuple(sizes), {id(a): tuple(s) for a, s in zip(arrays, strides, strict=True)}, vector)


def grid(shape: tuple[int, int], arrays: Iterable[Array]) -> Walk:
    """Row by row and column by column of a matrix."""
    strides = {id(array): array.within(shape) for array in arrays}
    if any(one[-1] not in (0, 1) for one in strides.values()):
        raise Unsupported("columns that do not lie side by side")
    return Walk(shape, strides, True)


def arranged(buffers: Sequence[tuple[Buffer, int, int]]) -> int:
    """Give buffers, each with the first and last time of its use, places in one workspace; returns its size.

    Two buffers share memory only if one is dead before the other is born.

    >>> early, late, long = Buffer(64, 0), Buffer(64, 0), Buffer(100, 0)
    >>> arranged([(early, 0, 1), (long, 0, 9), (late, 2, 3)]), early.offset, long.offset, late.offset
    (192, 0, 64, 0)
    """
    placed: list[tuple[Buffer, int, int]] = []
    end = 0
    for buffer, born, dies in sorted(buffers, key=lambda one: one[1]):
        taken = sorted((b.offset, b.offset + _padded(b.bytes)) for b, first, last in placed if last >= born)
        offset = 0
        for low, high in taken:
            if offset + buffer.bytes <= low:
                break
            offset = max(offset, high)
        buffer.offset = offset
        placed.append((buffer, born, dies))
        end = max(end, offset + _padded(buffer.bytes))
    return end


def _padded(count: int) -> int:
    return -(-count // ALIGN) * ALIGN
