"""Details for the summary: where knowledge is lost, which class, which clients, and what the numbers rest on."""

from __future__ import annotations

import math

import numpy as np

from fedkeep.experiment.summary import LAST
from fedkeep.report.compare import helps
from fedkeep.report.curves import at_end
from fedkeep.report.flows import classes, ledger, most_forgotten_data
from fedkeep.report.holders import forgettable, holders, majority_of
from fedkeep.report.phrases import percent, points
from fedkeep.report.series import Report, Series

SMALL = 0.02  # two points of accuracy: less is not worth naming a class or a client


def where(report: Report) -> str:
    """What local training forgets, what aggregation forgets and brings back."""
    lines = []
    for series in _base_and_best(report):
        found = ledger(series)
        if found is None:
            continue
        aggregation = found["forgotten_known"] + found["forgotten_new"]
        lines.append(
            f"Under `{series.label}`, of the {found['right_before']:.1f} examples that the round's clients have right "
            f"before a round, their own training forgets {found['forgotten_local']:.1f}, of which aggregation regains "
            f"{found['regained']:.1f}; aggregation in turn loses {aggregation:.1f} that the client's own model has "
            f"right, {found['forgotten_new']:.1f} of them just learned."
        )
    return "\n".join(lines)


def _base_and_best(report: Report) -> list[Series]:
    best = helps(report)
    return [report.baseline] if best is None else [report.baseline_of(best), best]


def which_class(report: Report) -> str:
    """The classes that are forgotten most and least."""
    lines = []
    for series in _base_and_best(report):
        found = classes(series)
        if found is None or np.isnan(found.forgetting).all():
            continue
        if np.nanmax(found.forgetting) < SMALL:
            lines.append(f"Under `{series.label}`, no class is forgotten by more than {points(SMALL)}.")
            continue
        worst, least = int(np.nanargmax(found.forgetting)), int(np.nanargmin(found.forgetting))
        text = (
            f"Under `{series.label}`, class {found.labels[worst]} is forgotten most: local models lose "
            f"{points(found.forgetting[worst])} on it on average"
        )
        if worst != least:
            text += f"; class {found.labels[least]} least ({points(found.forgetting[least])})"
        lines.append(text + ".")
    return "\n".join(lines)


def which_clients(report: Report) -> str:
    """Whose data is forgotten most, and how minority clients fare."""
    lines = []
    for series in _base_and_best(report):
        run = series.complete[0]
        found = most_forgotten_data(run)
        if found is None:
            continue
        client, lost = found
        label = majority_of(run).get(client)
        kind = "" if label is None else f", mostly label {label},"
        where = f"Under `{series.label}` (seed {run.seed}), "
        if lost < SMALL:
            lines.append(f"{where}no client's data is forgotten by more than {points(SMALL)}.")
        else:
            lines.append(
                f"{where}the data of client {client}{kind} is forgotten most: the models of others lose {points(lost)} "
                "on it."
            )
        if share := minority_share(series):
            lines[-1] += (
                f" Of a minority client's training examples {percent(share[0])} are forgettable, "
                f"of the others' {percent(share[1])}."
            )
    return "\n".join(lines)


def minority_share(series: Series) -> tuple[float, float] | None:
    """Share of forgettable examples of minority clients and of the others, second half of the runs, mean over seeds."""
    found = [(f.share, f.minority) for run in series.complete if (f := forgettable(run)) is not None]
    means = [(_mean(share[few]), _mean(share[~few])) for share, few in found if few.any()]
    known = [pair for pair in means if all(map(math.isfinite, pair))]
    return (float(np.mean([p[0] for p in known])), float(np.mean([p[1] for p in known]))) if known else None


def _mean(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else math.nan


def how_sure(report: Report) -> str:
    """What the numbers rest on."""
    seeds = sorted({len(series.complete) for series in report.series})
    last = min(LAST, report.baseline.last_round)
    text = f"Numbers are means of the last {last} rounds"
    if seeds == [1]:
        text += ", from one seed: a difference of a few points may be chance; repeat with other seeds."
    else:
        many = str(seeds[-1]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        text += f" and of {many} seeds; bands in the pictures reach from the lowest seed to the highest."
    run = report.baseline.runs[0]
    held = holders(run)
    if held is None or not at_end(report.baseline, "forgetting").known:
        return text
    judged = np.where(held.held_out > 0, held.held_out, held.sizes)
    text += f" Forgetting is judged on {held.judged_on()}, {np.median(judged):.0f} examples in the median."
    if np.median(judged) < 20:
        text += f" With so few, one example moves one client's accuracy by {points(1 / np.median(judged))}."
    return text
