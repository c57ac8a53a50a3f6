"""FedKeep measures forgetting in federated learning, fights it, and says which fight pays.

>>> import fedkeep as fk
>>> fk.name_of(fk.parse("fedprox(mu=0.010)+wsm"))
'fedprox(mu=0.01)+wsm'
"""

from fedkeep import aggregation, losses, testing
from fedkeep.data import partition
from fedkeep.experiment import Config, Run, load_run, run
from fedkeep.experiment.compare import compare
from fedkeep.grammar import name_of, parse
from fedkeep.method import Method
from fedkeep.metrics import ForgettingMeter, forgetting

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ForgettingMeter",
    "Method",
    "Run",
    "aggregation",
    "compare",
    "forgetting",
    "load_run",
    "losses",
    "name_of",
    "parse",
    "partition",
    "run",
    "testing",
]
