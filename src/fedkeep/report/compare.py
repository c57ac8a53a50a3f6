"""Two series set side by side, seed by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedkeep.report.curves import METRICS, PerSeed, at_end, gain
from fedkeep.report.series import Report, Series, differences

ALIKE = 0.005  # half a point of accuracy: less is called alike


@dataclass(frozen=True)
class Comparison:
    """A metric of a series beside its baseline, over the last ten rounds that both have."""

    ours: float
    theirs: float
    paired: PerSeed  # ours - theirs per common seed; empty without common seeds

    @property
    def difference(self) -> float:
        return self.paired.mean if self.paired.known else self.ours - self.theirs

    @property
    def known(self) -> bool:
        return math.isfinite(self.difference)

    @property
    def agreed(self) -> bool:
        """Do all common seeds show a difference of the same sign?"""
        return self.paired.low > 0 or self.paired.high < 0

    @property
    def alike(self) -> bool:
        return abs(self.difference) < ALIKE

    @property
    def evidence(self) -> str:
        """How much the difference is worth, in a few words."""
        seeds = len(self.paired.by_seed)
        if seeds == 0:
            return "no seed in common"
        if seeds == 1:
            return "one seed"
        if self.agreed:
            return "in both seeds" if seeds == 2 else f"in each of {seeds} seeds"
        return f"the {seeds} seeds disagree: {_signed(self.paired.low)} to {_signed(self.paired.high)}"


def compare(series: Series, base: Series, column: str) -> Comparison:
    """Set a metric of a series beside that of another."""
    until = min(series.last_round, base.last_round)
    ours, theirs = at_end(series, column, until), at_end(base, column, until)
    return Comparison(ours.mean, theirs.mean, gain(series, base, column))


def caveat(series: Series, base: Series) -> str:
    """What else differs between two series, as a warning; empty where nothing does."""
    others = differences(series, base)
    return f" They differ in {', '.join(others)} too, so this is not the method alone." if others else ""


def helps(report: Report) -> Series | None:
    """The series that takes most off its baseline's forgetting without losing accuracy; None where there is none."""
    found = []
    for series in report.series:
        base = report.baseline_of(series)
        less, accuracy = compare(series, base, "forgetting"), compare(series, base, "accuracy")
        unsure = len(less.paired.by_seed) > 1 and not less.agreed
        if series is base or not less.known or less.difference > -ALIKE or unsure:
            continue
        if not accuracy.known or accuracy.difference > -2 * ALIKE:
            found.append(series)
    return min(
        found, key=lambda series: compare(series, report.baseline_of(series), "forgetting").difference, default=None
    )


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def numbers(report: Report) -> list[dict[str, object]]:
    """The summary as plain numbers, one dictionary per series."""
    rows = []
    for series in report.series:
        base = report.baseline_of(series)
        values = {name: at_end(series, name) for name in METRICS}
        row: dict[str, object] = {
            "series": series.label,
            "method": series.method,
            "seeds": [run.seed for run in series.runs],
            "rounds": series.last_round,
            "baseline": None if series is base else base.label,
        }
        for name, value in values.items():
            row[name] = {"mean": value.mean, "min": value.low, "max": value.high} if value.known else None
        if series is not base:
            for name in ("accuracy", "forgetting"):
                found = compare(series, base, name)
                row[f"{name}_gain"] = {
                    "mean": found.difference,
                    "min": found.paired.low,
                    "max": found.paired.high,
                    "seeds": len(found.paired.by_seed),
                }
        rows.append(row)
    return rows
