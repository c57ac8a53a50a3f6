"""Nested dictionaries of tensors <-> a flat list of tensors and a plain skeleton, without pickle.

The skeleton is the same nesting with each tensor replaced by its number; it survives JSON, and empty dictionaries
survive too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedkeep.errors import DataError


def pack(nested: Mapping[str, Any]) -> tuple[list[Tensor], dict[str, Any]]:
    """Take a nesting apart.

    >>> import torch
    >>> tensors, skeleton = pack({"c": {"w": torch.ones(2)}, "empty": {}})
    >>> len(tensors), skeleton
    (1, {'c': {'w': 0}, 'empty': {}})
    """
    tensors: list[Tensor] = []

    def walk(node: Any) -> Any:
        if isinstance(node, Tensor):
            tensors.append(node)
            return len(tensors) - 1
        return {str(key): walk(value) for key, value in node.items()}

    return tensors, walk(nested)


def unpack(tensors: Sequence[Tensor], skeleton: Mapping[str, Any]) -> dict[str, Any]:
    """Put a nesting together again."""

    def walk(node: Any) -> Any:
        return {key: walk(value) for key, value in node.items()} if isinstance(node, Mapping) else tensors[node]

    return walk(skeleton)


def to_bytes(nested: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> bytes:
    """A nesting and some plain values as one safetensors file."""
    tensors, skeleton = pack(nested)
    named = {str(number): tensor.detach().contiguous().clone() for number, tensor in enumerate(tensors)}
    return save(named, metadata={"skeleton": json.dumps(skeleton), "meta": json.dumps(dict(meta or {}))})


def from_bytes(data: bytes, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `to_bytes` wrote; anything else is refused."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])["__metadata__"]
        named = load(data)
        tensors = [named[str(number)] for number in range(len(named))]
        return unpack(tensors, json.loads(header["skeleton"])), json.loads(header["meta"])
    except (SafetensorError, ValueError, KeyError, IndexError, TypeError, RecursionError, MemoryError) as error:
        raise DataError(f"{where}: not a file of packed tensors ({error}); it is damaged or not ours") from None
