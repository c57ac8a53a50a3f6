"""Experiments: config, run directory, resume, comparison."""

from fedkeep.experiment.config import Config
from fedkeep.experiment.run import Run, execute, load_run, run

__all__ = ["Config", "Run", "execute", "load_run", "run"]
