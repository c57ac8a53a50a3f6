"""Which clients take part in a round."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedkeep.errors import ConfigError
from fedkeep.rng import stream


def cohort(seed: int, round: int, clients: int, size: int) -> NDArray[np.int64]:
    """The clients of one round: `size` of 0 ... clients - 1, uniformly without replacement, ascending.

    Keyed by (seed, round) alone. Costs O(size) memory, however many clients there are, because numpy draws a
    small share of a large population with Floyd's set method.

    >>> cohort(seed=0, round=1, clients=3, size=3).tolist()
    [0, 1, 2]
    """
    if not 1 <= size <= clients:
        raise ConfigError(f"cohort: size={size} of clients={clients} cannot be drawn; size must be 1 to {clients}")
    return np.sort(stream(seed, "cohort", round).choice(clients, size, replace=False, shuffle=False))


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
