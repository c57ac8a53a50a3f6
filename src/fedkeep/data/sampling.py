"""Which clients take part in a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedkeep.errors import ConfigError
from fedkeep.rng import stream


def cohort(
    seed: int, round: int, clients: int, size: int, online: Callable[[int], bool] | None = None
) -> NDArray[np.int64]:
    """The clients of one round: `size` of 0 ... clients - 1, uniformly without replacement, ascending.

    Keyed by (seed, round) alone. Costs O(size) memory, however many clients there are, because numpy draws a
    small share of a large population with Floyd's set method. With `online` the clients are looked at in random
    order until `size` of them can be reached; where they are fewer, all these are the cohort.

    >>> cohort(seed=0, round=1, clients=3, size=3).tolist()
    [0, 1, 2]
    """
    if not 1 <= size <= clients:
        raise ConfigError(f"cohort: size={size} of clients={clients} cannot be drawn; size must be 1 to {clients}")
    if online is None:
        return np.sort(stream(seed, "cohort", round).choice(clients, size, replace=False, shuffle=False))
    found: list[int] = []
    for client in in_random_order(stream(seed, "cohort", round), clients):
        if online(client):
            found.append(client)
            if len(found) == size:
                break
    return np.sort(np.array(found, dtype=np.int64))


def in_random_order(generator: np.random.Generator, clients: int) -> Iterator[int]:
    """0 ... clients - 1 in random order, each when it is asked for.

    A Fisher-Yates shuffle that writes down only the places it has touched: memory grows with what was drawn.

    >>> sorted(in_random_order(np.random.default_rng(0), 5))
    [0, 1, 2, 3, 4]
    """
    moved: dict[int, int] = {}
    for place in range(clients):
        other = int(generator.integers(place, clients))
        here = moved.pop(place, place)
        if other == place:
            yield here
        else:
            yield moved.get(other, other)
            moved[other] = here


def cohort_size(clients: int, fraction: float) -> int:
    """clients * fraction, rounded half up on the decimal number as it was written.

    >>> cohort_size(100, 0.1), cohort_size(10, 0.05), cohort_size(100, 0.145)
    (10, 1, 15)
    """
    if clients < 1:
        raise ConfigError(f"cohort: clients={clients}; there must be at least 1")
    if not 0 < fraction <= 1:
        raise ConfigError(f"cohort: fraction={fraction!r} is outside (0, 1]; {_smallest(clients)}")
    size = math.floor(clients * Fraction(str(fraction)) + Fraction(1, 2))
    if size < 1:
        raise ConfigError(f"cohort: fraction={fraction!r} of {clients} clients selects nobody; {_smallest(clients)}")
    return size


def _smallest(clients: int) -> str:
    """The smallest fraction that selects somebody, rounded up so that the printed number works."""
    least = Fraction(1, 2 * clients)
    digits = 6 + len(str(clients))
    shown = Fraction(math.ceil(least * 10**digits), 10**digits)
    return f"the smallest fraction that works for {clients} clients is {float(shown)!r}"
