"""The report's tables as plain rows of words, for the page's template."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np

from fedkeep import grammar
from fedkeep.errors import FedKeepError
from fedkeep.report.cards import first_forgettable
from fedkeep.report.compare import compare
from fedkeep.report.curves import PerSeed, at_end
from fedkeep.report.flows import LEDGER, ledger
from fedkeep.report.series import Report, Series

DASH = "\N{EN DASH}"


def glance(report: Report) -> list[dict[str, Any]]:
    """One row per series: accuracy and forgetting at the end, and how they compare."""
    rows = []
    for series in report.series:
        base = report.baseline_of(series)
        other = series is not base
        rows.append(
            {
                "label": series.label,
                "baseline": not other and len(report.series) > 1,
                "accuracy": _percent(at_end(series, "accuracy")),
                "accuracy_gain": _signed(compare(series, base, "accuracy").difference) if other else "",
                "forgetting": _percent(at_end(series, "forgetting")),
                "forgetting_gain": _signed(compare(series, base, "forgetting").difference) if other else "",
                "forgettable": _number(at_end(series, "forgettable").mean, ".0f"),
                "seeds": len(series.runs),
            }
        )
    return rows


def ledgers(report: Report) -> dict[str, Any] | None:
    """What a round does to the judged examples, a column per series; None where nothing was recorded."""
    found = [(series.label, ledger(series)) for series in report.series]
    if all(values is None for _, values in found):
        return None
    rows = [
        {"sign": sign, "name": text, "values": [_number(v[name], ".1f") if v else DASH for _, v in found]}
        for name, sign, text in LEDGER
    ]
    return {"labels": [label for label, _ in found], "rows": rows}


def client_tables(report: Report) -> list[dict[str, Any]]:
    """Forgettable examples per client in the second half of the run, series with the same partition in one table."""
    groups: dict[bytes, list[tuple[Series, Any]]] = {}
    for series in report.series:
        found = first_forgettable(series)
        if found is not None:
            key = found.clients.tobytes() + found.sizes.tobytes() + found.majority.tobytes()
            groups.setdefault(key, []).append((series, found))
    return [_client_table(members) for members in groups.values()]


def _client_table(members: list[tuple[Series, Any]]) -> dict[str, Any]:
    first = members[0][1]
    rows = [
        {
            "client": int(client),
            "name": members[0][0].complete[0].name_of(int(client)),
            "minority": bool(first.minority[place]),
            "majority": str(first.majority[place]) if first.majority[place] >= 0 else DASH,
            "size": int(first.sizes[place]) or DASH,
            "values": [_number(float(found.late[place]), ".1f") for _, found in members],
        }
        for place, client in enumerate(first.clients)
    ]
    means = [[_mean(found.late, who) for _, found in members] for who in (first.minority, ~first.minority)]
    return {
        "seed": members[0][0].complete[0].seed,
        "labels": [series.label for series, _ in members],
        "rows": rows,
        "minority": means[0] if first.minority.any() else None,
        "others": means[1],
    }


def _mean(values: np.ndarray, who: np.ndarray) -> str:
    chosen = values[who & np.isfinite(values)]
    return _number(float(chosen.mean()), ".1f") if len(chosen) else DASH


def costs(report: Report) -> list[dict[str, Any]]:
    """What each series sends and what that costs."""
    rows = []
    for series in report.series:
        base = report.baseline
        up, down, seconds = (_mean_over(series, name) for name in ("bytes_up", "bytes_down", "seconds"))
        clients = _mean_over(series, "clients")
        rows.append(
            {
                "label": series.label,
                "up": size(up),
                "down": size(down),
                "up_client": size(up / clients) if clients else DASH,
                "times": _times(up + down, _mean_over(base, "bytes_up") + _mean_over(base, "bytes_down")),
                "seconds": _number(seconds, ".2f"),
                "sends": sent_by(series),
            }
        )
    return rows


def sent_by(series: Series) -> list[str]:
    """What leaves a client in these runs: a deployment says so itself, and how private it is."""
    run = series.runs[0]
    deployment = (run.about or {}).get("deployment")
    if not deployment:
        return sends(series.method)
    lines = [str(line) for line in deployment.get("sends", [])]
    if "epsilon" in run.rounds:
        delta = deployment.get("options", {}).get("dp_delta", math.nan)
        lines.append(
            f"client-level differential privacy: epsilon {run.rounds['epsilon'].iloc[-1]:.3g} at delta {delta:g} after "
            f"{run.last_round} rounds"
        )
    return [line[0].upper() + line[1:] for line in lines if line]


def sends(method: str) -> list[str]:
    """What leaves a client under a method, part by part."""
    try:
        parsed = grammar.parse(method)
        found = [part.sends() for part in (parsed.aggregate, *parsed.parts)]
    except (FedKeepError, NotImplementedError):
        return ["unknown: this version does not know the method"]
    lines = dict.fromkeys(line.rstrip(".") for line in found)
    return [line[0].upper() + line[1:] for line in lines if line != "nothing"]


def _mean_over(series: Series, column: str) -> float:
    values = [run.rounds[column].mean() for run in series.runs if column in run.rounds]
    return float(np.mean(values)) if values else math.nan


def _times(value: float, base: float) -> str:
    return f"{value / base:.2f} \N{MULTIPLICATION SIGN}" if base > 0 and math.isfinite(value) else DASH


def run_rows(report: Report) -> list[dict[str, Any]]:
    """Where each run is, how it ended, and what made it."""
    rows = []
    for series in report.series:
        for run in series.runs:
            about = run.about or {}
            versions, machine = about.get("versions") or {}, about.get("machine") or {}
            rows.append(
                {
                    "label": series.label,
                    "seed": run.seed,
                    "path": str(run.path),
                    "rounds": run.last_round,
                    "status": run.status,
                    "started": str(about.get("started", DASH))[:16].replace("T", " "),
                    "versions": f"FedKeep {versions.get('fedkeep', '?')}, torch {versions.get('torch', '?')}",
                    "machine": ", ".join(str(machine[k]) for k in ("processor", "system") if machine.get(k)) or DASH,
                }
            )
    return rows


def recipes(report: Report) -> list[dict[str, Any]]:
    """The exact command and configuration of each series."""
    found = []
    for series in report.series:
        commands = [shlex.join(map(str, (run.about or {}).get("command") or [])) for run in series.runs]
        found.append(
            {
                "label": series.label,
                "seeds": ", ".join(str(run.seed) for run in series.runs),
                "seed": series.runs[0].seed,
                "commands": "\n".join(dict.fromkeys(c for c in commands if c)),
                "config": series.runs[0].config_text.strip(),
            }
        )
    return found


def size(count: float) -> str:
    """Bytes for people.

    >>> size(600632), size(12), size(3.2e9)
    ('0.60 MB', '12 B', '3.20 GB')
    """
    if not math.isfinite(count):
        return DASH
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale / 2:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def _percent(value: PerSeed) -> dict[str, str]:
    if not value.known:
        return {"mean": DASH, "span": ""}
    span = f"{100 * value.low:.1f} to {100 * value.high:.1f}" if len(value.by_seed) > 1 else ""
    return {"mean": _number(100 * value.mean, ".1f"), "span": span.replace("-", "\N{MINUS SIGN}")}


def _signed(value: float) -> str:
    return _number(100 * value, "+.1f")


def _number(value: float, form: str) -> str:
    return format(value, form).replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else DASH
