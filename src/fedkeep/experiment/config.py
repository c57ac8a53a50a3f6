"""What determines an experiment: one flat set of options, the same in Python, in a file and on the command line."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tomli_w

from fedkeep import grammar, models
from fedkeep.calls import format_call, parse_call
from fedkeep.data.availability import Availability
from fedkeep.data.partition import parse as parse_partition
from fedkeep.data.raw import INPUTS
from fedkeep.data.resampled import KINDS as DRAWN
from fedkeep.data.sampling import cohort_size
from fedkeep.errors import ConfigError, nearest
from fedkeep.local_opt import SGD, Adam
from fedkeep.method import LocalOptimizer, Plan
from fedkeep.simulate import PANEL

VERSION = 1
MANY = 10_000  # clients in a round: more must be asked for by number
CHOICES = {
    "optimizer": ("sgd", "adam"),
    "norm": ("batch", "group"),
    "inputs": INPUTS,
    "forgetting": ("off", "cohort", "all"),
    "engine": ("auto", "eager", "traced", "ray"),
    "device": ("cpu", "gpu"),
    "step": ("auto", "eager", "traced"),
    "layout": ("auto", "rows", "channels-last"),
}

NOT_NEGATIVE = (
    "clients",
    "population",
    "cohort",
    "limit",
    "local_steps",
    "workers",
    "panel",
    "judge_every",
    "checkpoint_every",
    "cache_mb",
    "memory_gb",
    "seed",
)


def _option(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class Config:
    """Every option of a run.

    Fields marked `speed` change how fast a run is, those marked `same` where it finds its data or what is said of it;
    neither changes what it computes.
    """

    method: str = _option("fedavg", "Method, e.g. fedavg+wsm or fedprox(mu=0.01)+tce; `fedkeep methods` lists all.")
    data: str = _option("digits", "Data set by name, a .npz file, or hf:NAME; `fedkeep data` lists all.")
    data_root: str = _option("", "Folder that holds the data files (not needed for digits).", same=True)
    limit: int = _option(0, "Keep only this many training examples, drawn at random by a fixed key; 0 keeps all.")
    inputs: str = _option("standard", "Pixels: standard (normalised by channel) or unit (left between 0 and 1).")
    partition: str = _option("dirichlet(alpha=0.1)", "Who holds what, e.g. dirichlet(alpha=0.1), shards, iid.")
    clients: int = _option(20, "Number of clients; 0 takes what the partition says (natural, label_clusters).")
    population: int = _option(
        0,
        "Number of clients that each draw --samples examples from the data by their own key, in place of dealing the "
        "data out to --clients; any number, e.g. 1000000. --partition (dirichlet, shards, iid) says which labels.",
    )
    samples: int = _option(20, "Examples of each client of a --population.")
    fraction: float = _option(0.5, "Share of the clients that takes part in a round, above 0 and at most 1.")
    cohort: int = _option(0, "Number of clients in a round, in place of --fraction; 0 uses --fraction.")
    online: float = _option(1.0, "Probability that a client can be reached in a round.")
    dropout: float = _option(0.0, "Probability that a client of a round vanishes before it has sent its update.")
    slow: float = _option(0.0, "Probability that a client is slow in a round.")
    slow_work: float = _option(
        0.5, "Share of its local steps that a slow client finishes; 0: its update comes too late to be used."
    )
    validation: float = _option(0.1, "Share of each client's examples held out for judging models.")
    rounds: int = _option(20, "Number of rounds.")
    local_epochs: int = _option(2, "Passes over a client's data in one round.")
    local_steps: int = _option(0, "Local steps in one round, in place of passes; 0 uses --local-epochs.")
    batch_size: int = _option(32, "Examples in one local step.")
    lr: float = _option(0.05, "Local learning rate.")
    momentum: float = _option(0.0, "Local momentum (sgd only).")
    weight_decay: float = _option(0.0, "Local weight decay.")
    optimizer: str = _option("sgd", "Local optimiser: sgd or adam.")
    model: str = _option("mlp", "Model: " + ", ".join(models.names()) + ".")
    norm: str = _option("batch", "Normalisation layers: batch or group.")
    freeze: str = _option("", 'Layers that are never trained, comma separated; "classifier" freezes the last one.')
    seed: int = _option(0, "Everything random follows from this number.")
    forgetting: str = _option("cohort", "Measure forgetting against: off, the cohort, or all clients.")
    panel: int = _option(
        PANEL,
        "Clients on whose held-out examples each global model is judged: a fixed draw where there are more; "
        "0 judges on everyone's.",
    )
    judge_every: int = _option(1, "Judge the global model on the test data every n-th round; 0 only at the end.")
    target: float = _option(
        0.0, "Report how many rounds it takes to this test accuracy (0 to 1); 0 reports none.", same=True
    )
    engine: str = _option(
        "auto", "auto, eager, traced: on this machine, with that kind of step; ray: on a Ray cluster.", speed=True
    )
    ray_address: str = _option(
        "", "With --engine ray: HOST:PORT of a cluster, or auto to find one; without it Ray runs here.", speed=True
    )
    device: str = _option("cpu", "With --engine ray: a worker per core (cpu) or per GPU (gpu).", speed=True)
    step: str = _option(
        "auto",
        "How a local step runs, also on Ray: eager, traced (recorded and replayed), auto (recorded and compiled).",
        speed=True,
    )
    layout: str = _option("auto", "Images in memory: rows, channels-last, or auto: the faster, measured.", speed=True)
    workers: int = _option(
        0, "Worker processes; 0 uses all cores (of the cluster), 1 works in this process.", speed=True
    )
    checkpoint_every: int = _option(0, "Checkpoint every n-th round; 0 as often as costs at most 2 % time.", speed=True)
    cache_mb: float = _option(
        1000.0, "Megabytes of client memories (scaffold, events ...) held at a time; the rest is on disk.", speed=True
    )
    memory_gb: float = _option(
        0.0,
        "Gigabytes that a run may need; 0: what the machine has free. A run that needs more is refused.",
        speed=True,
    )

    def __post_init__(self) -> None:
        _check_types(self)
        for key, known in CHOICES.items():
            if getattr(self, key) not in known:
                raise ConfigError(f'{key} "{getattr(self, key)}" is unknown: {nearest(getattr(self, key), known)}')
        for key in ("rounds", "batch_size", "local_epochs", "samples"):
            _at_least(self, key, 1)
        for key in NOT_NEGATIVE:
            _at_least(self, key, 0)
        if not 0 <= self.validation < 1:
            raise ConfigError(f"validation {self.validation} is outside [0, 1); 0.1 holds out a tenth of each client")
        if not 0 <= self.target <= 1:
            raise ConfigError(f"target {self.target} is no accuracy; give a number from 0 to 1")
        if self.ray_address and self.engine != "ray":
            raise ConfigError(f'ray_address "{self.ray_address}" without Ray; add --engine ray, or leave it away')
        if self.device == "gpu" and self.engine != "ray":
            raise ConfigError("device gpu without Ray, which has the GPUs; add --engine ray, or leave it away")
        if self.model not in models.names():
            raise ConfigError(f'unknown model "{self.model}": {nearest(self.model, models.names())}')
        # written back in canonical form, so that equal experiments have equal files
        if self.engine in ("eager", "traced"):
            if self.step not in ("auto", self.engine):
                raise ConfigError(f'engine "{self.engine}" and step "{self.step}" contradict each other; give one')
            object.__setattr__(self, "step", self.engine)
            object.__setattr__(self, "engine", "auto")
        object.__setattr__(self, "method", grammar.name_of(grammar.parse(self.method)))
        object.__setattr__(self, "partition", str(parse_partition(self.partition)))
        self._check_population()
        _ = self.availability

    def _check_population(self) -> None:
        if self.population:
            if self.clients != type(self).clients:
                raise ConfigError(f"clients={self.clients} and population={self.population}: give one of them")
            spec = parse_partition(self.partition)
            if spec.name not in DRAWN:
                raise ConfigError(
                    f"partition {spec} with population={self.population}: its clients draw their examples one by one, "
                    f"which works with {', '.join(DRAWN)}; choose one of these"
                )
        if self.client_count:
            size = self.cohort_of(self.client_count)
            if self.population and not self.cohort and size > MANY:
                raise ConfigError(
                    f"fraction={self.fraction} of population={self.population} trains {size} clients in every round; "
                    "say how many with --cohort, e.g. --cohort 100"
                )

    @property
    def client_count(self) -> int:
        """How many clients there are; 0 where the partition says."""
        return self.population or self.clients

    def cohort_of(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        if not self.cohort:
            return cohort_size(clients, self.fraction)
        if self.cohort > clients:
            raise ConfigError(f"cohort={self.cohort} of {clients} clients cannot be drawn; choose at most {clients}")
        return self.cohort

    @property
    def availability(self) -> Availability:
        return Availability(self.online, self.dropout, self.slow, self.slow_work)

    @property
    def plan(self) -> Plan:
        return Plan(self.local_optimizer, self.batch_size, self.local_epochs, self.local_steps or None)

    @property
    def local_optimizer(self) -> LocalOptimizer:
        if self.optimizer == "adam":
            if self.momentum:
                raise ConfigError(f"momentum {self.momentum} with adam: adam has its own; leave --momentum away")
            return Adam(self.lr, weight_decay=self.weight_decay)
        return SGD(self.lr, self.momentum, self.weight_decay)

    @property
    def frozen(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.freeze.split(",") if name.strip())

    def identity(self) -> dict[str, Any]:
        """The options that determine the result; two configs with equal identity compute the same."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.metadata.keys() & {"speed", "same"}}

    def chosen(self) -> dict[str, Any]:
        """The identity without what is left at its default: an option added later does not change it."""
        return {key: value for key, value in self.identity().items() if value != getattr(type(self), key)}

    def with_options(self, options: Mapping[str, Any]) -> Config:
        """Some options replaced; `partition.alpha` or `method.mu` reach into a part."""
        plain: dict[str, Any] = {}
        for key, value in options.items():
            head, dot, tail = key.partition(".")
            _known(head, "")
            if not dot:
                plain[key] = value
            elif head == "partition":
                plain[head] = str(parse_partition(plain.get(head, self.partition)).with_option(tail, value))
            elif head == "method":
                plain[head] = with_method_option(plain.get(head, self.method), tail, value)
            else:
                raise ConfigError(f'option "{key}": only partition and method have options, e.g. partition.alpha')
        if plain.get("engine", "ray") != "ray":
            plain = {"ray_address": "", "device": "cpu", **plain}  # those of a file or an earlier run are of no use
        if plain.get("engine") in ("eager", "traced"):
            plain = {"step": plain["engine"], **plain}
        return replace(self, **plain)

    def to_toml(self) -> str:
        return tomli_w.dumps({"version": VERSION, **asdict(self)})


HINTS = get_type_hints(Config)


def _check_types(config: Config) -> None:
    for key, kind in HINTS.items():
        value = getattr(config, key)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            object.__setattr__(config, key, float(value))
        elif not isinstance(value, get_args(kind) or kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{key}={value!r} is of type {type(value).__name__}; give a {kind.__name__}")


def _at_least(config: Config, key: str, least: int) -> None:
    if getattr(config, key) < least:
        raise ConfigError(f"{key}={getattr(config, key)} is too small; choose at least {least}")


def _known(key: str, where: str) -> None:
    if key not in HINTS:
        raise ConfigError(f'{where}unknown option "{key}": {nearest(key, HINTS)}')


def _terms(name: str) -> list[tuple[str, dict[str, Any], list[str]]]:
    """The terms of a method's name: word, options that are given, options that it takes."""
    found = []
    for mark, term in re.findall(r"([+@]?)([^+@()]+(?:\([^()]*\))?)", name):
        word, given = parse_call(term, "method")
        maker = grammar.SERVER[word] if mark == "@" else grammar.TERMS[word]
        found.append((word if mark != "@" else f"@{word}", given, list(inspect.signature(maker).parameters)))
    return found


def method_options(name: str) -> list[str]:
    """The options that the terms of a method take.

    >>> method_options("fedprox(mu=0.01)+wsm@adam(lr=0.1)")[:2]
    ['mu', 'lr']
    """
    return [option for *_, takes in _terms(name) for option in takes]


def with_method_option(name: str, key: str, value: Any) -> str:
    """A method's name with one option set or changed, in every term that takes it.

    >>> with_method_option("fedprox(mu=0.01)+wsm", "mu", 0.5)
    'fedprox(mu=0.5)+wsm'
    """
    known = method_options(name)
    if key not in known:
        raise ConfigError(f'method {name} has no option "{key}": {nearest(key, known) if known else "it takes none"}')
    terms = [format_call(w, {**given, key: value} if key in takes else given) for w, given, takes in _terms(name)]
    changed = terms[0] + "".join(term if term.startswith("@") else f"+{term}" for term in terms[1:])
    return grammar.name_of(grammar.parse(changed))


def read_toml(path: Path, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """The options of an experiment file, strictly; `more` are keys beyond those of one run."""
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of an experiment file (.toml)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML ({error}); mend or replace the file") from None
    version = table.pop("version", VERSION)
    if version != VERSION:
        raise ConfigError(
            f"{path}: version {version}, this FedKeep reads version {VERSION}; use the release that wrote it"
        )
    for key in table:
        if key not in HINTS and key not in more:
            here = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[].=]""")
            line = next((n for n, row in enumerate(text.splitlines(), 1) if here.match(row)), 1)
            raise ConfigError(f'{path}, line {line}: unknown option "{key}": {nearest(key, [*HINTS, *more])}')
    return table
