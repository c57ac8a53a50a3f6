"""How a run ended, for people and for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.text import Text

from fedkeep.cli.console import duration, note, output, print_json, size, table
from fedkeep.experiment import Config, Run
from fedkeep.experiment.summary import LAST
from fedkeep.report import text_summary


def headline(config: Config) -> str:
    """A run in one line."""
    if config.client_count:
        clients = f"{config.cohort_of(config.client_count)} of {config.client_count} clients"
    else:
        clients = f"{config.cohort or format(config.fraction, '.0%')} of the clients"
    return f"{config.method} on {config.data}, {config.partition}: {config.rounds} rounds, {clients} in each"


def document(run: Run) -> dict[str, Any]:
    """A run as one JSON document."""
    return {
        "config": asdict(run.config),
        "summary": run.summary(),
        "rounds": run.rounds,
        "directory": str(run.directory) if run.directory else None,
        "notes": run.notes,
        "peak_memory": asdict(run.peak) if run.peak else None,
    }


def rows(run: Run) -> list[tuple[str, str]]:
    """What is worth knowing of a run, each with its value."""
    summary, rounds = run.summary(), len(run.rounds)
    last = min(LAST, rounds)
    found = [
        (f"accuracy, mean of the last {last} rounds", _number(summary["final"])),
        ("best accuracy", _number(summary["best"])),
    ]
    if run.config.target:
        reached = summary["rounds_to_target"]
        found.append((f"rounds to {run.config.target:g}", "never" if math.isnan(reached) else f"{reached:.0f}"))
    if run.config.forgetting != "off":
        found.append(("forgetting", _number(summary["forgetting"])))
        found.append(("forgettable examples a round", _number(summary["forgettable"], ".1f")))
    found.append(("traffic a round", f"{size(summary['bytes_up'])} up, {size(summary['bytes_down'])} down"))
    found.append(("time", duration(summary["seconds"])))
    return found


def _number(value: float, form: str = ".4f") -> str:
    return "not known" if math.isnan(value) else format(value, form)


def show(run: Run, as_json: bool) -> None:
    """Print how a run ended, and what to do next."""
    for text in run.notes:
        note(text)
    if as_json:
        print_json(document(run))
        return
    console = output()
    if run.directory:
        text_summary([run.directory], console)
        console.print()
    shown = table("what", "value")
    shown.show_header = False
    for label, value in rows(run):
        shown.add_row(Text(label), Text(value, "bold"))
    console.print(shown)
    if run.peak:
        worker = f", largest worker {size(run.peak.worker)}" if run.config.workers != 1 else ""
        console.print(Text(f"peak memory {size(run.peak.process)}{worker}", "dim"))
    if run.directory:
        console.print(Text.assemble("\nsaved in ", (str(run.directory), "bold")), soft_wrap=True)
        console.print(Text.assemble("next: ", (f"fedkeep report {run.directory}", "bold cyan")), soft_wrap=True)
    else:
        console.print(Text("\nnothing was saved; --out DIR keeps records and models, and lets a run be resumed", "dim"))
