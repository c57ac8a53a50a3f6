"""FedKeep beside its peers: one table per workload."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence

from contenders import PEERS, limit, ours, peer
from race import HERE, Outcome
from tables import TIMES, Settings, Table, held, megabytes, problems, seconds, times
from tasks import Verdict, gflop_a_round, judge, write_task
from workloads import Workload

GOALS = {"W1": (4.0, 8.0), "W2": (1.5, 1.8), "W3": (4.0, 6.0), "W4": (1.0, 1.1)}
"""How many times as fast as the best peer: at least, and the aim."""
SAME_ACCURACY, SAME_CHANGE = 0.05, 0.25
"""Contenders shuffle differently: accuracies may be that far from their median, changes that far from FedKeep's."""


def beside_peers(name: str, settings: Settings, peak: float) -> Table:
    """One workload: FedKeep and the peers in turns, and whether all did the same work."""
    shape = settings.shape(name)
    folder, prepared = write_task(name, settings.sources, shape)
    contenders = [ours("**FedKeep**", name, settings.sources, shape), limit(name, settings.sources, shape)]
    notes = []
    for known in settings.peers:
        left_out = None if settings.all_peers else PEERS[known].leaves_out.get(name)
        found = left_out or peer(known, folder, settings.sources.folder)
        if isinstance(found, str):
            notes.append(found)
        else:
            contenders.append(found)
    outcomes = held(settings, contenders, shape, keep=True)
    notes += problems(outcomes)
    bare = outcomes.pop(1)
    finished = [outcome for outcome in outcomes if outcome.seconds and outcome.params]
    verdicts = {outcome.name: judge(prepared, outcome.params) for outcome in finished}
    work = gflop_a_round(prepared)
    rows = [_peer_row(outcome, finished, verdicts, work, peak) for outcome in finished]
    notes += _same_work(verdicts) + _against_best(name, finished) + _against_limit(finished, bare, work, peak)
    head = ("", "how", *TIMES, "times as fast", "GFLOP/s", "of peak", "memory", "accuracy", "distance")
    return Table(f"{name}: {shape.title}", _peer_words(shape, work), head, rows, notes)


def _peer_words(shape: Workload, work: float) -> str:
    timed = shape.turns * shape.rounds_a_turn
    return (
        f"{timed} timed rounds each after one to warm up, in turns of {shape.rounds_a_turn}; {work:.4g} GFLOP a round "
        "as the steps are written, whatever a contender leaves out: GFLOP/s are counted by that. "
        "CPU: of all processes together, in the best turn. Times as fast: the best peer = 1, by best rounds. Memory: "
        "PSS over all processes. Accuracy on the test images after the last round. Distance: how far the model's "
        "change is from FedKeep's, relative to its length."
    )


def _peer_row(
    outcome: Outcome, finished: Sequence[Outcome], verdicts: dict[str, Verdict], work: float, peak: float
) -> tuple[str, ...]:
    others = [other.best for other in finished[1:]] or [outcome.best]
    verdict, first = verdicts[outcome.name], verdicts[finished[0].name]
    return (
        f"{outcome.name} {outcome.facts['version']}",
        outcome.facts["how"] + (f", {outcome.facts['layout']}" if "layout" in outcome.facts else ""),
        *times(outcome),
        f"{min(others) / outcome.best:.2f}",
        f"{work / outcome.best:.0f}",
        f"{work / outcome.best / peak:.0%}" if peak else "-",
        megabytes(outcome.memory),
        f"{verdict.accuracy:.3f}",
        f"{verdict.distance(first):.2g}",
    )


def _same_work(verdicts: dict[str, Verdict]) -> list[str]:
    if len(verdicts) < 2:
        return []
    middle = statistics.median(verdict.accuracy for verdict in verdicts.values())
    first = next(iter(verdicts.values()))
    odd = [
        name
        for name, verdict in verdicts.items()
        if abs(verdict.accuracy - middle) > SAME_ACCURACY or verdict.distance(first) > SAME_CHANGE
    ]
    allowed = f"accuracy within {SAME_ACCURACY} of the median {middle:.3f}, distance at most {SAME_CHANGE}"
    return [f"NOT the same work: {', '.join(odd)} ({allowed})"] if odd else [f"all did the same work: {allowed}"]


def _against_best(name: str, finished: Sequence[Outcome]) -> list[str]:
    if len(finished) < 2 or finished[0].name != "**FedKeep**":
        return []
    best = min(finished[1:], key=lambda outcome: outcome.best)
    middle = min(finished[1:], key=lambda outcome: outcome.median)
    ratio, by_median = best.best / finished[0].best, middle.median / finished[0].median
    said = f"**{ratio:.2f} x** the best peer ({best.name}), {by_median:.2f} x by medians"
    if name not in GOALS:
        return [said]
    least, aim = GOALS[name]
    verdict = "the aim is reached" if ratio >= aim else "reached" if ratio >= least else "NOT reached"
    return [f"{said}; asked for: at least {least} x, aim {aim} x: {verdict}"]


def _against_limit(finished: Sequence[Outcome], bare: Outcome, work: float, peak: float) -> list[str]:
    """How far FedKeep is from what torch's own products and convolutions would allow."""
    if len(finished) < 2 or not bare.seconds:
        return []
    possible = min(outcome.best for outcome in finished[1:]) / bare.best
    return [
        f"torch's limit: a round's matrix products and convolutions alone, by torch in {bare.facts['how']}, take "
        f"{seconds(bare.best)} ({work / bare.best:.0f} GFLOP/s, {work / bare.best / peak:.0%} of the peak), "
        f"**{possible:.2f} x** the best peer; FedKeep runs at {bare.best / finished[0].best:.0%} of its speed"
    ]


def measured_peak() -> dict[str, float]:
    """GFLOP/s of matrix multiplication, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "peak.py")], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)
