"""Comparing nested values by name, and what holds for every part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fedkeep.calls import parse_call
from fedkeep.method import Part


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def check_part(part: Part) -> None:
    """A part is a frozen value with a name, a term that reads back, and a `Sends:` line."""
    who = type(part).__name__
    parameters = getattr(part, "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    require(frozen, f"{who} is no frozen dataclass; add @dataclass(frozen=True)")
    require(bool(part.name), f'{who} has no name; add a class attribute, name = "..."')
    try:
        sends = part.sends()
    except NotImplementedError as error:
        raise AssertionError(str(error)) from error
    require(bool(sends), f'{who}: "Sends:" says nothing; write "Sends: nothing." or what leaves the client')
    try:
        name, options = parse_call(part.term(), "part")
        equal = name == part.name and type(part)(**options) == part
    except Exception as error:
        raise AssertionError(f"{who}.term() is {part.term()!r}, which cannot be read back: {error}") from error
    require(equal, f"{who}.term() is {part.term()!r}, another part; print every option that is not its default")


def form(tree: Any) -> Any:
    """Names, shapes and types of nested trees.

    >>> import torch
    >>> form({"c": {"w": torch.zeros(2, 3)}})
    {'c': {'w': ((2, 3), 'float32')}}
    """
    if isinstance(tree, Tensor):
        return tuple(tree.shape), str(tree.dtype).removeprefix("torch.")
    return {name: form(tree[name]) for name in sorted(tree)}


def same(a: Any, b: Any, tolerance: float = 0.0) -> bool:
    """Equality of nested values, to a relative tolerance where one is given. Functions are not compared."""
    if isinstance(a, Tensor | np.ndarray):
        if not isinstance(b, type(a)) or a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(np.allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance / 100, equal_nan=True))
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b, [tolerance] * len(a)))
    if dataclasses.is_dataclass(a):
        names = [item.name for item in dataclasses.fields(a)]
        return type(a) is type(b) and all(same(getattr(a, name), getattr(b, name), tolerance) for name in names)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))
    return a == b or callable(a)


def backwards(value: Any) -> Any:
    """The same trees with their names in the opposite order.

    >>> backwards({"a": 1, "b": {"c": 2, "d": 3}})
    {'b': {'d': 3, 'c': 2}, 'a': 1}
    """
    if isinstance(value, dict):
        return {name: backwards(value[name]) for name in reversed(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: backwards(getattr(value, name)) for name in names})
    return value


def one_backwards(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The arguments with one tree at a time turned backwards, so that pairing by position shows."""
    found = []
    for place, value in enumerate(args):
        variants = [backwards(value)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [item.name for item in dataclasses.fields(value)]
            variants = [dataclasses.replace(value, **{name: backwards(getattr(value, name))}) for name in names]
        found += [(*args[:place], variant, *args[place + 1 :]) for variant in variants]
    return found
