"""FedAvg's weighted mean."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeep.errors import ConfigError, nearest
from fedkeep.method import Aggregator


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """The mean of the clients' models, by number of examples or uniform.

    McMahan et al. 2017, Algorithm 1:  w_t = sum_k p_k w_t^k,  p_k = n_k / sum n  (or 1 / |S|).
    Sends: the trained model and the number of examples.
    """

    weights_by: str = "examples"
    name = "fedavg"

    def __post_init__(self):
        if self.weights_by not in ("examples", "uniform"):
            raise ConfigError(
                f"fedavg(weights_by={self.weights_by}): {nearest(self.weights_by, ['examples', 'uniform'])}"
            )

    def raw_weight(self, facts):
        return float(facts.examples) if self.weights_by == "examples" else 1.0
