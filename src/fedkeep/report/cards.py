"""The report's figures as data for the page: an id, and one figure per choice of its switch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedkeep.report.curves import FORGETS, METRICS, WELL, band
from fedkeep.report.figures import class_flows, minority_lines, over_rounds
from fedkeep.report.flows import Classes, class_rows, known_classes
from fedkeep.report.holders import Forgettable, Holders, forgettable, holders, majority_of, minority_bands
from fedkeep.report.maps import class_map, forgettable_map, heatmap, partition_map
from fedkeep.report.matrices import matrix, shown_rounds
from fedkeep.report.series import Report, Series
from fedkeep.report.style import Pen, pens

Variant = dict[str, Any]
"""label: of the switch; figure: data and layout; text: what it shows."""

MOST_PARTITIONS = 12
CLASS_MAPS = (
    ("forgetting", "Forgotten by local models (points)"),
    ("accuracy", "Accuracy of the global model (%)"),
)


def variant(label: str, figure: go.Figure, text: str = "") -> Variant:
    """One choice of a figure's switch."""
    return {"label": label, "figure": json.loads(str(figure.to_json())), "text": text}


def curves(report: Report, names: Sequence[str]) -> list[Variant]:
    """Metrics over rounds, those that were recorded in any series."""
    drawn = pens(report)
    found = []
    for name in names:
        metric, bands = METRICS[name], [(drawn[series], band(series, name)) for series in report.series]
        if any(one.known for _, one in bands):
            missing = [pen.label for pen, one in bands if not one.known]
            text = metric.meaning[0].upper() + metric.meaning[1:] + "."
            if missing:
                text += f" Not recorded: {', '.join(missing)}."
            found.append(variant(metric.title, over_rounds(bands, metric), text))
    return found


def heatmaps(report: Report) -> dict[str, list[Variant]]:
    """Two maps per series at the last round that is shown; the page's script moves them with the slider."""
    rounds = shown_rounds(report.runs)
    found = {}
    for number, series in enumerate(report.series):
        run = next((run for run in series.runs if run.pairs is not None), None)
        first = (
            matrix(run, int(np.asarray(run.pairs["round"]).max()))
            if run is not None and run.pairs is not None
            else None
        )
        if run is None or first is None or not rounds:
            continue
        for what in ("forgetting", "accuracy"):
            made = heatmap(first, what, majority_of(run))
            made.update_layout(height=300)
            found[f"heat-{what}-{number}"] = [variant("", made)]
    return found


def clients(report: Report) -> dict[str, list[Variant]]:
    """Forgettable examples: minority against the others, and a map of all clients per series."""
    drawn = pens(report)
    lines = [(drawn[series], *bands) for series in report.series if (bands := minority_bands(series))]
    found = {"minority": [variant("", minority_lines(lines))]} if lines else {}
    maps = {number: first_forgettable(series) for number, series in enumerate(report.series)}
    known = {number: one for number, one in maps.items() if one is not None}
    highest = max((float(np.nanmax(one.counts)) for one in known.values()), default=0.0)
    for number, one in known.items():
        found[f"forgettable-{number}"] = [variant("", forgettable_map(one, max(highest, 1.0)))]
    return found


def first_forgettable(series: Series) -> Forgettable | None:
    """Forgettable examples of the first seed that recorded them."""
    return next((found for run in series.complete if (found := forgettable(run)) is not None), None)


def partitions(report: Report) -> list[tuple[str, Holders]]:
    """The distinct partitions, by the seed that made them."""
    found: dict[bytes, tuple[str, Holders]] = {}
    several = len({str(run.options.get("partition")) for run in report.runs}) > 1
    for run in sorted(report.runs, key=lambda run: run.seed):
        held = holders(run)
        if held is not None:
            name = f"seed {run.seed}" + (f", {run.options.get('partition')}" if several else "")
            found.setdefault(held.counts.tobytes(), (name, held))
    return list(found.values())


def partition_variants(found: Sequence[tuple[str, Holders]]) -> list[Variant]:
    """Who holds which label, one map per partition."""
    return [variant(name, partition_map(held), held.skew().describe() + ".") for name, held in found[:MOST_PARTITIONS]]


def by_class(report: Report) -> dict[str, list[Variant]]:
    """Per class: forgetting and accuracy of all series, and what each series learns, forgets and regains."""
    known = known_classes(report.series)
    if not known:
        return {}
    maps = []
    for what, title in CLASS_MAPS:
        labels, rows = class_rows(known, what)
        if any(np.isfinite(values).any() for _, values in rows):
            maps.append(variant(title, class_map(rows, labels, what)))
    highest = 1.08 * max(map(_reach, known.values()))
    flows = {
        f"flows-{number}": [variant("", class_flows(known[series], highest))]
        for number, series in enumerate(report.series)
        if series in known
    }
    return {"classes": maps, **flows}


def _reach(found: Classes) -> float:
    up = np.nan_to_num(found.learned) + np.nan_to_num(found.regained)
    down = np.nan_to_num(found.forgotten_local) + np.nan_to_num(found.forgotten_aggregation)
    return float(max(up.max(), down.max(), 0.01))


def all_cards(report: Report, found: Sequence[tuple[str, Holders]]) -> dict[str, list[Variant]]:
    """Every figure of the page by its id."""
    cards = {
        "well": curves(report, WELL),
        "forgets": curves(report, FORGETS),
        **heatmaps(report),
        **clients(report),
        "partition": partition_variants(found),
        **by_class(report),
    }
    return {name: variants for name, variants in cards.items() if variants}


def pen_list(report: Report) -> list[Pen]:
    """The pens in the order of the series."""
    drawn = pens(report)
    return [drawn[series] for series in report.series]
