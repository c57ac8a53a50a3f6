"""`fedkeep centralised`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedkeep.centralised import Centralised, Epoch
from fedkeep.centralised import centralised as train
from fedkeep.cli.console import duration, errors, output, print_json, table
from fedkeep.cli.options import PANELS, with_options
from fedkeep.experiment import Config

FEDERATED = {"method", "local_steps", "forgetting", "judge_every", "target"}
LEFT_AWAY = FEDERATED | {"engine", "ray_address", "device", "step", "workers", "checkpoint_every"}
OPTIONS = tuple(name for names in PANELS.values() for name in names if name not in LEFT_AWAY)

Epochs = Annotated[
    int | None,
    typer.Option("--epochs", help="Passes over the data; else as many as a client makes in a run with these options."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and no progress.")]


@with_options(OPTIONS)
def centralised(epochs: Epochs = None, as_json: Json = False, *, options: dict) -> None:
    """Train one model on all clients' data pooled, and count what it forgets: the reference for a federation.

    An event is an example that was right in one pass and is wrong in the next (accuracy), or whose error grew (margin).

    \b
    fedkeep centralised --data digits --epochs 20
    """
    config = Config(**options)
    columns = (TextColumn("centralised"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
    console = errors()
    hidden = as_json or not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=epochs, state="")

        def listen(epoch: Epoch) -> None:
            bar.update(task, completed=epoch.epoch, state=f"accuracy {epoch.accuracy:.3f}")

        show(train(config, epochs, listen), as_json)


def show(done: Centralised, as_json: bool) -> None:
    """Print how the training ended."""
    summary = done.summary()
    if as_json:
        epochs = [asdict(epoch) for epoch in done.epochs]
        print_json({"config": asdict(done.config), "summary": summary, "epochs": epochs})
        return
    shown = table("what", "value")
    shown.show_header = False
    for label, value in (
        ("accuracy after the last pass", f"{summary['accuracy']:.4f}"),
        ("best accuracy", f"{summary['best']:.4f}"),
        ("passes", f"{summary['epochs']} over {summary['examples']} examples"),
        ("forgetting events, by accuracy", f"{summary['accuracy_events']}"),
        ("forgetting events, by margin", f"{summary['margin_events']}"),
        ("examples ever forgotten", f"{summary['ever_forgotten']}"),
        ("time", duration(summary["seconds"])),
    ):
        shown.add_row(Text(label), Text(value, "bold"))
    output().print(shown)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(centralised)
