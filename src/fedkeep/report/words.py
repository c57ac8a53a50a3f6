"""The summary in words with numbers: who forgets what, which method helps, by how much, and how sure that is.

Method names stand in `backticks`; the page and the terminal each show them in their own way.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedkeep.report.compare import ALIKE, Comparison, caveat, compare, helps
from fedkeep.report.curves import PerSeed, at_end
from fedkeep.report.findings import SMALL, how_sure, where, which_class, which_clients
from fedkeep.report.load import HOW_TO_PROBE, how_to_record_pairs
from fedkeep.report.phrases import costs, percent, points, spanned
from fedkeep.report.series import Report, Series


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
        Paragraph("Where it is lost", where(report)),
        Paragraph("Which class", which_class(report)),
        Paragraph("Which clients", which_clients(report)),
        Paragraph("How sure this is", how_sure(report)),
    ]
    return Summary(_lead(report), tuple(paragraph for paragraph in found if paragraph.text))


def _lead(report: Report) -> str:
    base, best = report.baseline, helps(report)
    forgets = at_end(base, "forgetting")
    if not forgets.known:
        how = how_to_record_pairs(report.runs)
        return f"{_accuracy_lead(report)} Forgetting{' between clients' * (how == HOW_TO_PROBE)} was {how}."
    if best is not None:
        base = report.baseline_of(best)
        less, accuracy = compare(best, base, "forgetting"), compare(best, base, "accuracy")
        end = f", and test accuracy is {_accuracy_change(accuracy)}" if accuracy.known else ""
        return (
            f"`{best.label}` {_praise(report, best)}: a round of local training "
            f"{costs(less.ours)} on other clients' data, against {points(less.theirs)} under `{base.label}`{end}."
        )
    if len(report.series) == 1:
        return (
            f"Under `{base.label}`, a round of local training {costs(forgets.mean)} on other clients' data; the "
            f"global model ends at {percent(at_end(base, 'accuracy').mean)} test accuracy."
        )
    return (
        f"None of the methods clearly forgets less than `{base.label}` without losing accuracy: there, a round of "
        f"local training {costs(forgets.mean)} on other clients' data."
    )


def _praise(report: Report, best: Series) -> str:
    """What is true of the method that helps most."""
    if _settings(report) > 1:
        return "helps most"
    known = [series for series in report.series if at_end(series, "forgetting").known]
    least = min(known, key=lambda series: at_end(series, "forgetting").mean)
    return "forgets least" if least is best else "forgets least of those that lose no accuracy"


def _accuracy_lead(report: Report) -> str:
    for metric, words in (("accuracy", "test accuracy"), ("validation_accuracy", "accuracy on what clients hold out")):
        if known := [series for series in report.series if at_end(series, metric).known]:
            best = max(known, key=lambda series: at_end(series, metric).mean)
            word = "is most accurate" if len(known) > 1 else "ends"
            return f"`{best.label}` {word} at {percent(at_end(best, metric).mean)} {words}."
    return "Nothing was judged yet."


def _accuracy_change(found: Comparison) -> str:
    if found.alike:
        return f"about the same ({percent(found.ours)} against {percent(found.theirs)})"
    word = "higher" if found.difference > 0 else "lower"
    return f"{points(abs(found.difference))} {word} ({percent(found.ours)} against {percent(found.theirs)})"


def _settings(report: Report) -> int:
    """How many settings the series were run under, beside the method."""
    return len({str(series.settings) for series in report.series})


def _baselines(report: Report) -> list[Series]:
    return list(dict.fromkeys(report.baseline_of(series) for series in report.series))


def _what(report: Report) -> str:
    base, *others = _baselines(report)
    inside, outside = at_end(base, "forgetting"), at_end(base, "forgetting_outside")
    if not inside.known:
        return ""
    word = "better" if inside.mean < -ALIKE else "worse"
    size = PerSeed({seed: abs(value) for seed, value in inside.by_seed.items()}) if word == "better" else inside
    text = (
        "A client that trains on its own data alone can unlearn what the others know. "
        f"Under `{base.label}`, one round of local training makes a client's model {spanned(size, points)} {word} on "
        "the data of the other clients of that round than the global model it started from."
    )
    if outside.known:
        text += f" On clients that took no part in the round F is {points(outside.mean)}."
    for other in others:
        if (forgets := at_end(other, "forgetting")).known:
            text += f" Under `{other.label}`, F is {points(forgets.mean)}."
    return text


def _methods(report: Report) -> str:
    lines = []
    for base in _baselines(report):
        others = [series for series in report.series if series is not base and report.baseline_of(series) is base]
        seeds = [len(compare(series, base, "accuracy").paired.by_seed) for series in others]
        sure = (
            ", seed by seed; a difference holds in every seed unless said otherwise"
            if min(seeds, default=0) > 1
            else ""
        )
        lines += [f"Against `{base.label}`{sure}:"] if others else []
        lines += [_method(series, base) for series in others]
    return "\n".join(lines)


def _method(series: Series, base: Series) -> str:
    less, accuracy = compare(series, base, "forgetting"), compare(series, base, "accuracy")
    parts = []
    if less.known:
        gains = less.ours < -ALIKE
        what = f"gains {points(-less.ours)} instead of forgetting" if gains else f"forgets {points(less.ours)}"
        parts.append(f"{what}, {_change(less, share=not gains)}")
    if accuracy.known:
        parts.append(f"reaches {percent(accuracy.ours)} test accuracy, {_change(accuracy)}")
    if not parts:
        return f"`{series.label}`: neither accuracy nor forgetting is recorded."
    text = f"`{series.label}` {', and '.join(parts)}."
    if less.known and accuracy.known and less.difference < 0 and accuracy.difference < -0.02:
        text += " It also knows less, and a model that knows less has less to forget."
    if series.last_round != base.last_round:
        text += f" Both are taken at round {min(series.last_round, base.last_round)}, the last that both have."
    return text + caveat(series, base)


def _change(found: Comparison, share: bool = False) -> str:
    seeds = len(found.paired.by_seed)
    if found.alike:
        wide = max(abs(found.paired.low), abs(found.paired.high)) >= ALIKE
        return "about the same" + (f" ({found.evidence})" if seeds > 1 and wide else "")
    word = "more" if found.difference > 0 else "less"
    remarks = []
    if share and found.theirs > SMALL:
        ratio = abs(found.difference) / found.theirs
        remarks.append(f"{'more than 99' if 0.99 < ratio < 1 else f'{100 * ratio:.0f}'} % {word}")
    if seeds < 2 or not found.agreed:
        remarks.append(found.evidence)
    return f"{points(abs(found.difference))} {word}" + (f" ({', '.join(remarks)})" if remarks else "")
