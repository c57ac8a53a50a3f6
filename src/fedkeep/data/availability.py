"""How far clients can be relied on: some are offline, some vanish in mid-round, some are slow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedkeep.data.sampling import cohort
from fedkeep.errors import ConfigError
from fedkeep.rng import stream


@dataclass(frozen=True)
class Availability:
    """What goes wrong with clients, each on its own, drawn from its stream (seed, purpose, round, client).

    online: probability that a client can be reached; the cohort is drawn from those that can.
    dropout: probability that a client of the cohort vanishes after it has received the model; nothing comes back.
    slow: probability that a client of the cohort is slow. It finishes the share `slow_work` of its local steps before
    the round is closed, at least one; with slow_work = 0 its update comes too late and is not used.

    >>> Availability(dropout=1.5)
    Traceback (most recent call last):
    ...
    fedkeep.errors.ConfigError: dropout=1.5 is no share; give a number from 0 to 1
    """

    online: float = 1.0
    dropout: float = 0.0
    slow: float = 0.0
    slow_work: float = 0.5

    def __post_init__(self) -> None:
        for name in ("online", "dropout", "slow", "slow_work"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"{name}={value} is no share; give a number from 0 to 1")
        if self.online == 0:
            raise ConfigError("online=0.0 leaves nobody to train; choose it above 0")
        if self.dropout == 1:
            raise ConfigError("dropout=1.0 leaves no update in any round; choose it below 1")

    def cohort(self, seed: int, round: int, clients: int, size: int) -> NDArray[np.int64]:
        """The clients of a round, ascending: `size` of those online, or all of these where they are fewer."""
        return cohort(seed, round, clients, size, partial(self.is_online, seed, round) if self.online < 1 else None)

    def is_online(self, seed: int, round: int, client: int) -> bool:
        """Whether a client can be reached in a round."""
        return self.online == 1 or bool(stream(seed, "online", round, client).random() < self.online)

    def work(self, seed: int, round: int, client: int) -> float:
        """The share of its local steps that a client of the cohort finishes; 0: nothing comes back."""
        if self.dropout and stream(seed, "dropout", round, client).random() < self.dropout:
            return 0.0
        if self.slow and stream(seed, "slow", round, client).random() < self.slow:
            return self.slow_work
        return 1.0
