"""Aggregations: how the server makes one model out of many."""

from fedkeep.aggregation.fednova import FedNova
from fedkeep.aggregation.fedwagg import FedWAgg
from fedkeep.aggregation.fedwavg import FedWAvg, fedwavg_weights
from fedkeep.aggregation.importance import Importance, importance_weights
from fedkeep.aggregation.mean import WeightedMean

__all__ = [
    "FedNova",
    "FedWAgg",
    "FedWAvg",
    "Importance",
    "WeightedMean",
    "fedwavg_weights",
    "importance_weights",
]
