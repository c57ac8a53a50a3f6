"""Smaller payloads: what a tensor becomes on its way, and what the other side makes of it.

Kim et al. 2020 leave open how much of the importance must travel; each of these can be put on any upload, and the
shapes of all parts are known beforehand, so that a reply of another size is refused unread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeep.calls import format_call, parse_call
from fedkeep.errors import ConfigError, nearest

Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a tensor."""


@dataclass(frozen=True)
class Encoding:
    """A tensor <-> named parts. Tensors that hold no floating point numbers always travel as they are."""

    name = "as-is"

    def parts(self, kind: Kind) -> dict[str, Kind]:
        """Shape and type of each part."""
        return {"": kind}

    def encode(self, tensor: Tensor) -> dict[str, Tensor]:
        return {"": tensor}

    def decode(self, parts: Mapping[str, Tensor], kind: Kind) -> Tensor:
        return parts[""]

    def describe(self) -> str:
        return "as it is"


@dataclass(frozen=True)
class Float16(Encoding):
    """Half the bytes: 11 bits of each number, relative to the largest of its tensor.

    Each tensor is first divided by a power of two, so that neither small gradients nor large weights leave float16's
    range; that division is exact.
    """

    name = "float16"

    def parts(self, kind):
        return {"values": (kind[0], torch.float16), "scale": ((), torch.float64)}

    def encode(self, tensor):
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        scale = 2.0 ** math.frexp(largest)[1] if 0 < largest < math.inf else 1.0
        values = (tensor.double() / scale).to(torch.float16)
        return {"values": values, "scale": torch.tensor(scale, dtype=torch.float64)}

    def decode(self, parts, kind):
        return (parts["values"].double() * parts["scale"]).to(kind[1])

    def describe(self):
        return "as float16"


@dataclass(frozen=True)
class Int8(Encoding):
    """A quarter of the bytes: each number as one of 256 steps between zero and the largest of its tensor.

    Where no number is negative (Fisher information, a mean of squares) the steps are even in the square root, so that
    small importances keep their order: q = round(255 sqrt(t / max)). Otherwise q = round(127 t / max|t|).
    """

    name = "int8"

    def parts(self, kind):
        return {"values": (kind[0], torch.uint8), "scale": ((2,), torch.float64)}

    def encode(self, tensor):
        wide = tensor.double()
        largest = float(wide.abs().max()) if tensor.numel() else 0.0
        signed = bool((wide < 0).any())
        share = wide / largest if largest > 0 else torch.zeros_like(wide)
        steps = 128 + (127 * share).round() if signed else (255 * share.clamp(min=0).sqrt()).round()
        return {"values": steps.to(torch.uint8), "scale": torch.tensor([largest, float(signed)], dtype=torch.float64)}

    def decode(self, parts, kind):
        steps, (largest, signed) = parts["values"].double(), parts["scale"]
        share = (steps - 128) / 127 if bool(signed) else (steps / 255).square()
        return (share * largest).to(kind[1])

    def describe(self):
        return "as 8-bit numbers"


@dataclass(frozen=True)
class Top(Encoding):
    """The q % largest numbers of each tensor, by absolute value; all others arrive as zero.

    Where they are is told by a bit for each number or by their places, whichever is less.

    For Importance that means: where a client's weight is not among its most important ones, other clients decide, and
    where nobody's is, the mean.
    """

    q: float
    then: str = "as-is"  # how the kept numbers travel
    name = "top"

    def __post_init__(self):
        if not 0 < self.q <= 100:
            raise ConfigError(f"top(q={self.q}): q is a share in percent; choose it above 0 and at most 100")
        if self.then not in ("as-is", "float16", "int8"):
            raise ConfigError(f"top(then={self.then}): {nearest(self.then, ('as-is', 'float16', 'int8'))}")

    @property
    def inner(self) -> Encoding:
        return {"as-is": Encoding, "float16": Float16, "int8": Int8}[self.then]()

    def kept(self, count: int) -> int:
        """How many of `count` numbers travel."""
        return min(count, math.ceil(count * self.q / 100 - 1e-9))

    def parts(self, kind):
        count = math.prod(kind[0])
        kept = self.kept(count)
        where = {"places": ((kept,), torch.int32)}
        if self._as_mask(count):
            where = {"mask": ((-(-count // 8),), torch.uint8)}
        return {**self.inner.parts(((kept,), kind[1])), **where}

    def encode(self, tensor):
        flat = tensor.reshape(-1)
        places = flat.abs().topk(self.kept(flat.numel())).indices.sort().values
        inside = self.inner.encode(flat[places])
        if not self._as_mask(flat.numel()):
            return {**inside, "places": places.to(torch.int32)}
        chosen = np.zeros(flat.numel(), dtype=bool)
        chosen[places.numpy()] = True
        return {**inside, "mask": torch.from_numpy(np.packbits(chosen))}

    def decode(self, parts, kind):
        shape, count = kind[0], math.prod(kind[0])
        places = self._places(parts, count)
        flat = torch.zeros(count, dtype=kind[1])
        flat[places] = self.inner.decode(parts, ((len(places),), kind[1]))
        return flat.reshape(shape)

    def _as_mask(self, count: int) -> bool:
        """Whether one bit for each number takes less than four bytes for each that is kept."""
        return -(-count // 8) < 4 * self.kept(count)

    def _places(self, parts: Mapping[str, Tensor], count: int) -> Tensor:
        if self._as_mask(count):
            bits = np.unpackbits(parts["mask"].numpy())
            places = torch.from_numpy(np.flatnonzero(bits))
            if len(places) != self.kept(count) or bits[count:].any():
                raise ValueError(f"the mask must mark {self.kept(count)} of {count} numbers")
            return places
        places = parts["places"].long()
        if len(places) and (int(places[0]) < 0 or int(places[-1]) >= count or bool((places.diff() <= 0).any())):
            raise ValueError(f"places must grow and lie within 0 ... {count - 1}")
        return places

    def describe(self):
        rest = "" if self.then == "as-is" else f", {self.inner.describe()}"
        return f"only its largest {self.q:g} %{rest}"


PLAIN = Encoding()
KINDS: dict[str, type[Encoding]] = {kind.name: kind for kind in (Encoding, Float16, Int8, Top)}
Encodings = dict[str, Encoding]
"""Encodings by what they are put on: delta, broadcast, or the name of an upload."""


def parse(text: str) -> Encodings:
    """Encodings from their notation, `what=how` with commas between.

    >>> parse("delta=float16, importance=top(q=10)")
    {'delta': Float16(), 'importance': Top(q=10, then='as-is')}
    """
    found: Encodings = {}
    for item in re.split(r",(?![^(]*\))", text):
        if not item.strip():
            continue
        what, equals, how = item.partition("=")
        if not equals or what.strip() in found:
            reason = "is given twice" if equals else "has no encoding"
            raise ConfigError(f'encode "{text}": {what.strip()} {reason}; write it as delta=float16')
        found[what.strip()] = _one(how, text)
    return found


def _one(how: str, text: str) -> Encoding:
    name, options = parse_call(how, "encoding")
    if name not in KINDS:
        raise ConfigError(f'encode "{text}": unknown encoding "{name}": {nearest(name, KINDS)}')
    try:
        return KINDS[name](**options)
    except TypeError:
        known = "top(q=10) or top(q=10, then=int8)" if name == "top" else name
        raise ConfigError(f'encode "{text}": {how.strip()} is not understood; write {known}') from None


def format_encodings(encodings: Mapping[str, Encoding]) -> str:
    """The notation that `parse` reads.

    >>> format_encodings({"importance": Top(10, "int8")})
    'importance=top(q=10, then=int8)'
    """
    return ", ".join(f"{what}={format_call(how.name, _options(how))}" for what, how in encodings.items())


def _options(encoding: Encoding) -> dict[str, Any]:
    if not isinstance(encoding, Top):
        return {}
    return {"q": encoding.q} | ({"then": encoding.then} if encoding.then != "as-is" else {})


def check(encodings: Mapping[str, Encoding], known: Iterable[str]) -> None:
    """Refuse encodings of what is never sent, and of models that would arrive with holes."""
    words = list(known)
    for what, how in encodings.items():
        if what not in words:
            raise ConfigError(f'encode: nothing called "{what}" is sent: {nearest(what, words)}')
        if what == "broadcast" and not isinstance(how, Float16) and how != PLAIN:
            raise ConfigError(f"encode: broadcast={how.name}: a model can be sent as it is or as float16")
