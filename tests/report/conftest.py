"""A few small real runs, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedkeep as fk

SMALL = {"data": "digits", "clients": 6, "fraction": 0.5, "rounds": 4, "local_epochs": 1, "limit": 300, "workers": 1}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fedavg and fedavg+wsm under two seeds; one seed of fedavg measures all clients."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedavg+wsm"):
        for seed in (0, 1):
            forgetting = "all" if (method, seed) == ("fedavg", 0) else "cohort"
            fk.run(method, out=folder / f"{method}-{seed}", seed=seed, forgetting=forgetting, **SMALL)
    return folder


@pytest.fixture(scope="session")
def unmeasured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that did not measure forgetting."""
    folder = tmp_path_factory.mktemp("unmeasured") / "run"
    fk.run("fedavg", out=folder, forgetting="off", **{**SMALL, "rounds": 2})
    return folder


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after its third round of four."""
    folder = tmp_path_factory.mktemp("unfinished") / "run"

    def stop(record) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fk.run("fedavg", out=folder, listen=stop, **SMALL)
    return folder
