"""`fedkeep deploy`: the same methods over a real network, with Flower."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markup import escape
from rich.text import Text

from fedkeep.cli.console import errors, note, output
from fedkeep.cli.options import FIELDS, flag, resolve, with_options
from fedkeep.cli.run import INTERRUPTED, Json, Out
from fedkeep.cli.summary import show
from fedkeep.deploy.options import MISSING, TYPES, Options
from fedkeep.errors import ConfigError
from fedkeep.experiment import Config

SIMULATED = ("workers", "checkpoint_every", "engine", "ray_address", "device")  # of no use over a network
CONFIG = tuple(name for name in FIELDS if name not in SIMULATED)
DEPLOYMENT = {item.name: item for item in fields(Options) if item.name not in ("out", "command")}
LOCAL_CLIENTS = 4  # each is a program of its own, so fewer than in a simulation

Experiment = Annotated[
    str, typer.Argument(metavar="METHOD|FILE.toml", help="A method (`fedkeep methods`) or an experiment file.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS and node authentication; on this machine only.")
]


def _parameter(name: str) -> inspect.Parameter:
    item = DEPLOYMENT[name]
    default = f" [dim]\\[default: {escape(str(item.default))}][/dim]" if item.default not in ("", False) else ""
    declared = [flag(name)] if TYPES[name] is not bool else [f"{flag(name)}/--no-{name.replace('_', '-')}"]
    option = typer.Option(
        *declared,
        help=escape(item.metadata["help"]) + default,
        metavar="|".join(MISSING) if name == "missing" else None,
        rich_help_panel="Deployment",
        show_default=False,
    )
    kind = list[str] if name == "encode" else TYPES[name]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def with_deployment(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each field of `Options`; it gets those that were given as `deployment`, a dict."""
    hints = get_type_hints(function, include_extras=True)
    own = [
        item.replace(annotation=hints[item.name])
        for item in inspect.signature(function).parameters.values()
        if item.name != "deployment"
    ]
    extra = [_parameter(name) for name in DEPLOYMENT]

    def command(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in DEPLOYMENT}
        given["encode"] = ", ".join(given["encode"]) if given["encode"] else None
        return function(**arguments, deployment={key: value for key, value in given.items() if value is not None})

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__module__, command.__qualname__ = function.__module__, function.__qualname__
    command.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in (*own, *extra)}
    return command


def need_flower() -> None:
    """Refuse where the extra is not installed."""
    for module in ("flwr", "dp_accounting"):
        if find_spec(module) is None:
            raise ConfigError(f'{module} is not installed; run pip install "fedkeep[flower]"')


def _command() -> str:
    return shlex.join(["fedkeep", *sys.argv[1:]])


def resolved(experiment: str, options: Mapping[str, Any], clients: int | None = None) -> Config:
    """The experiment's config; `clients` stands in where neither the command line nor a file gives a number."""
    if clients and "clients" not in options and not experiment.endswith(".toml"):
        options = {"clients": clients, **options}
    return resolve(experiment, options)


@with_options(CONFIG)
@with_deployment
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the files of the deployment.")],
    experiment: Experiment,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="What the clients' nodes connect to.")
    ] = "127.0.0.1:8000",
    out: Annotated[str | None, typer.Option("--out", help="Run directory on the server; by default DIR/run.")] = None,
    insecure: Insecure = False,
    *,
    options: dict,
    deployment: dict,
) -> None:
    """Write a ready Flower app, start scripts, certificates, keys and services for a federation on many machines.

    \b
    fedkeep deploy init hospitals "scaffold+wsm" --clients 3 --names north,south,west --address fl.example.org:443
    fedkeep deploy init mine fedavg --clients 3 --load data.py:load --shape 1,28,28 --classes 10
    """
    need_flower()
    from fedkeep.deploy.project import PORT, Project, is_loopback, split_address, write_project

    config = resolved(experiment, options)
    chosen = Options(**deployment, out=str(Path(out).expanduser().absolute()) if out else "", command=_command())
    host, port = split_address(address)
    project = Project(config, chosen, address, port if is_loopback(host) else PORT, insecure)
    sends = write_project(project, folder)
    console = output()
    console.print(Text.assemble("written to ", (str(folder), "bold"), "; what to do next is in its README.md"))
    console.print(Text("\nWhat will leave a client", "bold"))
    for line in sends:
        console.print(Text(f"  {line}"))


@with_options(CONFIG)
@with_deployment
def local(
    experiment: Experiment,
    out: Out = None,
    insecure: Insecure = False,
    as_json: Json = False,
    *,
    options: dict,
    deployment: dict,
) -> None:
    """Run a federation over Flower on this machine: SuperLink and SuperNodes with TLS and node authentication.

    Everything that is started is stopped again. With --out the run is kept: interrupted, the same command goes on.

    \b
    fedkeep deploy local "importance(lam=10)+wsm" --data digits --clients 4 --rounds 3
    """
    need_flower()
    from fedkeep.deploy.local import run_local

    config = resolved(experiment, options, LOCAL_CLIENTS)

    def say(line: str) -> None:
        if not as_json:
            errors().print(Text(line), soft_wrap=True)

    try:
        run = run_local(config, Options(**deployment, command=_command()), out, say, insecure)
    except KeyboardInterrupt:
        note("interrupted; all that was started is stopped" + (". Run the same command to go on" if out else ""))
        raise typer.Exit(INTERRUPTED) from None
    show(run, as_json)
    if not as_json and not out and config.forgetting != "off" and not deployment.get("probe"):
        note(
            "forgetting between clients was not measured: --probe does, and sends clients' trained models to each other"
        )


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    commands = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="The same methods over a real network, with Flower (needs fedkeep\\[flower]).",
    )
    commands.command()(init)
    commands.command()(local)
    app.add_typer(commands, name="deploy")
