"""The figures with lines and bars, each a pure function of data; `maps` has those with cells."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedkeep.report.curves import Band, Metric
from fedkeep.report.flows import Classes
from fedkeep.report.style import FORGOTTEN, FORGOTTEN_LATER, LEARNED, REGAINED, Pen, faded, layout

UNITS = {"percent": " (%)", "points": " (points)", "count": " (examples)", "plain": ""}


def over_rounds(bands: Sequence[tuple[Pen, Band]], metric: Metric) -> go.Figure:
    """A metric over rounds: the mean of each series, and a band from its lowest seed to its highest."""
    scale = 100 if metric.unit in ("percent", "points") else 1
    figure = go.Figure()
    for pen, band in bands:
        if band.known:
            figure.add_traces(_with_band(pen, band, scale))
    figure.update_layout(
        layout(
            xaxis=_rounds([band for _, band in bands]),
            yaxis={"title": {"text": metric.title + UNITS[metric.unit]}},
            hovermode="x unified",
        )
    )
    return figure


def _with_band(pen: Pen, band: Band, scale: float) -> list[go.Scatter]:
    common = {"x": band.rounds, "legendgroup": pen.label, "name": escape(pen.label)}
    edge = {**common, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    shade = {"fill": "tonexty", "fillcolor": faded(pen.colour, 0.16)}
    form = ".1f" if scale == 100 else ".2f"
    mean = go.Scatter(
        **common,
        y=_short(scale * band.mean),
        mode="lines" if len(band.rounds) > 1 else "markers",
        line={"color": pen.colour, "dash": pen.dash, "width": 2.2},
        connectgaps=True,
        hovertemplate=f"%{{y:{form}}}<extra>{escape(pen.label)}</extra>",
    )
    if band.seeds < 2:
        return [mean]
    high, low = (go.Scatter(**edge, y=_short(scale * values), **more) for values, more in _edges(band, shade))
    return [high, low, mean]


def _edges(band: Band, shade: dict) -> tuple[tuple[np.ndarray, dict], tuple[np.ndarray, dict]]:
    return (band.high, {}), (band.low, shade)


def minority_lines(lines: Sequence[tuple[Pen, Band, Band]]) -> go.Figure:
    """Forgettable share of minority clients (solid) and of the others (dotted), per series."""
    figure = go.Figure()
    for pen, few, others in lines:
        for band, dash, width, who in ((few, "solid", 2.4, "minority"), (others, "dot", 1.8, "others")):
            name = f"{escape(pen.label)}, {who}"
            figure.add_scatter(
                x=band.rounds,
                y=_short(100 * band.mean),
                name=name,
                legendgroup=pen.label,
                mode="lines",
                connectgaps=True,
                line={"color": pen.colour, "dash": dash, "width": width},
                hovertemplate=f"%{{y:.1f}} %<extra>{name}</extra>",
            )
    figure.update_layout(
        layout(
            xaxis=_rounds([band for _, *both in lines for band in both]),
            yaxis={"title": {"text": "forgettable (% of a client's examples)"}, "rangemode": "tozero"},
            hovermode="x unified",
        )
    )
    return figure


def class_flows(found: Classes, highest: float | None = None) -> go.Figure:
    """Per class, examples a round: learned and regained upwards, forgotten downwards."""
    bars = (
        ("learned", found.learned, LEARNED),
        ("regained by aggregation", found.regained, REGAINED),
        ("forgotten by local training", -found.forgotten_local, FORGOTTEN),
        ("forgotten by aggregation", -found.forgotten_aggregation, FORGOTTEN_LATER),
    )
    figure = go.Figure()
    for name, values, colour in bars:
        figure.add_bar(
            x=[str(label) for label in found.labels.tolist()],
            y=_short(values),
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"class %{{x}}: %{{y:.2f}} {name}<extra></extra>",
        )
    extent = {} if highest is None else {"range": [-highest, highest]}
    figure.update_layout(
        layout(
            barmode="relative",
            bargap=0.25,
            height=260,
            xaxis={"type": "category", "title": {"text": "class"}, "showgrid": False, "nticks": 20},
            yaxis={"title": {"text": "examples a round"}, "zeroline": True, **extent},
        )
    )
    return figure


def _rounds(bands: Sequence[Band]) -> dict[str, Any]:
    """The axis of rounds, which are whole numbers however few there are."""
    few = max((len(band.rounds) for band in bands), default=0) <= 10
    return {"title": {"text": "round"}, "showgrid": False, **({"dtick": 1} if few else {})}


def _short(values: np.ndarray) -> np.ndarray:
    """Single precision, few decimals: half the bytes on the page."""
    return np.round(np.asarray(values, dtype=float), 4).astype(np.float32)
