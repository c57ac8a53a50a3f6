"""Hand each round's numbers to TensorBoard, MLflow or Weights & Biases, where these are installed."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from fedkeep.errors import ConfigError, nearest
from fedkeep.experiment.config import Config
from fedkeep.simulate import RoundRecord

PROJECT = "fedkeep"


class Sink(Protocol):
    """Where numbers go."""

    def log(self, numbers: dict[str, float], round: int) -> None: ...

    def close(self) -> None: ...


@dataclass
class Tracker:
    """A listener of a run; opens its sink with the first round it hears of, so a refused run leaves no trace."""

    open: Callable[[int], Sink]
    sink: Sink | None = field(default=None, init=False)

    def __call__(self, record: RoundRecord) -> None:
        if self.sink is None:
            self.sink = self.open(record.round)
        numbers = {key: float(value) for key, value in record.row().items() if key != "round"}
        self.sink.log({key: value for key, value in numbers.items() if math.isfinite(value)}, record.round)

    def close(self) -> None:
        if self.sink is not None:
            self.sink.close()
            self.sink = None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def tracker(kind: str, config: Config, out: Path | None = None) -> Tracker:
    """A listener that hands each round to `kind`: tensorboard, mlflow or wandb. Close it, or use it in `with`."""
    if kind not in SINKS:
        raise ConfigError(f'unknown tracker "{kind}": {nearest(kind, SINKS)}')
    module, make = SINKS[kind]
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'--track {kind} needs a package that is not installed ({error}); pip install "fedkeep[{kind}]"'
        ) from None
    return Tracker(lambda first: make(found, config, out, first))


class _TensorBoard:
    """Event files in `out`/tensorboard; rounds that a killed process had written past its checkpoint are replaced."""

    def __init__(self, module: ModuleType, config: Config, out: Path | None, first: int) -> None:
        folder = (out or Path("runs") / title(config)) / "tensorboard"
        self.writer = module.SummaryWriter(log_dir=str(folder), purge_step=first)
        self.writer.add_text("config", "\n".join(f"    {line}" for line in config.to_toml().splitlines()), 0)

    def log(self, numbers: dict[str, float], round: int) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, round)

    def close(self) -> None:
        self.writer.close()


class _MLflow:
    """One MLflow run; server and experiment come from MLflow's own settings."""

    def __init__(self, module: ModuleType, config: Config, out: Path | None, first: int) -> None:
        self.mlflow = module
        module.start_run(run_name=title(config), tags={"fedkeep.out": str(out or "")})
        module.log_params(asdict(config))

    def log(self, numbers: dict[str, float], round: int) -> None:
        self.mlflow.log_metrics(numbers, step=round)

    def close(self) -> None:
        self.mlflow.end_run()


class _WandB:
    """One Weights & Biases run; a resumed run goes on in the one it began."""

    def __init__(self, module: ModuleType, config: Config, out: Path | None, first: int) -> None:
        key = json.dumps([str(out.resolve()), config.identity()]).encode() if out else None
        mark = hashlib.blake2b(key, digest_size=8).hexdigest() if key else None
        self.run = module.init(project=PROJECT, name=title(config), config=asdict(config), id=mark, resume="allow")

    def log(self, numbers: dict[str, float], round: int) -> None:
        self.run.log(numbers, step=round)

    def close(self) -> None:
        self.run.finish()


def title(config: Config) -> str:
    """The name of a run among others.

    >>> title(Config(method="fedavg+wsm", seed=3))
    'fedavg+wsm digits seed 3'
    """
    return f"{config.method} {config.data} seed {config.seed}"


SINKS: dict[str, tuple[str, Callable[[ModuleType, Config, Path | None, int], Sink]]] = {
    "tensorboard": ("torch.utils.tensorboard", _TensorBoard),
    "mlflow": ("mlflow", _MLflow),
    "wandb": ("wandb", _WandB),
}
