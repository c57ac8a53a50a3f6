"""Algebra on named tensors. Every operation on two trees refuses different keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Tensors by name, never by position."""

Slots = dict[str, Params]
"""Named memories of one mechanism, e.g. {"c": ...} for SCAFFOLD's control variate."""


def same_keys(*trees: Params) -> None:
    """Refuse trees whose names differ.

    >>> same_keys({"a": torch.zeros(1)}, {"b": torch.zeros(1)})
    Traceback (most recent call last):
    ...
    KeyError: "trees hold different tensors: ['a', 'b']"
    """
    first = trees[0].keys()
    for tree in trees[1:]:
        if tree.keys() != first:
            raise KeyError(f"trees hold different tensors: {sorted(set(first) ^ set(tree))}")


def map_(function: Callable[..., Tensor], *trees: Params) -> Params:
    """Apply `function` name by name."""
    same_keys(*trees)
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def add(a: Params, b: Params) -> Params:
    """a + b"""
    return map_(torch.add, a, b)


def add_into(a: Params, b: Params) -> Params:
    """a + b, written into a: no new memory, which costs more than the sum"""
    return map_(torch.Tensor.add_, a, b)


def sub(a: Params, b: Params) -> Params:
    """a - b"""
    return map_(torch.sub, a, b)


def sub_into(a: Params, b: Params) -> Params:
    """a - b, written into a"""
    return map_(torch.Tensor.sub_, a, b)


def mul(a: Params, b: Params) -> Params:
    """a * b, element by element"""
    return map_(torch.mul, a, b)


def scale(tree: Params, factor: float) -> Params:
    """factor * tree"""
    return {name: tensor * factor for name, tensor in tree.items()}


def add_scaled(a: Params, b: Params, factor: float) -> Params:
    """a + factor * b

    >>> add_scaled({"w": torch.ones(2)}, {"w": torch.ones(2)}, 2.0)["w"]
    tensor([3., 3.])
    """
    return map_(lambda x, y: torch.add(x, y, alpha=factor), a, b)


def scale_in_place(tree: Params, factor: float) -> Params:
    """tree *= factor, in place"""
    return {name: tensor.mul_(factor) for name, tensor in tree.items()}


def zeros_like(tree: Params) -> Params:
    """A tree of zeros with the same names, shapes and types."""
    return {name: torch.zeros_like(tensor) for name, tensor in tree.items()}


def clone(tree: Params) -> Params:
    """A tree with storage of its own."""
    return {name: tensor.clone() for name, tensor in tree.items()}


def weighted_sum(trees: Iterable[Params], weights: Iterable[float]) -> Params:
    """sum_k weights[k] * trees[k], added in the order given.

    >>> weighted_sum([{"w": torch.ones(1)}, {"w": torch.ones(1)}], [0.25, 0.5])["w"]
    tensor([0.7500])
    """
    total: Params | None = None
    for tree, weight in zip(trees, weights, strict=True):
        total = scale(tree, weight) if total is None else add_scaled(total, tree, weight)
    if total is None:
        raise ValueError("a weighted sum of no trees; give at least one")
    return total


def finite(tree: Params) -> bool:
    """Whether every number of the tree is finite.

    A sum is finite only if all its terms are; only where it is not, the terms are looked at one by one.
    """
    return all(math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all()) for tensor in tree.values())


def norm(tree: Params) -> float:
    """The Euclidean norm of all numbers of the tree."""
    return float(sum(float(tensor.double().pow(2).sum()) for tensor in tree.values())) ** 0.5


def count(tree: Params) -> int:
    """How many numbers the tree holds."""
    return sum(tensor.numel() for tensor in tree.values())


def nbytes(tree: Params) -> int:
    """How many bytes the tree's numbers take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tree.values())


def flatten(tree: Params) -> Tensor:
    """One vector with all numbers, names in sorted order."""
    return torch.cat([tree[name].reshape(-1) for name in sorted(tree)])
