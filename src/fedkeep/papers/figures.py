"""The pictures, each a pure function of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedkeep.papers.cells import Table
from fedkeep.report.style import DASHES, GREY, GRID, PALETTE, SCALES, faded, layout, ready_for_paper

WIDE = 3  # panels side by side
POINTS = 600  # of a curve that is drawn; more are thinned out


@dataclass(frozen=True, eq=False)
class Band:
    """A curve: the mean over the seeds, the lowest and the highest."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, eq=False)
class Panel:
    """One picture of several side by side."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Band]


def band(curves: Sequence[pd.Series]) -> Band:
    """Curves by round, one per seed, as a band.

    >>> found = band([pd.Series([0.0, 1.0], index=[1, 2]), pd.Series([0.5, 0.0], index=[1, 2])])
    >>> found.mean.tolist(), found.high.tolist()
    ([0.25, 0.5], [0.5, 1.0])
    """
    if not curves:
        return Band(*(np.zeros(0) for _ in range(4)))
    table = pd.concat(curves, axis=1).sort_index()
    step = max(1, -(-len(table) // POINTS))  # each span of so many rounds is drawn as its mean
    spans = range(0, len(table), step)
    values = np.array([table.iloc[first : first + step].mean().to_numpy() for first in spans]).reshape(-1, len(curves))
    ends = table.index.to_numpy()[[min(first + step, len(table)) - 1 for first in spans]]
    known = np.ma.masked_invalid(values)
    return Band(ends, *(np.ma.filled(part, np.nan) for part in (known.mean(1), known.min(1), known.max(1))))


def pen(place: int) -> dict[str, Any]:
    """The look of the n-th line; the first, the baseline, is grey."""
    if place == 0:
        return {"color": GREY, "dash": "solid"}
    return {"color": PALETTE[(place - 1) % len(PALETTE)], "dash": DASHES[(place - 1) // len(PALETTE) % len(DASHES)]}


def _subplots(titles: Sequence[str], height: int = 320, wide: int = WIDE, **more: Any) -> tuple[go.Figure, int]:
    columns = 2 if wide == WIDE and len(titles) == 4 else max(1, min(wide, len(titles)))
    rows = max(1, -(-len(titles) // columns))
    figure = make_subplots(rows, columns, subplot_titles=[escape(title) for title in titles], **more)
    figure.update_layout(layout(height=height * rows + 80))
    return figure, columns


def _finished(figure: go.Figure, title: str, below: str = "") -> go.Figure:
    made = ready_for_paper(figure, escape(title) + (f"<br><sub>{escape(below)}</sub>" if below else ""))
    legend = {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0}
    made.update_layout(legend=legend, margin={"t": 84, "b": 96}, title={"y": 1.0, "pad": {"t": 14}})
    made.update_xaxes(gridcolor=GRID, linecolor=GRID, zerolinecolor=GRID, automargin=True)
    made.update_yaxes(gridcolor=GRID, linecolor=GRID, zerolinecolor=GRID, automargin=True)
    return made


def over_rounds(panels: Sequence[Panel], title: str) -> go.Figure:
    """Curves with bands from the lowest seed to the highest."""
    figure, columns = _subplots([panel.title for panel in panels], horizontal_spacing=0.08)
    for place, panel in enumerate(panels):
        where: dict[str, Any] = {"row": place // columns + 1, "col": place % columns + 1}
        for number, (label, found) in enumerate(panel.lines.items()):
            look = pen(number)
            common = {"x": found.x, "legendgroup": label, "name": escape(label)}
            edge = {**common, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            figure.add_scatter(**edge, y=_short(found.high), **where)
            figure.add_scatter(
                **edge, y=_short(found.low), fill="tonexty", fillcolor=faded(look["color"], 0.15), **where
            )
            line = {**look, "width": 2}
            figure.add_scatter(**common, y=_short(found.mean), mode="lines", line=line, showlegend=place == 0, **where)
        figure.update_xaxes(title_text=panel.x, **where)
        figure.update_yaxes(title_text=escape(panel.y), **where)
    return _finished(figure, title)


def over_values(table: Table, panels: Mapping[str, Sequence[tuple[str, str]]], title: str) -> go.Figure:
    """A line per row over the values of an option; panels: title -> (value, column) in order."""
    figure, columns = _subplots(list(panels))
    for place, values in enumerate(panels.values()):
        where: dict[str, Any] = {"row": place // columns + 1, "col": place % columns + 1}
        for number, row in enumerate(table.rows):
            found = [table.cells[row, column].estimate for _, column in values]
            bars = [0 if np.isnan(one.half_width) else one.half_width for one in found]
            figure.add_scatter(
                x=[value for value, _ in values],
                y=_short([one.mean for one in found]),
                error_y={"type": "data", "array": bars, "thickness": 1},
                name=escape(row),
                legendgroup=row,
                showlegend=place == 0,
                line={**pen(number), "width": 2},
                **where,
            )
        figure.update_xaxes(type="category", **where)
    return _finished(figure, title)


def points(table: Table, title: str) -> go.Figure:
    """Our numbers with their intervals, the paper's as open diamonds, side by side per column."""
    rows, columns = table.filled()
    figure, wide = _subplots(columns, height=120 + 22 * len(rows), wide=2, horizontal_spacing=0.2)
    for place, column in enumerate(columns):
        where: dict[str, Any] = {"row": place // wide + 1, "col": place % wide + 1}
        cells = [table.cells[row, column] for row in rows if (row, column) in table.cells]
        names = [escape(cell.row) for cell in cells]
        found = [cell.estimate for cell in cells]
        bars = {"type": "data", "array": [0 if np.isnan(one.half_width) else one.half_width for one in found]}
        ours = {"x": _short([one.mean for one in found]), "y": names, "name": "ours", "error_x": bars}
        theirs = {"x": [cell.paper.value for cell in cells], "y": names, "name": "paper"}
        first = {"showlegend": place == 0, "mode": "markers"}
        figure.add_scatter(**ours, marker={"color": PALETTE[0], "size": 9}, legendgroup="ours", **first, **where)
        figure.add_scatter(
            **theirs,
            marker={"color": PALETTE[5], "size": 10, "symbol": "diamond-open"},
            legendgroup="paper",
            **first,
            **where,
        )
        figure.update_yaxes(autorange="reversed", **where)
    return _finished(figure, title)


def heatmaps(grid: Mapping[str, Mapping[str, pd.DataFrame]], title: str, seed: int) -> go.Figure:
    """F_ki (left) and accuracy after local training (right) of each method, a row of pictures per round.

    Rows of a map are models, its columns the clients whose data they are asked about, as in the papers.
    """
    rows = list(dict.fromkeys(row for by_row in grid.values() for row in by_row))
    what = {"forgetting": ("diverging", -1, "F"), "accuracy_local": ("green", 0, "accuracy")}
    titles = [f"{row}, {number}: {name}" for number in grid for _, _, name in what.values() for row in rows]
    wide = max(1, len(rows) * len(what))
    figure, _ = _subplots(titles, height=300, wide=wide, horizontal_spacing=0.04)
    for down, by_row in enumerate(grid.values(), start=1):
        across = 0
        for column, (scale, low, _) in what.items():
            for row in rows:
                across += 1
                if row not in by_row or by_row[row].empty:
                    continue
                inside = by_row[row][by_row[row]["data_in_cohort"]]
                table = inside.pivot(index="model", columns="data", values=column)
                names = [str(client) for client in table.index]
                cells = {"z": np.round(table.to_numpy(), 3), "x": [str(c) for c in table.columns], "y": names}
                colours = {"colorscale": SCALES[scale], "zmin": low, "zmax": 1, "showscale": False}
                figure.add_heatmap(**cells, **colours, row=down, col=across)
                figure.update_xaxes(type="category", row=down, col=across)
                figure.update_yaxes(type="category", autorange="reversed", row=down, col=across)
    figure.update_annotations(font_size=10)
    return _finished(figure, title, f"seed {seed}; rows: models, columns: data; forgotten is orange, gained is blue")


def stacked(shown: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str) -> go.Figure:
    """The label shares of a few clients as stacked bars; shown: title -> clients [k], shares [k, c]."""
    figure, columns = _subplots(list(shown))
    for place, (clients, shares) in enumerate(shown.values()):
        where: dict[str, Any] = {"row": place // columns + 1, "col": place % columns + 1}
        for label in range(shares.shape[1]):
            colour = f"hsl({int(360 * label / shares.shape[1])},55%,{50 if label % 2 else 65}%)"
            bar = {"x": [str(client) for client in clients], "y": np.round(shares[:, label], 4)}
            name = {"name": f"class {label}", "legendgroup": str(label), "showlegend": place == 0}
            figure.add_bar(**bar, **name, marker={"color": colour}, **where)
        figure.update_xaxes(title_text="client", type="category", **where)
    figure.update_layout(barmode="stack", bargap=0.15)
    return _finished(figure, title)


def _short(values: Any) -> np.ndarray:
    return np.round(np.asarray(values, dtype=float), 4)
