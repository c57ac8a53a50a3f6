"""Tensors by name <-> Flower's records, without pickle, and checked on arrival.

A tensor travels as its plain bytes (little-endian, row by row); there is no header to parse. What arrives must have the
names, shapes, types and sizes that are expected, to the byte, and hold finite numbers only; anything else is refused
before a single number is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedkeep.deploy.encoding import PLAIN, Encoding, Kind
from fedkeep.errors import ConfigError, RunError
from fedkeep.tree import Params, finite

VERSION = 1
STYPE = "fedkeep.raw"
DTYPES: dict[torch.dtype, str] = {
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
SHOWN = 120  # characters of something hostile that are repeated in a message

Spec = dict[str, Kind]
"""Shape and type of each tensor of a tree."""


class WireError(RunError):
    """Something arrived that is not what was expected; it is refused."""


def shown(value: Any, most: int = SHOWN) -> str:
    """Something from outside, short and on one line."""
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."


def spec_of(tree: Params) -> Spec:
    """What a tree like this one must look like."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tree.items()}


def array_of(tensor: Tensor) -> Array:
    """A tensor as its plain bytes."""
    if tensor.dtype not in DTYPES:
        raise ConfigError(f"a tensor of type {tensor.dtype} cannot be sent; convert it to {', '.join(DTYPES.values())}")
    values = tensor.detach().cpu().contiguous().numpy()
    data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    return Array(dtype=DTYPES[tensor.dtype], shape=tuple(tensor.shape), stype=STYPE, data=data)


def tensor_of(array: Any, kind: Kind, what: str) -> Tensor:
    """The tensor in an array, which must be exactly of this kind."""
    shape, dtype = kind
    if not isinstance(array, Array):
        raise WireError(f"{what} is missing")
    if array.stype != STYPE:
        raise WireError(f"{what} is packed as {shown(array.stype)}, not {STYPE}")
    if array.dtype != DTYPES[dtype]:
        raise WireError(f"{what} is of type {shown(array.dtype)}, not {DTYPES[dtype]}")
    if tuple(array.shape) != shape:
        raise WireError(f"{what} has shape {shown(tuple(array.shape))}, not {shape}")
    plain = np.dtype(DTYPES[dtype])
    size = math.prod(shape) * plain.itemsize
    if len(array.data) != size:
        raise WireError(f"{what} has {len(array.data)} bytes, not {size}")
    if dtype == torch.bool:
        return torch.from_numpy(np.frombuffer(array.data, np.uint8) != 0).reshape(shape)
    return torch.from_numpy(np.frombuffer(array.data, plain.newbyteorder("<")).astype(plain)).reshape(shape)


def put(records: RecordDict, key: str, tree: Params, encoding: Encoding = PLAIN) -> None:
    """Add a tree under a key: one record of arrays for each part of the encoding, arrays by tensor name."""
    parts: dict[str, dict[str, Array]] = {"": {}}
    for name, tensor in tree.items():
        how = encoding if tensor.is_floating_point() else PLAIN
        for part, piece in how.encode(tensor).items():
            parts.setdefault(part, {})[name] = array_of(piece)
    for part, arrays in parts.items():
        if arrays or not part:
            records[_key(key, part)] = ArrayRecord(arrays)


def take(records: RecordDict, key: str, spec: Spec, encoding: Encoding = PLAIN) -> Params:
    """The tree under a key, checked against what it must look like; unexpected tensors are refused too."""
    tree: Params = {}
    expected: dict[str, set[str]] = {"": set()}
    for name, kind in spec.items():
        how = encoding if kind[1].is_floating_point else PLAIN
        pieces = {}
        for part, piece in how.parts(kind).items():
            expected.setdefault(part, set()).add(name)
            pieces[part] = tensor_of(_arrays(records, _key(key, part)).get(name), piece, f'tensor "{name}" of {key}')
        try:
            tree[name] = how.decode(pieces, kind)
        except ValueError as error:
            raise WireError(f'tensor "{name}" of {key}: {error}') from None
    for part, names in expected.items():
        if strange := sorted(_arrays(records, _key(key, part)).keys() - names):
            raise WireError(f"{key} has {len(strange)} unexpected tensors, the first is {shown(strange[0])}")
    if not finite({name: t for name, t in tree.items() if t.is_floating_point()}):
        broken = next(name for name, t in tree.items() if t.is_floating_point() and not finite({name: t}))
        raise WireError(f'tensor "{broken}" of {key} holds NaN or infinity')
    return tree


def take_any(records: RecordDict, key: str) -> Params:
    """The tree under a key whatever its shapes, finite and of known types; for what a client takes from its server."""
    spec: Spec = {}
    known = {text: dtype for dtype, text in DTYPES.items()}
    for name, array in _arrays(records, key).items():
        if array.dtype not in known:
            raise WireError(f'tensor "{name}" of {key} is of type {shown(array.dtype)}')
        spec[name] = (tuple(array.shape), known[array.dtype])
    return take(records, key, spec)


def keys_of(key: str, spec: Spec, encoding: Encoding = PLAIN) -> set[str]:
    """The records that `put` makes for a tree like this."""
    found = {_key(key, "")}
    for kind in spec.values():
        how = encoding if kind[1].is_floating_point else PLAIN
        found |= {_key(key, part) for part in how.parts(kind)}
    return found


def only(records: RecordDict, expected: set[str]) -> None:
    """Refuse records that nobody asked for."""
    if strange := sorted(set(records) - expected):
        raise WireError(f"{len(strange)} unexpected records, the first is {shown(strange[0])}")


def size_of(records: RecordDict) -> int:
    """The bytes of all tensors."""
    return sum(len(a.data) for record in records.values() if isinstance(record, ArrayRecord) for a in record.values())


def numbers_of(records: RecordDict, key: str) -> MetricRecord:
    """A record of numbers; missing or of another kind is refused."""
    found = records.get(key)
    if not isinstance(found, MetricRecord):
        raise WireError(f"its record of numbers, {key}, is missing")
    return found


def config_of(records: RecordDict, key: str = "about") -> ConfigRecord:
    """The record that says what a message is; another version of the wire format is refused."""
    found = records.get(key)
    if not isinstance(found, ConfigRecord):
        raise WireError(f"its record {key} is missing; it does not come from FedKeep")
    if found.get("wire") != VERSION:
        raise WireError(
            f"it speaks version {shown(found.get('wire'))} of FedKeep's wire format, here is {VERSION}; install the "
            "same FedKeep everywhere"
        )
    return found


def whole(record: Mapping[str, Any], key: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WireError(f"{key} is {shown(value)}, not a whole number from {least} to {most}")
    return value


def counts(record: Mapping[str, Any], key: str, length: int, most: int) -> np.ndarray:
    """A list of whole numbers, 0 ... most, of one length."""
    value = record.get(key)
    if not isinstance(value, list) or len(value) != length:
        size = f"{len(value)} numbers" if isinstance(value, list) else shown(value)
        raise WireError(f"{key} is {size}, not a list of {length} counts")
    if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= most for n in value):
        raise WireError(f"{key} holds something that is not a count from 0 to {most}")
    return np.array(value, dtype=np.int64)


def _key(key: str, part: str) -> str:
    return f"{key}:{part}" if part else key


def _arrays(records: RecordDict, key: str) -> Mapping[str, Array]:
    found = records.get(key)
    if found is None:
        return {}
    if not isinstance(found, ArrayRecord):
        raise WireError(f"{key} is not a record of tensors")
    return found
