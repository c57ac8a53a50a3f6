"""`fedkeep demo`: seven ways to average, on data that makes models forget."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedkeep.cli.compare import FAILED, spread
from fedkeep.cli.console import errors, note, output, print_json, size, table
from fedkeep.cli.progress import Runs
from fedkeep.cli.run import INTERRUPTED
from fedkeep.errors import RunError
from fedkeep.experiment import Config
from fedkeep.experiment.compare import Comparison, compare
from fedkeep.experiment.summary import LAST
from fedkeep.report.page import page, save
from fedkeep.report.series import load_report
from fedkeep.report.words import summarise

METHODS = (
    "fedavg",
    "fedavg+tce",
    "fedavg+wsm",
    "fedwavg(alpha=0.3)",
    "fedwagg(clusters=3)",
    "importance(lam=100)",
    "scaffold",
)
SEEDS = 3
WIDE = 90
SETTING = Config(data="digits", partition="dirichlet(alpha=0.1)", clients=20, fraction=0.5, rounds=30, lr=0.2)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for runs and report.")] = Path("runs/demo"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, and no progress.")
    ] = False,
) -> None:
    """Compare seven methods on digits that are dealt out unevenly, and write a report. Takes about a minute.

    Runs that are already there are not run again.

    \b
    fedkeep demo
    fedkeep demo --out somewhere/else
    """
    try:
        found = _compare(out, as_json)
    except KeyboardInterrupt:
        note(f"interrupted; what is finished is kept in {out}. Run the same command again to go on")
        raise typer.Exit(INTERRUPTED) from None
    if found.frame.empty:
        raise RunError(f"{out}: no run came to an end; the first says: {next(iter(found.failures.values()))}")
    report = load_report(found.paths)
    path = save(page(report), out / "report.html")
    if as_json:
        print_json({"methods": found.table().to_dict("records"), "runs": found.paths, "report": path})
    else:
        _show(found)
        output().print(Text(f"\n{summarise(report).lead.replace('`', '')}"))
        output().print(Text.assemble("\nreport: ", (str(path), "bold cyan")), soft_wrap=True)
    if found.failures:
        raise typer.Exit(FAILED)


def _compare(out: Path, quiet: bool) -> Comparison:
    if not quiet:
        errors().print(Text(f"{len(METHODS)} methods, {SEEDS} seeds, {SETTING.rounds} rounds each", "dim"))
    with Runs(len(METHODS) * SEEDS, SETTING.rounds, quiet) as listen:
        return compare(METHODS, SEEDS, SETTING, out, listen=listen)


def _show(found: Comparison) -> None:
    console = output()
    wide = console.width >= WIDE
    numbers = ("accuracy", "forgetting", "against fedavg", "sent up a round", "seconds")
    shown = table("method", *(numbers if wide else numbers[:2]), numbers=numbers)
    for row in found.table().to_dict("records"):
        cells = [
            spread(row, "final"),
            f"{row['forgetting']:.3f}",
            "" if math.isnan(row["difference"]) else f"{row['difference']:+.3f}",
            size(row["bytes_up"]),
            f"{row['seconds']:.1f}",
        ]
        shown.add_row(Text(row["method"], "cyan"), *(Text(cell) for cell in (cells if wide else cells[:2])))
    console.print(shown)
    text = (
        f"\naccuracy on test data, mean of the last {LAST} rounds, {len(found.seeds)} seeds, with its 95 % interval; "
        "forgetting: how much accuracy on other clients' data a model loses while one client trains it"
    )
    console.print(Text(text, "dim"))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(demo)
