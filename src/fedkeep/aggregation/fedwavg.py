"""FedWAvg: clients whose examples are forgotten weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedkeep.errors import ConfigError
from fedkeep.method import Aggregator


def fedwavg_weights(counts: Sequence[float] | np.ndarray, alpha: float) -> np.ndarray:
    """FedWAvg's weights from the clients' counts of forgettable examples.

    Hong et al. 2022, Eq. (2):  W[k] = (1 - alpha) + alpha N F[k] / sum F.  The weights sum to N.
    Nothing forgotten at all: W = 1. An unknown count (nan) counts as the mean of the known ones.

    >>> fedwavg_weights([3, 1, 0, 0], alpha=0.5)
    array([2. , 1. , 0.5, 0.5])
    """
    if not 0 <= alpha < 1:
        raise ConfigError(f"fedwavg(alpha={alpha}): alpha is the share given by forgetting; choose it in [0, 1)")
    forgotten = np.asarray(counts, dtype=float)
    known = ~np.isnan(forgotten)
    forgotten = np.where(known, forgotten, forgotten[known].mean() if known.any() else 0.0)
    total = forgotten.sum()
    if total == 0:
        return np.ones(len(forgotten))
    return (1 - alpha) + alpha * len(forgotten) * forgotten / total


@dataclass(frozen=True)
class FedWAvg(Aggregator):
    """Weigh the clients by how many of their examples the global model forgot.

    Hong et al. 2022, Eq. (1), (2), Algorithm 1:  w_t = (1/N) sum_k W[k] w_t^k.
    alpha = 0 is the uniform average. N is the size of the cohort.
    Sends: the trained model and one number, how many of the client's examples the global model forgot.
    """

    alpha: float
    name = "fedwavg"
    streaming = False
    needs = "forgettable"

    def __post_init__(self):
        fedwavg_weights([1.0], self.alpha)

    def weights(self, updates, answers=None):
        counts = [update.facts.numbers.get("forgettable", np.nan) for update in updates]
        return [float(weight) for weight in fedwavg_weights(counts, self.alpha) / len(updates)]
