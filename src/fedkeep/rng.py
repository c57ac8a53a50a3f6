"""Keyed randomness: one stream per (seed, purpose, round, client), never a global state."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The random stream of one purpose. Equal keys give equal streams, in any order, in any process.

    >>> bool(stream(0, "cohort", 3).random() == stream(0, "cohort", 3).random())
    True
    >>> bool(stream(0, "cohort", 3).random() == stream(0, "batches", 3).random())
    False
    """
    key = (zlib.crc32(purpose.encode()), round, client)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))


@contextmanager
def torch_seeded(generator: np.random.Generator) -> Iterator[None]:
    """Run a block whose torch randomness (initial weights, dropout) comes from `generator`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator.integers(2**63)))
        yield
