"""The figures that are maps: coloured cells, one per pair of things. Each is a pure function of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedkeep.report.holders import Forgettable, Holders
from fedkeep.report.matrices import Matrix
from fedkeep.report.style import EMPTY, INK, SCALES, layout

TICKS = 20  # names along one side
MARK = "★"
CELLS = {"forgetting": ("diverging", -1, "F"), "accuracy": ("green", 0, "accuracy")}


def heatmap(found: Matrix, what: str, majority: Mapping[int, int], colorbar: bool = False) -> go.Figure:
    """One round's local models (rows) on clients' data (columns), own data outlined.

    what: "forgetting" for F_ki on a scale fixed to [-1, 1], or "accuracy" after local training on [0, 1].
    """
    scale, low, name = CELLS[what]
    number = "F %{z:+.3f}" if what == "forgetting" else "accuracy %{z:.3f}"
    trace = cells(
        found.forgetting if what == "forgetting" else found.local,
        x=[client_name(k, majority) for k in found.data.tolist()],
        y=[client_name(i, majority) for i in found.models.tolist()],
        scale=scale,
        span=(low, 1),
        colorbar=name if colorbar else "",
        hovertemplate=f"model of %{{y}}<br>on data of %{{x}}<br><b>{number}</b><extra></extra>",
    )
    x, y = (axis(ticks(clients.tolist())) for clients in (found.data, found.models))
    return go.Figure(
        trace,
        layout(
            xaxis={**x, "title": {"text": "data of client", "standoff": 6}},
            yaxis={**y, "title": {"text": "model of client", "standoff": 6}, "autorange": "reversed"},
            plot_bgcolor=EMPTY,
            shapes=outlines(found),
            margin={"l": 44, "r": 8, "t": 8, "b": 44},
        ),
    )


def heatmap_sheet(rows: Sequence[tuple[str, Matrix, Mapping[int, int]]]) -> go.Figure:
    """Forgetting beside accuracy after local training, a row per series, with colour bars: a figure for a paper."""
    titles = [
        f"{escape(label)}: {what}" for label, _, _ in rows for what in ("forgetting F", "accuracy after training")
    ]
    gap = 0.25 / len(rows)
    sheet = make_subplots(len(rows), 2, subplot_titles=titles, horizontal_spacing=0.2, vertical_spacing=gap)
    sheet.update_layout(layout(height=80 + 380 * len(rows), plot_bgcolor=EMPTY, width=980))
    for row, (_, found, majority) in enumerate(rows, 1):
        for column, what in enumerate(("forgetting", "accuracy"), 1):
            single = heatmap(found, what, majority, colorbar=True)
            bar = {"x": (0.405, 1.005)[column - 1], "len": 0.8 / len(rows), "y": 1 - (row - 0.5) / len(rows)}
            sheet.add_trace(single.data[0].update(colorbar=bar), row=row, col=column)
            for side, update in (("xaxis", sheet.update_xaxes), ("yaxis", sheet.update_yaxes)):
                update(single.layout[side], row=row, col=column)
                update(tickfont={"size": 10}, row=row, col=column)
            for shape in single.layout.shapes:
                sheet.add_shape(shape, row=row, col=column)
    return sheet


def forgettable_map(found: Forgettable, highest: float | None = None, colorbar: bool = False) -> go.Figure:
    """Forgettable examples of each client (rows, minority on top) over rounds (columns)."""
    majority = {k: m for k, m in zip(found.clients.tolist(), found.majority.tolist(), strict=True) if m >= 0}
    trace = cells(
        found.counts,
        # not the bare number: a mark at place 2 of the axis would be taken for the round called "2"
        x=[f"round {number}" for number in found.rounds.tolist()],
        y=[client_name(k, majority) for k in found.clients.tolist()],
        scale="warm",
        span=(0, highest if highest is not None else max(1.0, float(np.nanmax(found.counts)))),
        colorbar="examples" if colorbar else "",
        hovertemplate="%{y}<br>up to %{x}: <b>%{z:.1f}</b> forgettable<extra></extra>",
    )
    top = int(found.minority.sum())
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": top - 0.5, "y1": top - 0.5}
    names = [starred(k, few) for k, few in zip(found.clients.tolist(), found.minority.tolist(), strict=True)]
    marks = ticks(names, most=34)
    return go.Figure(
        trace,
        layout(
            height=int(min(90 + 15 * len(names), 620)),
            plot_bgcolor=EMPTY,
            shapes=[{**line, "line": {"color": INK, "width": 1.5}}] if top else [],
            xaxis={**axis(ticks([str(r) for r in found.rounds.tolist()], most=9)), "title": {"text": "round"}},
            yaxis={**axis(marks), "autorange": "reversed", "title": {"text": "client"}},
            margin={"l": 48, "r": 8, "t": 8, "b": 44},
        ),
    )


def partition_map(held: Holders, colorbar: bool = False) -> go.Figure:
    """Who holds which label: the share of each client's training examples, similar clients side by side."""
    order = held.order
    clients, share = held.clients[order].tolist(), held.share[order]
    trace = cells(
        np.where(share > 0, share, np.nan).T,
        x=[f"client {k}" for k in clients],
        y=[f"label {label}" for label in held.labels.tolist()],
        scale="blue",
        span=(0, 1),
        colorbar="share" if colorbar else "",
        customdata=held.counts[order].T,
        xgap=1 if len(clients) <= 50 else 0,
        ygap=1 if len(held.labels) <= 50 else 0,
        hovertemplate="%{x}, %{y}<br><b>%{z:.0%}</b> of its examples (%{customdata})<extra></extra>",
    )
    names = [starred(k, few) for k, few in zip(clients, held.minority[order].tolist(), strict=True)]
    return go.Figure(
        trace,
        layout(
            height=int(min(110 + 20 * len(held.labels), 560)),
            plot_bgcolor=EMPTY,
            xaxis={**axis(ticks(names, most=25)), "title": {"text": "client"}},
            yaxis={**axis(ticks(held.labels.tolist())), "autorange": "reversed", "title": {"text": "label"}},
        ),
    )


def class_map(
    rows: Sequence[tuple[str, np.ndarray]], labels: np.ndarray, what: str, colorbar: bool = False
) -> go.Figure:
    """Forgetting or accuracy per class (columns) and series (rows), with numbers where there is room."""
    z = np.stack([values for _, values in rows])
    scale, low, name = CELLS[what]
    trace = cells(
        z,
        x=[f"class {label}" for label in labels.tolist()],
        y=[escape(label) for label, _ in rows],
        scale=scale,
        span=(low, 1),
        colorbar=name if colorbar else "",
        texttemplate="%{text}" if len(labels) <= TICKS else None,
        text=[[_whole(100 * value) for value in row] for row in z.tolist()],
        xgap=1,
        ygap=1,
        hovertemplate="%{y}, %{x}<br><b>%{z:.3f}</b><extra></extra>",
    )
    return go.Figure(
        trace,
        layout(
            height=100 + 34 * len(rows),
            plot_bgcolor=EMPTY,
            xaxis={**axis(ticks(labels.tolist())), "title": {"text": "class"}},
            yaxis={**axis({}), "autorange": "reversed"},
        ),
    )


def _whole(value: float) -> str:
    return f"{round(value)}".replace("-", "\N{MINUS SIGN}") if np.isfinite(value) else ""


def cells(
    z: np.ndarray, x: list[str], y: list[str], scale: str, span: tuple[float, float], colorbar: str, **more: Any
) -> go.Heatmap:
    """Coloured cells; `meta` names the colour scale, so that the page can swap it in the dark."""
    return go.Heatmap(
        z=np.round(z, 4).astype(np.float32),
        x=x,
        y=y,
        zmin=span[0],
        zmax=span[1],
        colorscale=SCALES[scale],
        meta=scale,
        showscale=bool(colorbar),
        colorbar={"title": {"text": colorbar}, "thickness": 12, "outlinewidth": 0},
        **more,
    )


def client_name(client: int, majority: Mapping[int, int]) -> str:
    """A client as the reader meets it.

    >>> client_name(3, {3: 7}), client_name(3, {})
    ('client 3, mostly label 7', 'client 3')
    """
    return f"client {client}, mostly label {majority[client]}" if client in majority else f"client {client}"


def starred(client: int, minority: bool) -> str:
    """A client's number, marked if it is a minority."""
    return f"{MARK} {client}" if minority else str(client)


def ticks(names: Sequence[Any], most: int = TICKS) -> dict[str, list]:
    """Names along an axis of categories, thinned out where they would not fit.

    >>> ticks([7, 8, 9], most=2)
    {'tickvals': [0, 2], 'ticktext': ['7', '9']}
    """
    step = max(1, -(-len(names) // most))
    places = list(range(0, len(names), step))
    return {"tickvals": places, "ticktext": [str(names[place]) for place in places]}


def axis(marks: dict[str, list]) -> dict[str, Any]:
    """An axis of categories without lines of its own."""
    return {"type": "category", "showgrid": False, "zeroline": False, "tickangle": 0, **marks}


def outlines(found: Matrix) -> list[dict[str, Any]]:
    """A frame around each model's own data, and a line where the clients outside the cohort begin."""
    own = [f"M{i - 0.5},{i - 0.5}H{i + 0.5}V{i + 0.5}H{i - 0.5}Z" for i in range(len(found.models))]
    shapes: list[dict[str, Any]] = [{"type": "path", "path": "".join(own), "line": {"color": INK, "width": 1.2}}]
    if len(found.data) > len(found.models):
        edge = len(found.models) - 0.5
        line = {"x0": edge, "x1": edge, "y0": -0.5, "y1": edge, "line": {"color": INK, "width": 2}}
        shapes.append({"type": "line", **line})
    return shapes
