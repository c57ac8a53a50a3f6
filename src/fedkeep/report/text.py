"""The report in the terminal: the same words, the numbers at a glance, and a small heatmap."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedkeep.report import sections
from fedkeep.report.compare import helps
from fedkeep.report.load import how_to_record_pairs
from fedkeep.report.matrices import Matrix, matrix
from fedkeep.report.series import Report, Series, load_report
from fedkeep.report.style import SCALES
from fedkeep.report.words import summarise

SIDE = 12  # clients on a side of the small heatmap
WIDTH = 100  # columns of running text


def text_summary(paths: Iterable[str | Path], console: Console) -> Report:
    """Print the summary of one or more run directories, and return what was read."""
    report = load_report(paths)
    console.print(renderable(report))
    return report


def renderable(report: Report) -> RenderableType:
    """The summary as something that rich prints."""
    summary = summarise(report)
    parts: list[RenderableType] = [_words(summary.lead, "bold"), Text()]
    for note in report.notes:
        parts.append(Text.assemble(("note: ", "bold yellow"), _words(note)))
    parts += [Text()] if report.notes else []
    parts += [_glance(report), Text()]
    for paragraph in summary.paragraphs:
        parts.append(Text(paragraph.title, "bold"))
        parts += [Padding(_words(line), (0, 0, 0, 2)) for line in paragraph.text.split("\n")]
        parts.append(Text())
    return Group(*parts, *_heatmaps(report))


def _words(text: str, style: str = "") -> Text:
    """Plain text with `names` in backticks in colour; nothing in it is read as markup."""
    found = Text(style=style)
    for place, piece in enumerate(re.split(r"`([^`]+)`", text)):
        found.append(piece, "cyan" if place % 2 else "")
    return found


def _glance(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", overflow="fold")
    for name in ("accuracy %", "seeds' range", "forgetting F", "seeds' range", "forgettable", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sections.glance(report):
        accuracy, forgetting = row["accuracy"], row["forgetting"]
        cells = (accuracy["mean"], accuracy["span"], forgetting["mean"], forgetting["span"], row["forgettable"])
        table.add_row(Text(row["label"], "cyan"), *cells, str(row["seeds"]))
    return table


def _heatmaps(report: Report) -> list[RenderableType]:
    """F_ki of the last round: the baseline, and the method that helps or the one after it."""
    best = helps(report)
    chosen = [report.baseline, best or next((s for s in report.series if s is not report.baseline), None)]
    maps = [(series, found) for series in chosen if series is not None and (found := _last(series)) is not None]
    if not maps:
        return [_words(f"F of each pair of clients was {how_to_record_pairs(report.runs)}.", "dim")]
    head = Text("Who forgets whom, in points of accuracy", "bold")
    legend = Text("rows: model of client, columns: data of client; own data underlined; + is forgotten", "dim")
    return [head, legend, Columns([heatmap(series.label, found) for series, found in maps], padding=(1, 4))]


def _last(series: Series) -> Matrix | None:
    run = next((run for run in series.complete if run.pairs is not None and len(run.pairs)), None)
    return (
        None if run is None or run.pairs is None else matrix(run, int(np.asarray(run.pairs["round"]).max()), side=SIDE)
    )


def heatmap(title: str, found: Matrix) -> RenderableType:
    """F_ki as coloured cells with whole points in them, so that it can be read without colours too."""
    size = len(found.models)
    name = Text.assemble((title, "cyan"), f", round {found.round}")
    table = Table(box=None, padding=0, pad_edge=False)
    table.add_column("", justify="right", style="dim")
    for client in found.data[:size].tolist():
        table.add_column(f"{client:>4}", justify="right", header_style="dim", no_wrap=True)
    for i, client in enumerate(found.models.tolist()):
        cells = [_cell(value, own=i == k) for k, value in enumerate(found.forgetting[i, :size].tolist())]
        table.add_row(f"{client} ", *cells)
    return Group(name, table)


def _cell(value: float, own: bool) -> Text:
    if not np.isfinite(value):
        return Text("   .", "dim")
    style = f"{_ink(value)} on {colour(value)}" + (" underline" if own else "")
    number = f"{round(100 * value):+d}" if round(100 * value) else "0"
    return Text(f"{number:>4}".replace("-", "\N{MINUS SIGN}"), style)


def colour(value: float) -> str:
    """The colour of F on the scale that the page uses.

    >>> colour(0.0), colour(1.0)
    ('#f7f7f7', '#b34a00')
    """
    stops = SCALES["diverging"]
    place = (min(max(value, -1.0), 1.0) + 1) / 2
    high = next(index for index, (stop, _) in enumerate(stops) if stop >= place)
    low = max(high - 1, 0)
    (start, first), (end, last) = stops[low], stops[high]
    share = (place - start) / (end - start) if end > start else 0.0
    mixed = [round((1 - share) * _part(first, i) + share * _part(last, i)) for i in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _part(colour: str, place: int) -> int:
    return int(colour[place : place + 2], 16)


def _ink(value: float) -> str:
    return "#ffffff" if abs(value) > 0.7 else "#1d2127"
