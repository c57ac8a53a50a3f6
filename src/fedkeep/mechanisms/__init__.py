"""Mechanisms: one paper per file."""

from fedkeep.mechanisms.ewc import EWC
from fedkeep.mechanisms.forgetting_events import ForgettingEvents
from fedkeep.mechanisms.proximal import Proximal
from fedkeep.mechanisms.rwalk import RWalk
from fedkeep.mechanisms.scaffold import Scaffold

__all__ = ["EWC", "ForgettingEvents", "Proximal", "RWalk", "Scaffold"]
