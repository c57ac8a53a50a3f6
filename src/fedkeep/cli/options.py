"""Command line options made from the fields of `Config`, so that name, default and help have one source."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markup import escape

from fedkeep.errors import ConfigError
from fedkeep.experiment.config import CHOICES, HINTS, Config, read_toml

PANELS = {
    "Data": ("data", "data_root", "limit", "inputs", "partition", "clients", "population", "samples", "validation"),
    "Federation": ("method", "fraction", "cohort", "rounds", "seed"),
    "Clients that fail": ("online", "dropout", "slow", "slow_work"),
    "Local training": (
        "local_epochs",
        "local_steps",
        "batch_size",
        "lr",
        "momentum",
        "weight_decay",
        "optimizer",
    ),
    "Model": ("model", "norm", "freeze"),
    "Measuring": ("forgetting", "panel", "judge_every", "target"),
    "Speed and memory": (
        "engine",
        "ray_address",
        "device",
        "workers",
        "step",
        "layout",
        "checkpoint_every",
        "cache_mb",
        "memory_gb",
    ),
}
FIELDS: dict[str, Field] = {item.name: item for item in fields(Config)}
SPEED = tuple(name for name, item in FIELDS.items() if item.metadata.get("speed"))


def panel_of(name: str) -> str:
    """The part of the help an option stands in."""
    return next((panel for panel, names in PANELS.items() if name in names), "More")


def flag(name: str) -> str:
    """The option of a field.

    >>> flag("local_epochs")
    '--local-epochs'
    """
    return "--" + name.replace("_", "-")


def parameter(name: str) -> inspect.Parameter:
    """The parameter of a command that stands for a field of `Config`; None means that it was not given."""
    option = typer.Option(
        flag(name),
        help=_help(name),
        metavar="|".join(CHOICES[name]) if name in CHOICES else None,
        rich_help_panel=panel_of(name),
        show_default=False,
    )
    kind = Annotated[HINTS[name] | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _help(name: str) -> str:
    if name == "method":  # a command names its method by an argument; the option is for files
        return "Method in place of the experiment file's."
    item = FIELDS[name]
    default = f" [dim]\\[default: {escape(str(item.default))}][/dim]" if item.default != "" else ""
    return escape(item.metadata["help"]) + default


def with_options(names: Iterable[str] = tuple(FIELDS)) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each of the named fields; it gets those that were given as `options`, a dict.

    The command declares `options: dict` as its last parameter and everything else as usual.
    """
    chosen = tuple(names)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(function, include_extras=True)
        own = [
            item.replace(annotation=hints[item.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for item in inspect.signature(function).parameters.values()
            if item.name != "options"
        ]
        parameters = [*own, *(parameter(name) for name in chosen)]

        def command(**arguments: Any) -> Any:
            given = {name: arguments.pop(name) for name in chosen}
            return function(**arguments, options={key: value for key, value in given.items() if value is not None})

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__module__, command.__qualname__ = function.__module__, function.__qualname__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        return command

    return decorate


def is_file(target: str) -> bool:
    """Whether a target names an experiment file and not a method.

    >>> is_file("exp.toml"), is_file("fedprox(mu=0.01)+wsm")
    (True, False)
    """
    return target.endswith(".toml")


def resolve(target: str, options: Mapping[str, Any]) -> Config:
    """The config of a method or an experiment file, with the options of the command line over it.

    >>> resolve("fedavg + wsm", {"rounds": 3}).method
    'fedavg+wsm'
    """
    if not is_file(target):
        if "method" in options:
            given = options["method"]
            raise ConfigError(f'two methods, "{target}" and --method {given}; --method is for files, leave it away')
        if (Path(target) / "config.toml").is_file() and "/" in target:
            raise ConfigError(f'"{target}" is a run, not a method; to go on with it: fedkeep resume {target}')
        return Config(**{"method": target, **options})
    path = Path(target)
    try:
        config = Config(**read_toml(path))
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(str(path)) else f"{path}: {message}") from None
    return config.with_options(options)
