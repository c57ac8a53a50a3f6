"""Does a part keep the rules? Run this on a mechanism or an aggregation of your own.

    check_mechanism(MyMechanism(strength=0.1))
    check_aggregator(MyAggregation())

The part is run through the functions that every runtime uses (`fedkeep.rounds`). The first broken rule raises an
AssertionError that says what is wrong and what to do.
"""

from fedkeep.testing.aggregators import check_aggregator
from fedkeep.testing.mechanisms import check_mechanism

__all__ = ["check_aggregator", "check_mechanism"]
