"""What is kept of a reproduction: result.json, the raw records, the figure and a README."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from fedkeep.errors import RunError
from fedkeep.experiment.tables import to_parquet
from fedkeep.files import cannot_write, write_whole
from fedkeep.papers.cells import Table
from fedkeep.papers.checks import Finding, judge, verdict
from fedkeep.papers.images import svg
from fedkeep.papers.recipe import Recipe, load

SCRIPT = "plotly.min.js"
IMAGE = "figure.svg"
VERSION = 1
NO_VERDICT = "no verdict at smoke scale"


@dataclass(frozen=True)
class Result:
    """A reproduction of one recipe at one scale."""

    name: str
    scale: str
    seeds: tuple[int, ...]
    tables: tuple[Table, ...]
    reduced: str
    about: Mapping[str, Any]  # command, date, machine, versions
    remarks: tuple[str, ...] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)  # column -> why
    failures: Mapping[str, str] = field(default_factory=dict)  # run -> why
    runs: Sequence[Mapping[str, Any]] = ()

    @property
    def recipe(self) -> Recipe:
        return load(self.name)

    @property
    def findings(self) -> list[Finding]:
        """What the recipe's rules say of the numbers; always made anew."""
        return judge(self.recipe, self.tables)

    @property
    def verdict(self) -> str:
        return verdict(self.findings) if self.scale != "smoke" else NO_VERDICT

    def document(self) -> dict[str, Any]:
        """The result as JSON has it."""
        recipe = self.recipe
        return {
            "version": VERSION,
            "paper": recipe.paper,
            "item": recipe.item,
            "title": recipe.title,
            "kind": recipe.kind,
            "claim": recipe.claim,
            "scale": self.scale,
            "seeds": list(self.seeds),
            "verdict": self.verdict,
            "findings": [finding.document() for finding in self.findings],
            "tables": [table.document() for table in self.tables],
            "reduced": self.reduced,
            "remarks": list(self.remarks),
            "not_run": dict(self.not_run),
            "failures": dict(self.failures),
            "runs": list(self.runs),
            **self.about,
        }

    @staticmethod
    def read(path: Path) -> Result:
        """A result from its result.json."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            about = {key: document[key] for key in ("command", "date", "machine", "versions", "git")}
            return Result(
                name=f"{document['paper']}/{document['item']}",
                scale=document["scale"],
                seeds=tuple(document["seeds"]),
                tables=tuple(Table.of(table) for table in document["tables"]),
                reduced=document["reduced"],
                about=about,
                remarks=tuple(document["remarks"]),
                not_run=document["not_run"],
                failures=document["failures"],
                runs=document["runs"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: cannot be read as a result ({error}); restore it, or reproduce it again") from None


def write(
    result: Result, figure: go.Figure | None, records: Mapping[str, pd.DataFrame], out: Path, images: bool
) -> tuple[Path, list[str]]:
    """Write a result into `out`/paper/item/scale; gives that folder and notes on what could not be written."""
    folder = out / result.name / result.scale
    notes: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    document = json.dumps(result.document(), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / "result.json", document.encode())
    for name, frame in records.items():
        if len(frame):
            write_whole(folder / f"{name}.parquet", to_parquet(_columns(frame)))
    if figure is not None:
        notes += write_figure(figure, folder, out, images)
    return folder, notes


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def write_figure(figure: go.Figure, folder: Path, out: Path, images: bool) -> list[str]:
    """The figure as HTML, and as SVG where that is possible; the script they share lies once in `out`."""
    if not (out / SCRIPT).exists():
        write_whole(out / SCRIPT, get_plotlyjs().encode())
    upwards = "/".join([".."] * len(folder.relative_to(out).parts))
    page = io.StringIO()
    figure.write_html(page, include_plotlyjs=f"{upwards}/{SCRIPT}", div_id="figure", config={"displayModeBar": False})
    write_whole(folder / "figure.html", page.getvalue().encode())
    if not images:
        return []
    drawn = svg(figure, out / SCRIPT)
    if isinstance(drawn, str):
        return [f"no {IMAGE}: {drawn}"]
    write_whole(folder / IMAGE, drawn)
    return []
