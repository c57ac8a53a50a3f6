"""Data sets, how they are split over clients, and who takes part in a round."""

from __future__ import annotations

from fedkeep.data import partition, sampling
from fedkeep.data.datasets import Available, Dataset, available, load
from fedkeep.data.partition import Partition, PartitionSpec
from fedkeep.data.sampling import cohort, cohort_size

__all__ = [
    "Available",
    "Dataset",
    "Partition",
    "PartitionSpec",
    "available",
    "cohort",
    "cohort_size",
    "load",
    "partition",
    "sampling",
]
