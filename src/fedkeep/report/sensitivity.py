"""Accuracy against a swept value, for each method: how much a method depends on its settings and on the problem."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedkeep.calls import format_value
from fedkeep.experiment.compare import Comparison
from fedkeep.report.style import DASHES, FONT, GREY, GRID, INK, PALETTE

WIDE = 10  # values this far apart, largest to smallest, are shown on a logarithmic axis


def sensitivity_figure(comparison: Comparison) -> go.Figure:
    """One panel per swept option, one line per method, with 95 % intervals over the seeds.

    Other tuned options stand at their best on validation data; each combination of other conditions has a dash of its
    own. Table 1 (learning rate) and Figure 6 (heterogeneity, local epochs, cohort) of the WSM paper are of this kind.
    """
    table = comparison.sensitivity()
    options = list(comparison.swept)
    figure = make_subplots(rows=1, cols=max(1, len(options)), shared_yaxes=True, horizontal_spacing=0.04)
    methods = list(dict.fromkeys(arm.label for arm in comparison.arms))
    for column, option in enumerate(options, 1):
        panel = table[table["option"] == option]
        places = list(dict.fromkeys(panel["at"]))
        for (number, method), (place, at) in product(enumerate(methods), enumerate(places)):
            line = panel.loc[(panel["method"] == method) & (panel["at"] == at)]
            if len(line):
                pen = {"color": _colour(number, len(methods)), "dash": DASHES[place % len(DASHES)]}
                figure.add_trace(_line(line, method, at, pen, first=column == 1), row=1, col=column)
        axis = {**_axis(panel["value"].tolist()), "title": option, "gridcolor": GRID, "linecolor": GRID}
        figure.update_xaxes(axis, row=1, col=column)
    margin = {"l": 64, "r": 24, "t": 48, "b": 56}
    title = {"text": f"Test accuracy against {', '.join(options)}", "font": {"size": 14}}
    figure.update_layout(font={"family": FONT, "size": 12, "color": INK}, plot_bgcolor="white", margin=margin)
    figure.update_layout(height=420, title=title if options else None, hoverlabel={"font": {"family": FONT}})
    figure.update_yaxes(tickformat=".0%", gridcolor=GRID, zerolinecolor=GRID, range=_range(table))
    figure.update_yaxes(title="test accuracy", row=1, col=1)
    return figure


def _range(table: pd.DataFrame) -> list[float] | None:
    """Room for all intervals, as far as accuracies go."""
    ends = table[["final", "final_low", "final_high"]].to_numpy(dtype=float)
    ends = ends[~np.isnan(ends)]
    return [max(0.0, ends.min() - 0.02), min(1.0, ends.max() + 0.02)] if len(ends) else None


def _colour(place: int, count: int) -> str:
    """The first method is grey, as in the report."""
    return GREY if place == 0 and count > 1 else PALETTE[(place - (count > 1)) % len(PALETTE)]


def _line(line: pd.DataFrame, method: str, at: str, pen: dict[str, str], first: bool) -> go.Scatter:
    known = line["final_high"].notna()
    name = f"{method}, {at}" if at else method
    return go.Scatter(
        x=_values(line["value"].tolist()),
        y=line["final"].tolist(),
        error_y={
            "type": "data",
            "array": (line["final_high"] - line["final"]).where(known, 0).tolist(),
            "thickness": 1,
            "width": 3,
        },
        mode="lines+markers",
        name=name,
        legendgroup=name,
        showlegend=first or bool(at),
        line=pen,
        customdata=[[chosen or "as given", seeds] for chosen, seeds in zip(line["chosen"], line["seeds"], strict=True)],
        hovertemplate="%{y:.2%} at %{x}<br>%{customdata[0]}, %{customdata[1]} seeds<extra>%{fullData.name}</extra>",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _values(values: list[Any]) -> list[Any]:
    """Numbers as they are; anything else as text."""
    return values if all(_is_number(value) for value in values) else [format_value(value) for value in values]


def _axis(values: list[Any]) -> dict[str, Any]:
    numbers = sorted({value for value in values if _is_number(value)})
    if not numbers or len(numbers) < len(set(map(format_value, values))):
        return {"type": "category"}
    logarithmic = numbers[0] > 0 and numbers[-1] / numbers[0] >= WIDE
    ticks = {"tickvals": numbers, "ticktext": [format_value(value) for value in numbers]}
    return {"type": "log" if logarithmic else "linear", **ticks}
