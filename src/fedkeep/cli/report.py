"""`fedkeep report` and `fedkeep figure`: see what runs forgot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedkeep.cli.console import note, output, print_json
from fedkeep.report.compare import numbers
from fedkeep.report.export import KINDS, figure, write_figure
from fedkeep.report.page import page, save
from fedkeep.report.series import Report, load_report
from fedkeep.report.text import renderable
from fedkeep.report.words import summarise

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Run directories (the --out of runs), or folders of them.")
]


def document(report: Report) -> dict[str, Any]:
    """The summary as one JSON document."""
    summary = summarise(report)
    return {
        "lead": summary.lead.replace("`", ""),
        "summary": {paragraph.title: paragraph.text.replace("`", "") for paragraph in summary.paragraphs},
        "series": numbers(report),
        "notes": list(report.notes),
        "runs": [{"path": str(run.path), "method": run.method, "status": run.status} for run in report.runs],
    }


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    as_text: Annotated[bool, typer.Option("--text", help="Print the summary instead of writing a file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary's numbers as one JSON document.")] = False,
) -> None:
    """Show what runs forgot: one self-contained HTML file, or a summary in the terminal.

    Runs of the same method with different seeds become one series with a band.

    \b
    fedkeep report runs/first
    fedkeep report runs/fedavg-* runs/wsm-* -o compared.html
    fedkeep report runs/first --text
    """
    found = load_report(runs)
    if as_json:
        print_json(document(found))
        return
    if as_text:
        output().print(renderable(found))
        return
    for text in found.notes:
        note(text)
    path = save(page(found), out)
    output().print(Text.assemble("report written to ", (str(path), "bold")), soft_wrap=True)


def draw(
    runs: Runs,
    kind: Annotated[str, typer.Option(help=f"What to draw: {', '.join(KINDS)}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .svg, .png, .pdf or .html.")],
    round: Annotated[int | None, typer.Option(help="The round of a heatmap; the last one by default.")] = None,
    scale: Annotated[float, typer.Option(help="Multiplies the pixels of a .png.")] = 2.0,
) -> None:
    """Draw one figure of the report, for a paper.

    HTML always works; the other formats need a Chrome or Chromium on this machine.

    \b
    fedkeep figure runs/first --kind heatmap --round 50 -o f.svg
    fedkeep figure runs/fedavg-* runs/wsm-* --kind forgetting -o forgetting.png
    """
    path = write_figure(figure(runs, kind, round), out, scale)
    output().print(Text.assemble("figure written to ", (str(path), "bold")), soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(report)
    app.command("figure")(draw)
