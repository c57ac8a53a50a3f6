"""The summary in words with numbers: who forgets what, which method helps, by how much, and how sure that is.

Method names stand in `backticks`; the page and the terminal each show them in their own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedkeep.experiment.summary import LAST
from fedkeep.report.compare import Comparison, caveat, compare, helps
from fedkeep.report.curves import PerSeed, at_end
from fedkeep.report.flows import classes, ledger, most_forgotten_data
from fedkeep.report.holders import forgettable, holders, majority_of
from fedkeep.report.load import HOW_TO_RECORD
from fedkeep.report.series import Report, Series

SMALL = 0.02  # two points of accuracy: less is not worth naming a class or a client


@dataclass(frozen=True)
class Paragraph:
    """A few sentences under a heading."""

    title: str
    text: str


@dataclass(frozen=True)
class Summary:
    """The report in words: one sentence that says it all, then the details."""

    lead: str
    paragraphs: tuple[Paragraph, ...]


def summarise(report: Report) -> Summary:
    """The summary of a report."""
    found = [
        Paragraph("What is forgotten", _what(report)),
        Paragraph("Which method helps", _methods(report)),
        Paragraph("Where it is lost", _where(report)),
        Paragraph("Which class", _which_class(report)),
        Paragraph("Which clients", _which_clients(report)),
        Paragraph("How sure this is", _sure(report)),
    ]
    return Summary(_lead(report), tuple(paragraph for paragraph in found if paragraph.text))


def percent(value: float) -> str:
    """A share as a percentage.

    >>> percent(0.8825)
    '88.2 %'
    """
    return f"{100 * value:.1f} %" if math.isfinite(value) else "unknown"


def points(value: float) -> str:
    """A difference of accuracies in percentage points.

    >>> points(0.3), points(0.01), points(-0.004)
    ('30.0 points', '1.0 point', '\N{MINUS SIGN}0.4 points')
    """
    number = f"{100 * value:.1f}".replace("-", "\N{MINUS SIGN}")
    return f"{number} point" if number == "1.0" else f"{number} points"


def spanned(number: PerSeed, write: Callable[[float], str]) -> str:
    """A number with its range over the seeds.

    >>> spanned(PerSeed({0: 0.25, 1: 0.75}), points)
    '50.0 points (25.0 to 75.0 points over 2 seeds)'
    """
    seeds = len(number.by_seed)
    if seeds < 2:
        return write(number.mean)
    low = write(number.low).partition(" ")[0]
    return f"{write(number.mean)} ({low} to {write(number.high)} over {seeds} seeds)"


def _lead(report: Report) -> str:
    base, best = report.baseline, helps(report)
    forgets = at_end(base, "forgetting")
    if not forgets.known:
        return f"{_accuracy_lead(report)} Forgetting was {HOW_TO_RECORD}."
    if best is not None:
        base = report.baseline_of(best)
        less, accuracy = compare(best, base, "forgetting"), compare(best, base, "accuracy")
        end = f", and test accuracy is {_accuracy_change(accuracy)}" if accuracy.known else ""
        return (
            f"`{best.label}` forgets least: a round of local training costs {points(less.ours)} of accuracy on other "
            f"clients' data, against {points(less.theirs)} under `{base.label}`{end}."
        )
    if len(report.series) == 1:
        return (
            f"Under `{base.label}`, a round of local training costs {points(forgets.mean)} of accuracy on other "
            f"clients' data; the global model ends at {percent(at_end(base, 'accuracy').mean)} test accuracy."
        )
    return (
        f"None of the methods clearly forgets less than `{base.label}` without losing accuracy: there, a round of "
        f"local training costs {points(forgets.mean)} of accuracy on other clients' data."
    )


def _accuracy_lead(report: Report) -> str:
    known = [series for series in report.series if at_end(series, "accuracy").known]
    if not known:
        return "Nothing was judged yet."
    best = max(known, key=lambda series: at_end(series, "accuracy").mean)
    word = "is most accurate" if len(known) > 1 else "ends"
    return f"`{best.label}` {word} at {percent(at_end(best, 'accuracy').mean)} test accuracy."


def _accuracy_change(found: Comparison) -> str:
    if found.alike:
        return f"about the same ({percent(found.ours)} against {percent(found.theirs)})"
    word = "higher" if found.difference > 0 else "lower"
    return f"{points(abs(found.difference))} {word} ({percent(found.ours)} against {percent(found.theirs)})"


def _what(report: Report) -> str:
    base = report.baseline
    inside, outside = at_end(base, "forgetting"), at_end(base, "forgetting_outside")
    if not inside.known:
        return ""
    text = (
        f"A client that trains on its own data alone unlearns what the others know. Under `{base.label}`, one round of "
        f"local training makes a client's model {spanned(inside, points)} worse on the data of the other clients of "
        "that round than the global model it started from."
    )
    if outside.known:
        text += f" On clients that took no part in the round it is {points(outside.mean)}."
    return text


def _methods(report: Report) -> str:
    others = [series for series in report.series if series is not report.baseline_of(series)]
    if not others:
        return ""
    seeds = {len(compare(series, report.baseline_of(series), "accuracy").paired.by_seed) for series in others}
    first = f"Against `{report.baseline.label}`"
    if min(seeds) > 1:
        first += ", seed by seed; a difference holds in every seed unless said otherwise"
    return "\n".join([f"{first}:", *(_method(report, series) for series in others)])


def _method(report: Report, series: Series) -> str:
    base = report.baseline_of(series)
    less, accuracy = compare(series, base, "forgetting"), compare(series, base, "accuracy")
    parts = []
    if less.known:
        parts.append(f"forgets {points(less.ours)}, {_change(less, base, report, share=True)}")
    if accuracy.known:
        parts.append(f"reaches {percent(accuracy.ours)} test accuracy, {_change(accuracy, base, report)}")
    if not parts:
        return f"`{series.label}`: neither accuracy nor forgetting is recorded."
    text = f"`{series.label}` {', and '.join(parts)}."
    if less.known and accuracy.known and less.difference < 0 and accuracy.difference < -0.02:
        text += " It also knows less, and a model that knows less has less to forget."
    if series.last_round != base.last_round:
        text += f" Both are taken at round {min(series.last_round, base.last_round)}, the last that both have."
    return text + caveat(series, base)


def _change(found: Comparison, base: Series, report: Report, share: bool = False) -> str:
    against = "" if base is report.baseline else f" than `{base.label}`"
    remarks = [] if found.agreed and len(found.paired.by_seed) > 1 else [found.evidence]
    if found.alike:
        return f"about the same{against and ' as' + against[5:]}{_in_brackets(remarks)}"
    word = "more" if found.difference > 0 else "less"
    if share and found.theirs > SMALL:
        ratio = abs(found.difference) / found.theirs
        remarks.insert(0, f"{'more than 99' if 0.99 < ratio < 1 else f'{100 * ratio:.0f}'} % {word}")
    return f"{points(abs(found.difference))} {word}{against}{_in_brackets(remarks)}"


def _in_brackets(remarks: list[str]) -> str:
    return f" ({', '.join(remarks)})" if remarks else ""


def _where(report: Report) -> str:
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


def _which_class(report: Report) -> str:
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


def _which_clients(report: Report) -> str:
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


def _sure(report: Report) -> str:
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
