"""How steady each method of a comparison is: the table in the notes to FedWAgg's Figure 2.

python results/fedwagg/steadiness.py COMPARISON
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from fedkeep.metrics.forgetting import steadiness

for method in sorted(Path(sys.argv[1], "runs").iterdir()):
    curves = [100 * pd.read_parquet(path)["accuracy"].to_numpy() for path in sorted(method.glob("*/rounds.parquet"))]
    found = [steadiness(curve) for curve in curves]
    change, drop = (np.mean([getattr(one, key) for one in found]) for key in ("change_std", "largest_drop"))
    print(f"{method.name}: {change:.2f}, {drop:.2f}, mean accuracy {np.mean(curves):.2f}, {len(found)} seeds")
