"""Runs of the same method and options, different seeds: one series, drawn with a band."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedkeep.experiment.config import Config
from fedkeep.report.load import RunData, load_runs

# Options that do not change what is trained: runs that differ in these only are still the same experiment.
NEUTRAL = {"seed", "forgetting", "judge_every", "target", "data_root", "version"} | {
    field.name for field in fields(Config) if field.metadata.get("speed")
}


@dataclass(frozen=True, eq=False)
class Series:
    """One method under one set of options, over its seeds."""

    label: str
    runs: tuple[RunData, ...]  # by seed

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def settings(self) -> dict[str, Any]:
        """The options beside the method that the result depends on."""
        return {k: v for k, v in self.runs[0].options.items() if k not in NEUTRAL and k != "method"}

    @property
    def complete(self) -> tuple[RunData, ...]:
        """The runs that reached the series' last round: only these count in averages at the end."""
        last = max(run.last_round for run in self.runs)
        return tuple(run for run in self.runs if run.last_round == last)

    @property
    def last_round(self) -> int:
        return max(run.last_round for run in self.runs)


@dataclass(frozen=True, eq=False)
class Report:
    """All that is shown: the series in order, and what the reader should know."""

    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> Series:
        """What the others are set beside: plain FedAvg, or else the first."""
        return next((series for series in self.series if series.method == "fedavg"), self.series[0])

    def baseline_of(self, series: Series) -> Series:
        """The baseline under the same options as `series` where there is one."""
        alike = [other for other in self.series if other.settings == series.settings]
        return Report(tuple(alike)).baseline if len(alike) > 1 else self.baseline

    @property
    def runs(self) -> tuple[RunData, ...]:
        return tuple(run for series in self.series for run in series.runs)


def load_report(paths: Iterable[str | Path], matrix_rounds: Sequence[int] | None = None) -> Report:
    """Read run directories and group them into series."""
    runs, notes = load_runs(paths, matrix_rounds)
    return group(runs, notes)


def group(runs: Sequence[RunData], notes: Sequence[str] = ()) -> Report:
    """Group runs into series."""
    differing = _differing(runs)
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(_label(run, differing), []).append(run)
    more = list(notes)
    series = [Series(label, _one_per_seed(label, members, more)) for label, members in groups.items()]
    for one in series:
        for run in one.runs:
            if run not in one.complete:
                more.append(
                    f"{one.label}, seed {run.seed}: has {run.last_round} rounds, others {one.last_round}; "
                    "it is drawn, and left out of the averages at the end"
                )
    return Report(_in_order(series), tuple(more))


def _in_order(series: Sequence[Series]) -> tuple[Series, ...]:
    """Series under the same options side by side, their baseline first; else as they come."""
    report = Report(tuple(series))
    settings = [str(one.settings) for one in (report.baseline, *series)]
    return tuple(
        sorted(series, key=lambda one: (settings.index(str(one.settings)), one is not report.baseline_of(one)))
    )


def differences(one: Series, other: Series) -> list[str]:
    """The options, beside the method, in which two series differ."""
    names = {**one.settings, **other.settings}
    return [name for name in names if one.settings.get(name) != other.settings.get(name)]


def _differing(runs: Sequence[RunData]) -> list[str]:
    """The options beside method that are not the same in all runs."""
    names = {name: None for run in runs for name in run.options if name not in NEUTRAL and name != "method"}
    return [name for name in names if len({str(run.options.get(name)) for run in runs}) > 1]


def _label(run: RunData, differing: Sequence[str]) -> str:
    """The method, and whatever else sets a run apart.

    A partition names itself; other options are written name=value.
    """
    values = {name: run.options[name] for name in differing if name in run.options}
    words = [str(value) if name == "partition" else f"{name}={value}" for name, value in values.items()]
    return ", ".join([run.method, *words])


def _one_per_seed(label: str, runs: Sequence[RunData], notes: list[str]) -> tuple[RunData, ...]:
    kept: dict[int, RunData] = {}
    for run in runs:
        other = kept.get(run.seed)
        if other is None:
            kept[run.seed] = run
            continue
        kept[run.seed], left = (run, other) if run.last_round > other.last_round else (other, run)
        notes.append(f"{label}: seed {run.seed} is there twice; {left.path} is left out")
    return tuple(kept[seed] for seed in sorted(kept))
