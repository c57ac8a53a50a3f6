"""What is measured: each function gives one table."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from contenders import CORES, PEERS, ours, peer
from race import HERE, Contender, Outcome, race
from tasks import Sources, Verdict, gflop_a_round, judge, write_task
from workloads import PEER_WORKLOADS, WORKLOADS, Workload

GOALS = {"W1": (4.0, 8.0), "W2": (1.5, 1.8), "W3": (4.0, 6.0), "W4": (1.0, 1.1)}
"""How many times as fast as the best peer: at least, and the aim."""
METHODS = {
    "fedavg": None,
    "fedprox(mu=0.01)": 1.3,
    "scaffold": 1.3,
    "fedavg+ewc(lam=10)": 1.3,
    "importance(lam=100000.0)": 1.6,
}
"""At W1, at most so many times the time of fedavg."""
SAME_ACCURACY = 0.05  # contenders shuffle differently; a few rounds on two labels a client swing by about this much
MEGABYTE = 2**20


@dataclass(frozen=True)
class Settings:
    """How thoroughly to measure."""

    sources: Sources
    peers: tuple[str, ...]
    repeat: int = 1
    rounds: int = 0  # timed rounds of each contender; 0: as the workload says
    quick: bool = False

    def shape(self, name: str) -> Workload:
        workload = WORKLOADS[name]
        rounds = self.rounds or (1 if self.quick else 0)
        if not rounds:
            return workload
        each = min(rounds, workload.rounds_a_turn)
        return replace(workload, turns=-(-rounds // each), rounds_a_turn=each)


@dataclass(frozen=True)
class Table:
    """A title, what it shows, and rows of text."""

    title: str
    words: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.words, ""]
        if self.rows:
            lines += ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
            lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        lines += ["", *[f"- {note}" for note in self.notes]]
        return "\n".join(lines).rstrip() + "\n"


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def megabytes(value: int) -> str:
    return f"{value / MEGABYTE:.0f} MB"


def held(settings: Settings, contenders: Sequence[Contender], shape: Workload, keep: bool = False) -> list[Outcome]:
    """A race, held as often as the settings say; the rounds of all times together."""
    outcomes = race(contenders, shape.turns, shape.rounds_a_turn, keep)
    for _ in range(settings.repeat - 1):
        for outcome, again in zip(outcomes, race(contenders, shape.turns, shape.rounds_a_turn), strict=True):
            outcome.seconds += again.seconds
            outcome.memory = max(outcome.memory, again.memory)
            outcome.problem = outcome.problem or again.problem
    return outcomes


# -- beside the peers


def beside_peers(name: str, settings: Settings, peak: float) -> Table:
    """One workload: FedKeep and the peers in turns, and whether all did the same work."""
    shape = settings.shape(name)
    folder, prepared = write_task(name, settings.sources, shape)
    contenders, notes = [ours("**FedKeep**", name, settings.sources, shape)], []
    for known in settings.peers:
        found = PEERS[known].leaves_out.get(name) or peer(known, folder, settings.sources.folder)
        if isinstance(found, str):
            notes.append(found)
        else:
            contenders.append(found)
    outcomes = held(settings, contenders, shape, keep=True)
    notes += [f"{outcome.name} failed: {outcome.problem}" for outcome in outcomes if outcome.problem]
    finished = [outcome for outcome in outcomes if outcome.seconds and outcome.params]
    verdicts = {outcome.name: judge(prepared, outcome.params) for outcome in finished}
    work = gflop_a_round(prepared)
    rows = [_peer_row(outcome, finished, verdicts, work, peak) for outcome in finished]
    notes += _same_work(verdicts) + _against_best(name, finished)
    head = ("", "how", "best s/round", "median", "times as fast", "GFLOP/s", "of peak", "memory", "accuracy", "distance")
    return Table(f"{name}: {shape.title}", _peer_words(shape, work), head, rows, notes)


def _peer_words(shape: Workload, work: float) -> str:
    timed = shape.turns * shape.rounds_a_turn
    return (
        f"{timed} timed rounds each after one to warm up, in turns of {shape.rounds_a_turn}; {work:.4g} GFLOP a round. "
        "Times as fast: the best peer = 1, by best rounds. Memory: PSS over all processes. Accuracy on the test images "
        "after the last round. Distance: how far the model's change is from FedKeep's, relative to its length."
    )


def _peer_row(
    outcome: Outcome, finished: Sequence[Outcome], verdicts: dict[str, Verdict], work: float, peak: float
) -> tuple[str, ...]:
    others = [other.best for other in finished[1:]] or [outcome.best]
    verdict, first = verdicts[outcome.name], verdicts[finished[0].name]
    distance = float((verdict.change - first.change).norm() / first.change.norm())
    return (
        f"{outcome.name} {outcome.facts['version']}",
        outcome.facts["how"] + (f", {outcome.facts['layout']}" if "layout" in outcome.facts else ""),
        seconds(outcome.best),
        seconds(outcome.median),
        f"{min(others) / outcome.best:.2f}",
        f"{work / outcome.best:.0f}",
        f"{work / outcome.best / peak:.0%}" if peak else "-",
        megabytes(outcome.memory),
        f"{verdict.accuracy:.3f}",
        f"{distance:.2g}",
    )


def _same_work(verdicts: dict[str, Verdict]) -> list[str]:
    middle = statistics.median(verdict.accuracy for verdict in verdicts.values())
    odd = [name for name, verdict in verdicts.items() if abs(verdict.accuracy - middle) > SAME_ACCURACY]
    if odd:
        return [f"NOT the same work: {', '.join(odd)} more than {SAME_ACCURACY} away from the median accuracy {middle:.3f}"]
    return [f"same work: all accuracies within {SAME_ACCURACY} of their median {middle:.3f}"]


def _against_best(name: str, finished: Sequence[Outcome]) -> list[str]:
    if len(finished) < 2 or finished[0].name != "**FedKeep**":
        return []
    least, aim = GOALS[name]
    best = min(finished[1:], key=lambda outcome: outcome.best)
    middle = min(finished[1:], key=lambda outcome: outcome.median)
    ratio, by_median = best.best / finished[0].best, middle.median / finished[0].median
    verdict = "the aim is reached" if ratio >= aim else "reached" if ratio >= least else "NOT reached"
    return [
        f"**{ratio:.2f} x** the best peer ({best.name}), {by_median:.2f} x by medians; asked for: at least {least} x, "
        f"aim {aim} x: {verdict}"
    ]


# -- FedKeep alone


def methods(settings: Settings) -> Table:
    """What the methods cost beside FedAvg at W1."""
    shape = settings.shape("W1")
    contenders = [ours(method, "W1", settings.sources, shape, method=method) for method in METHODS]
    outcomes = held(settings, contenders, shape)
    rows = []
    for outcome, most in zip(outcomes, METHODS.values(), strict=True):
        if outcome.seconds and outcomes[0].seconds:
            ratio = outcome.best / outcomes[0].best
            goal = "" if most is None else f"at most {most}: {'reached' if ratio <= most else 'NOT reached'}"
            rows.append((outcome.name, seconds(outcome.best), seconds(outcome.median), f"{ratio:.2f}", goal))
    head = ("method", "best s/round", "median", "times FedAvg", "asked for")
    return Table("Methods at W1", "In turns, by best rounds.", head, rows, problems(outcomes))


def measuring(settings: Settings) -> Table:
    """What it costs to measure forgetting at W1."""
    shape = settings.shape("W1")
    common = {"validation": 0.1}
    contenders = [
        ours("training alone", "W1", settings.sources, shape, {"hold_nothing": True}, **common),
        ours("held-out examples judged", "W1", settings.sources, shape, **common),
        ours("forgetting of the cohort, F_ki", "W1", settings.sources, shape, forgetting="cohort", **common),
    ]
    outcomes = held(settings, contenders, shape)
    rows = []
    for outcome in outcomes:
        if outcome.seconds and outcomes[0].seconds:
            more = outcome.best / outcomes[0].best - 1
            goal = f"at most +10 %: {'reached' if more <= 0.1 else 'NOT reached'}" if outcome is outcomes[-1] else ""
            rows.append((outcome.name, seconds(outcome.best), seconds(outcome.median), f"{more:+.1%}", goal))
    words = "A tenth of each client's examples is held out; all three train on the same rest. In turns, by best rounds."
    head = ("every round", "best s/round", "median", "more", "asked for")
    return Table("Measuring forgetting at W1", words, head, rows, problems(outcomes))


def workers(settings: Settings) -> Table:
    """Two workers against one."""
    rows, notes = [], []
    for name in ("W1", "W2"):
        shape = settings.shape(name)
        contenders = [ours(f"{n}", name, settings.sources, shape, workers=n) for n in sorted({1, 2, CORES})]
        outcomes = held(settings, contenders, shape)
        notes += problems(outcomes)
        for outcome in outcomes:
            if outcome.seconds and outcomes[0].seconds:
                ratio = outcomes[0].best / outcome.best
                goal = f"at least 1.8: {'reached' if ratio >= 1.8 else 'NOT reached'}" if outcome.name == "2" else ""
                rows.append((name, outcome.name, seconds(outcome.best), seconds(outcome.median), f"{ratio:.2f}", goal))
    head = ("workload", "workers", "best s/round", "median", "times as fast as one", "asked for")
    return Table("Workers", "In turns, by best rounds.", head, rows, notes)


def lenet(settings: Settings) -> Table:
    """The papers' long run."""
    shape = settings.shape("LeNet")
    (outcome,) = held(settings, [ours("LeNet", "LeNet", settings.sources, shape)], shape)
    rows = []
    if outcome.seconds:
        hours = outcome.median * 4000 / 3600
        rows.append((seconds(outcome.best), seconds(outcome.median), f"{hours:.2f} h", outcome.facts["layout"]))
    head = ("best s/round", "median", "4000 rounds", "layout")
    return Table(shape.title, "The papers run 4000 rounds of this.", head, rows, problems([outcome]))


def start_up(settings: Settings) -> Table:
    """Time until the workers are ready, and memory, at W1; each time alone on the machine."""
    shape = settings.shape("W1")
    outcomes = []
    for _ in range(1 if settings.quick else 3):
        outcomes += race([ours("FedKeep", "W1", settings.sources, shape)], 1, 1)
    done = [outcome for outcome in outcomes if outcome.seconds]
    rows = []
    if done:
        best = min(done, key=lambda outcome: sum(outcome.facts[part] for part in ("imported", "loaded", "workers")))
        parts = [best.facts[part] for part in ("imported", "loaded", "workers")]
        most = max(outcome.memory for outcome in done)
        reached = "reached" if sum(parts) <= 5 else "NOT reached"
        rows.append(("start-up", seconds(sum(parts)), f"at most 5 s: {reached}"))
        rows += [(f"- {what}", seconds(took), "") for what, took in zip(("import", "data", "workers"), parts, strict=True)]
        rows.append(("memory, PSS of all", megabytes(most), f"at most 1 GB: {'reached' if most <= 2**30 else 'NOT reached'}"))
    words = "From the start of the process until every worker has answered; the most memory seen while it runs."
    return Table("Start-up and memory at W1", words, ("", "measured", "asked for"), rows, problems(outcomes))


def growth(settings: Settings) -> Table:
    """How time and memory grow, one thing at a time, each in processes of its own."""
    base = settings.shape("W3")
    shape = replace(base, turns=1, rounds_a_turn=1 if settings.quick else 3)
    rows, problem = [], []
    for what, value, vary, options in growth_cases(settings.quick):
        contender = ours(f"{what} {value}", "W3", settings.sources, shape, vary, **options)
        (outcome,) = race([contender], 1, shape.rounds_a_turn)
        problem += problems([outcome])
        if outcome.seconds:
            start = sum(outcome.facts[part] for part in ("imported", "loaded", "workers"))
            rows.append((what, value, seconds(outcome.best), megabytes(outcome.memory), seconds(start)))
    words = (
        "MLP, clients of 60 images, batch 20, 1 epoch; unless the row says otherwise 1000 clients, 10 a round, 159010 "
        "parameters, all cores. Clients of a population share a pool of 60000 images."
    )
    return Table("Growth", words, ("of", "is", "best s/round", "memory, PSS of all", "start-up"), rows, problem)


def growth_cases(quick: bool) -> Iterator[tuple[str, str, dict, dict]]:
    """(what grows, its value, what varies, options)"""
    for cohort in (10, 100, 1000):
        yield "clients a round", f"{cohort}", {"population": 1000, "cohort": cohort}, {}
    for population in (100, 1000, 10_000, 100_000):
        yield "population", f"{population}", {"population": population, "cohort": 10}, {}
    for hidden in (13, 126, 1258, 12_579)[: 2 if quick else None]:
        parameters = 784 * hidden + hidden + 10 * hidden + 10
        yield "parameters", f"{parameters}", {"population": 1000, "cohort": 10, "hidden": hidden}, {}
    for count in sorted({1, 2, 4, CORES}):
        yield "workers", f"{count}", {"population": 1000, "cohort": 100}, {"workers": count}


def problems(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"{outcome.name} failed: {outcome.problem}" for outcome in outcomes if outcome.problem]


def measured_peak() -> dict[str, float]:
    """GFLOP/s of matrix multiplication, in a process of its own."""
    done = subprocess.run([sys.executable, str(HERE / "peak.py")], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


SECTIONS = (*PEER_WORKLOADS, "methods", "measuring", "workers", "lenet", "startup", "growth")
ALONE = {
    "methods": methods,
    "measuring": measuring,
    "workers": workers,
    "lenet": lenet,
    "startup": start_up,
    "growth": growth,
}
