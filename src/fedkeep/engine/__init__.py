"""Where client work runs: in this process, in worker processes, or on a cluster."""

from fedkeep.engine.base import Engine, GroupResult
from fedkeep.engine.serial import SerialEngine

__all__ = ["Engine", "GroupResult", "SerialEngine"]
