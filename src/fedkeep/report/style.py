"""One look for all figures: colours that colour-blind readers tell apart, the same colour for a method everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from fedkeep.report.series import Report, Series

# Okabe and Ito 2008, "Color Universal Design". The baseline is grey; yellow is left out, it is lost on white.
GREY = "#7a7f87"
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
DASHES = ("solid", "dash", "dot", "dashdot")

FORGOTTEN, LEARNED, REGAINED = "#D55E00", "#0072B2", "#56B4E9"
FORGOTTEN_LATER = "#E69F00"

# Diverging: blue is gained, white is unchanged, red is forgotten. The page has twins of these for the dark.
SCALES = {
    "diverging": [[0, "#00568a"], [0.25, "#5b9ec9"], [0.5, "#f7f7f7"], [0.75, "#ea9a61"], [1, "#b34a00"]],
    "green": [[0, "#f7f7f7"], [0.5, "#6db7a0"], [1, "#005c44"]],
    "warm": [[0, "#f7f7f7"], [0.5, "#ea9a61"], [1, "#b34a00"]],
    "blue": [[0, "#dce9f3"], [0.5, "#4a94c4"], [1, "#003f63"]],
}
DARK_SCALES = {
    "diverging": [[0, "#6cc0f5"], [0.25, "#2f6f99"], [0.5, "#1b1e23"], [0.75, "#9c4f17"], [1, "#ff9a4d"]],
    "green": [[0, "#1b1e23"], [0.5, "#1c7058"], [1, "#63e0b4"]],
    "warm": [[0, "#1b1e23"], [0.5, "#9c4f17"], [1, "#ff9a4d"]],
    "blue": [[0, "#1f2f3d"], [0.5, "#2f6f99"], [1, "#8fd0fb"]],
}

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, GRID, EMPTY = "#2b2f36", "#e3e5e8", "#e9eaed"


@dataclass(frozen=True)
class Pen:
    """How a series is drawn."""

    label: str
    colour: str
    dash: str = "solid"


def pens(report: Report) -> dict[Series, Pen]:
    """A pen per series, the baseline in grey; after six colours the dashes change."""
    found, used = {}, 0
    for series in report.series:
        if series is report.baseline and len(report.series) > 1:
            found[series] = Pen(series.label, GREY)
            continue
        found[series] = Pen(series.label, PALETTE[used % len(PALETTE)], DASHES[used // len(PALETTE) % len(DASHES)])
        used += 1
    return found


def faded(colour: str, opacity: float) -> str:
    """A colour, partly transparent.

    >>> faded("#0072B2", 0.2)
    'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def layout(**more: Any) -> go.Layout:
    """The layout that all figures share."""
    axis = {"gridcolor": GRID, "linecolor": GRID, "zerolinecolor": GRID, "ticks": "", "automargin": True}
    common: dict[str, Any] = {
        "template": None,
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 48, "r": 12, "t": 12, "b": 44},
        "height": 340,
        "showlegend": False,
        "hoverlabel": {"font": {"family": FONT, "size": 12}},
        "xaxis": axis,
        "yaxis": axis,
    }
    return go.Layout({**common, **{k: {**common[k], **v} if k in ("xaxis", "yaxis") else v for k, v in more.items()}})


def ready_for_paper(figure: go.Figure, title: str = "") -> go.Figure:
    """A figure that stands alone: white ground, a legend where there are several lines, room for a title."""
    made = go.Figure(figure)
    traces: Any = made.data
    named = {trace.name for trace in traces if getattr(trace, "showlegend", None) is not False and trace.name}
    several = len(named) > 1
    top = 16 + 30 * bool(title) + 36 * several
    made.update_layout(
        paper_bgcolor="white",
        height=(made.layout.height or 340) + top,
        showlegend=several,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"l": 64, "r": 24, "t": max(top, 32), "b": 56},
        title={
            "text": title,
            "x": 0,
            "xref": "paper",
            "font": {"size": 14},
            "yref": "container",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 10},
        },
    )
    return made
