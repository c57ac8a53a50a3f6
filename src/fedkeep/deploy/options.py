"""What a deployment needs to know beyond the experiment: who takes part, what may fail, what may be sent.

Experiment and deployment travel together as the flat run config of a Flower app.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_type_hints

from fedkeep.data.availability import Availability
from fedkeep.deploy import encoding
from fedkeep.errors import ConfigError, nearest
from fedkeep.experiment.config import HINTS, Config

MISSING = ("skip", "stop")
OWN = "own:"  # what `Config.data` begins with where clients bring their own examples
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _option(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class Options:
    """Every option of a deployment. Those marked `fixed` must stay the same when a run goes on."""

    names: str = _option("", "Names of the clients, comma separated; default client-0, client-1, ...", fixed=True)
    load: str = _option(
        "",
        "Function of a client that returns its own examples (x, y): FILE.py:FUNCTION or MODULE:FUNCTION; a node's own "
        "load= in its --node-config comes first.",
        fixed=True,
    )
    test: str = _option("", "Function of the server that returns test examples (x, y), with --load only.")
    shape: str = _option("", "Shape of one example, e.g. 1,28,28, with --load only.", fixed=True)
    classes: int = _option(0, "Number of classes, with --load only.", fixed=True)
    min_replies: int = _option(1, "A round needs so many replies; with fewer the run stops and can be started again.")
    time_limit: float = _option(600.0, "Seconds after which a client that has not answered counts as missing.")
    start_wait: float = _option(60.0, "Seconds to wait at the start for clients that are not connected yet.")
    missing: str = _option("skip", "What a missing client means: skip it in this round, or stop the run.")
    probe: bool = _option(
        False,
        "Measure forgetting between clients (F_ki): sends each client's trained model to other clients.",
    )
    encode: str = _option(
        "",
        "Smaller payloads, e.g. delta=float16 or importance=top(q=10): float16, int8, top(q=..., then=int8) on delta, "
        "broadcast or the name of an upload.",
        fixed=True,
    )
    dp_clip: float = _option(0.0, "Differential privacy: largest norm of a client's update; 0 is off.", fixed=True)
    dp_noise: float = _option(0.0, "Differential privacy: noise on the sum, in units of --dp-clip.", fixed=True)
    dp_delta: float = _option(1e-5, "Differential privacy: the delta that epsilon is reported for.", fixed=True)
    out: str = _option("", "Run directory on the server.")
    command: str = _option("", "The command that started all this, for the record.")

    def __post_init__(self) -> None:
        _check_types(self)
        if self.missing not in MISSING:
            raise ConfigError(f'missing "{self.missing}" is unknown: {nearest(self.missing, MISSING)}')
        for key, least in (("min_replies", 1), ("classes", 0)):
            if getattr(self, key) < least:
                raise ConfigError(f"{key}={getattr(self, key)} is too small; choose at least {least}")
        for key in ("time_limit", "start_wait"):
            if not 0 < getattr(self, key) < 1e9:
                raise ConfigError(f"{key}={getattr(self, key)}: give a number of seconds above 0")
        object.__setattr__(self, "encode", encoding.format_encodings(encoding.parse(self.encode)))

    @property
    def encodings(self) -> encoding.Encodings:
        return encoding.parse(self.encode)

    @property
    def private(self) -> bool:
        """Whether differential privacy is on."""
        return self.dp_clip > 0 or self.dp_noise > 0

    @property
    def example_shape(self) -> tuple[int, ...]:
        try:
            shape = tuple(int(side) for side in self.shape.split(","))
        except ValueError:
            shape = ()
        if not shape or min(shape) < 1:
            raise ConfigError(f'shape "{self.shape}": with --load, give the shape of one example, e.g. 1,28,28')
        return shape

    def client_names(self, clients: int) -> tuple[str, ...]:
        """The names of all clients; the position of a name is the client's number."""
        if not self.names:
            return tuple(f"client-{number}" for number in range(clients))
        names = tuple(name.strip() for name in self.names.split(","))
        for name in names:
            if not NAME.fullmatch(name):
                raise ConfigError(f'client name "{name}": use letters, digits, ".", "_" and "-", at most 64 of them')
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f'client name "{twice}" is given twice; each client needs its own')
        if len(names) != clients:
            raise ConfigError(f"names lists {len(names)} clients, clients is {clients}; give one name for each")
        return names

    def fixed(self) -> dict[str, Any]:
        """What must not change while a run goes on."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.metadata.get("fixed")}


TYPES = get_type_hints(Options)


def _check_types(options: Options) -> None:
    for key, kind in TYPES.items():
        value = getattr(options, key)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(options, key, float(value))
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{key}={value!r} is of type {type(value).__name__}; give a {kind.__name__}")


def to_run_config(config: Config, options: Options) -> dict[str, Any]:
    """Experiment and deployment as the flat config of a Flower run."""
    return {**asdict(config), **asdict(options)}


def from_run_config(run_config: Mapping[str, Any]) -> tuple[Config, Options]:
    """Experiment and deployment from the config of a Flower run, strictly."""
    for key in run_config:
        if key not in HINTS and key not in TYPES:
            raise ConfigError(f'run config: unknown option "{key}": {nearest(key, [*HINTS, *TYPES])}')
    config = Config(**{key: value for key, value in run_config.items() if key in HINTS})
    options = Options(**{key: value for key, value in run_config.items() if key in TYPES})
    return deployed(config, options), options


def deployed(config: Config, options: Options) -> Config:
    """The experiment as it is run over a network: what only a simulation has a use for is settled.

    A client works in a process of its own for each message, where recording a step does not pay; every round is saved,
    because a round over a network costs more than a checkpoint.
    """
    changes: dict[str, Any] = {
        "workers": 1,
        "checkpoint_every": 1,
        "engine": "auto",
        "ray_address": "",
        "device": "cpu",
    }
    if config.layout == "auto":
        changes["layout"] = "rows"
    if config.step == "auto":
        changes["step"] = "eager"
    if options.load:
        changes |= {"data": OWN + options.load, "partition": "natural", "limit": 0}
    if not config.clients:
        raise ConfigError("clients=0: a deployment has a fixed number of clients; give it with --clients")
    if config.population:
        raise ConfigError(f"population={config.population} is for simulations; a deployment has --clients")
    if config.availability != Availability(slow_work=config.slow_work):
        raise ConfigError("online, dropout and slow are for simulations: in a deployment clients fail by themselves")
    return replace(config, **changes)
