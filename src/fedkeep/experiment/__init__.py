"""Experiments: config, run directory, resume, comparison."""

from fedkeep.experiment.compare import Comparison, compare
from fedkeep.experiment.config import Config
from fedkeep.experiment.run import Run, execute, load_run, run

__all__ = ["Comparison", "Config", "Run", "compare", "execute", "load_run", "run"]
