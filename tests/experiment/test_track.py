"""Adapters to trackers, against stand-ins for the packages."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedkeep.errors import ConfigError
from fedkeep.experiment.config import Config
from fedkeep.experiment.track import tracker
from fedkeep.simulate import RoundRecord

CONFIG = Config(method="fedavg+wsm", seed=3)


def record(round: int, accuracy: float = 0.5) -> RoundRecord:
    return RoundRecord(round, (0, 1), accuracy, 1.5, 0.25, 0.1, 100, 200, ())


@pytest.fixture
def calls():
    return []


def stand_in(monkeypatch, name: str, **members) -> None:
    module = ModuleType(name)
    for key, value in members.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


def note(calls, name):
    return lambda *args, **more: calls.append((name, args, more))


def test_tensorboard(monkeypatch, calls, tmp_path):
    def writer(**options):
        calls.append(("open", (), options))
        return SimpleNamespace(
            add_scalar=note(calls, "scalar"), add_text=note(calls, "text"), close=note(calls, "close")
        )

    stand_in(monkeypatch, "torch.utils.tensorboard", SummaryWriter=writer)
    with tracker("tensorboard", CONFIG, tmp_path / "run") as track:
        assert calls == []  # nothing is opened before a round is there
        track(record(4))
        track(record(5, float("nan")))
    assert calls[0] == ("open", (), {"log_dir": str(tmp_path / "run" / "tensorboard"), "purge_step": 4})
    scalars = [args for name, args, _ in calls if name == "scalar"]
    assert ("accuracy", 0.5, 4) in scalars
    assert ("bytes_down", 200.0, 5) in scalars
    assert ("round", 4.0, 4) not in scalars
    assert not any(key == "accuracy" and round == 5 for key, _, round in scalars)  # nan is not a number to plot
    assert [name for name, *_ in calls].count("close") == 1


def test_mlflow(monkeypatch, calls):
    names = ("start_run", "log_params", "log_metrics", "end_run")
    stand_in(monkeypatch, "mlflow", **{name: note(calls, name) for name in names})
    with tracker("mlflow", CONFIG) as track:
        track(record(1))
        track(record(2))
    assert [name for name, *_ in calls] == ["start_run", "log_params", "log_metrics", "log_metrics", "end_run"]
    assert calls[1][1][0]["method"] == "fedavg+wsm"
    assert calls[3][2] == {"step": 2}
    assert calls[3][1][0]["validation_accuracy"] == 0.25


def test_wandb_goes_on_in_the_same_run(monkeypatch, calls, tmp_path):
    def init(**options):
        calls.append(("init", (), options))
        return SimpleNamespace(log=note(calls, "log"), finish=note(calls, "finish"))

    stand_in(monkeypatch, "wandb", init=init)
    for round in (1, 2):
        with tracker("wandb", CONFIG, tmp_path) as track:
            track(record(round))
    with tracker("wandb", CONFIG, tmp_path / "other") as track:
        track(record(1))
    first, second, other = (options for name, _, options in calls if name == "init")
    assert first["id"] == second["id"] != other["id"]
    assert first["resume"] == "allow" and first["config"]["seed"] == 3
    assert [name for name, *_ in calls].count("finish") == 3


def test_nothing_heard_nothing_opened(monkeypatch, calls):
    stand_in(monkeypatch, "wandb", init=note(calls, "init"))
    with tracker("wandb", CONFIG):
        pass
    assert calls == []


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_its_extra(monkeypatch, kind):
    for name in ("tensorboard", "torch.utils.tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf'pip install "fedkeep\[{kind}\]"'):
        tracker(kind, CONFIG)


def test_an_unknown_tracker_suggests_the_nearest():
    with pytest.raises(ConfigError, match='did you mean "tensorboard"'):
        tracker("tensorbord", CONFIG)
