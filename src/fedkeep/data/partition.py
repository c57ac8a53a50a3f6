"""Who holds which samples: partitions of a training set over clients.

Every maker is a pure function of (labels, ..., seed). `parse` reads the names used on the command line.
"""

from __future__ import annotations

from fedkeep.data.partition_by_label import dirichlet, label_clusters, label_ratios, shards
from fedkeep.data.partition_by_size import iid, natural, quantity_skew
from fedkeep.data.partition_core import Partition, Skew, split_validation
from fedkeep.data.partition_spec import PartitionSpec, parse

__all__ = [
    "Partition",
    "PartitionSpec",
    "Skew",
    "dirichlet",
    "iid",
    "label_clusters",
    "label_ratios",
    "natural",
    "parse",
    "quantity_skew",
    "shards",
    "split_validation",
]
