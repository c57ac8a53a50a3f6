"""Runs with numbers that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedkeep.report.load import RunData
from fedkeep.report.series import Report, group


def made_up(
    method: str = "fedavg",
    seed: int = 0,
    *,
    options: dict[str, Any] | None = None,
    tables: dict[str, Any] | None = None,
    **columns: list[float],
) -> RunData:
    """A run of as many rounds as the columns are long."""
    length = len(next(iter(columns.values())))
    rounds = pd.DataFrame({"round": np.arange(1, length + 1), **columns})
    settings = {"method": method, "seed": seed, "rounds": length, "clients": 3, "data": "digits", **(options or {})}
    return RunData(
        path=Path(f"{method}-{seed}"),
        options=settings,
        config_text=f'method = "{method}"\nseed = {seed}',
        status="finished",
        rounds=rounds,
        **{name: pd.DataFrame(table) for name, table in (tables or {}).items()},
    )


def two_methods(seeds: int = 2) -> Report:
    """fedavg forgets 0.4 and 0.5 and reaches 0.6 and 0.7; fedavg+wsm forgets 0.1 and is 0.1 more accurate."""
    runs = []
    for seed in range(seeds):
        step = 0.1 * seed
        runs.append(made_up("fedavg", seed, accuracy=[0.6 + step] * 12, forgetting=[0.4 + step] * 12))
        runs.append(made_up("fedavg+wsm", seed, accuracy=[0.7 + step] * 12, forgetting=[0.1] * 12))
    return group(runs)


def dealt(counts: list[list[int]], held_out: int = 10) -> dict[str, Any]:
    """The partition table of label counts, a row per client; each client holds out as many of its first label."""
    table = np.array(counts)
    client, label = np.indices(table.shape)
    held = np.where(label == 0, held_out, 0)
    return {"client": client.ravel(), "class": label.ravel(), "train": table.ravel(), "held_out": held.ravel()}


def pairs(round: int, local: dict[int, dict[int, float]], before: dict[int, float]) -> dict[str, Any]:
    """F_ki rows of one round: local[i][k] is the accuracy of model i on the data of client k."""
    rows = [(i, k, value) for i, row in local.items() for k, value in row.items()]
    return {
        "round": [round] * len(rows),
        "model": [i for i, _, _ in rows],
        "data": [k for _, k, _ in rows],
        "accuracy_before": [before[k] for _, k, _ in rows],
        "accuracy_local": [value for _, _, value in rows],
        "data_in_cohort": [k in local for _, k, _ in rows],
    }
