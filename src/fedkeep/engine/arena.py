"""Tensors in memory that several processes see.

An arena is an anonymous file in memory (memfd): it has no name, so nothing is left behind however a process ends. One
process writes tensors into it, another reads them as views; only their places travel through the pipe.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedkeep.packing import pack, unpack

ALIGN = 64
Place = tuple[str, tuple[int, ...], int]
"""dtype, shape, and first byte of a tensor in the arena"""


class Arena:
    """A growing piece of shared memory; made before the processes part, known to both by its descriptor."""

    def __init__(self, size: int = 1 << 16) -> None:
        self._file = os.memfd_create("fedkeep", os.MFD_CLOEXEC)
        os.ftruncate(self._file, size)
        self._map = mmap.mmap(self._file, size)

    def write(self, nested: Mapping[str, Any]) -> tuple[list[Place], dict[str, Any], int]:
        """Put a nesting of tensors here, from the beginning; returns what `read` needs."""
        tensors, skeleton = pack(nested)
        places, end = _layout(tensors)
        if end > len(self._map):
            os.ftruncate(self._file, end + end // 4)
        self._see(os.fstat(self._file).st_size)
        for tensor, place in zip(tensors, places, strict=True):
            self._view(place).copy_(tensor)
        return places, skeleton, len(self._map)

    def read(self, places: Sequence[Place], skeleton: Mapping[str, Any], size: int) -> dict[str, Any]:
        """Views of the tensors that the other side wrote; valid until it writes again."""
        self._see(size)
        return unpack([self._view(place) for place in places], skeleton)

    def close(self) -> None:
        os.close(self._file)

    def _see(self, size: int) -> None:
        if size != len(self._map):
            self._map = mmap.mmap(self._file, size)  # old views keep the old map alive

    def _view(self, place: Place) -> Tensor:
        name, shape, first = place
        dtype = getattr(torch, name)
        count = 1
        for length in shape:
            count *= length
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=first).view(shape)


def _layout(tensors: Sequence[Tensor]) -> tuple[list[Place], int]:
    places, end = [], 0
    for tensor in tensors:
        places.append((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end))
        end += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
    return places, max(end, ALIGN)
