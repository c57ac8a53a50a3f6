"""`fedkeep data`: what can be loaded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedkeep.cli.console import output, print_json, table
from fedkeep.data import Available, available
from fedkeep.errors import ConfigError


def data(
    data_root: Annotated[Path | None, typer.Option("--data-root", help="Folder to look for data files in.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """List the data sets, the files each expects, and whether they are there.

    \b
    fedkeep data
    fedkeep data --data-root ~/data
    fedkeep run fedavg --data mnist --data-root ~/data --clients 100 --fraction 0.1
    """
    root = data_root.expanduser() if data_root else None
    if root and not root.is_dir():
        raise ConfigError(f"data root {root} is not a folder; give the folder that holds the data files")
    rows = available(root)
    if as_json:
        print_json({"data_root": str(root) if root else None, "data": [asdict(row) for row in rows]})
        return
    shown = table("data", "there?", "files it needs")
    for row in rows:
        shown.add_row(Text(row.name, "cyan"), _state(row), Text(row.files))
    output().print(shown)
    if root is None:
        output().print(Text("\n--data-root DIR looks for the files", "dim"))


def _state(row: Available) -> Text:
    if row.found is None:
        return Text("?" if row.needs_root else "", "dim")
    return Text("yes", "green") if row.found else Text("no", "yellow")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(data)
