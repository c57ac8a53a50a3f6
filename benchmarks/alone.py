"""FedKeep by itself: what methods, measuring, workers and size cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from contenders import CORES, ours
from race import race
from tables import TIMES, Settings, Table, held, megabytes, problems, seconds, times

METHODS = {
    "fedavg": None,
    "fedprox(mu=0.01)": 1.3,
    "scaffold": 1.3,
    "fedavg+ewc(lam=10)": 1.3,
    "importance(lam=100000.0)": 1.6,
}
"""At W1, at most so many times the time of fedavg."""


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
            rows.append((outcome.name, *times(outcome), f"{ratio:.2f}", goal))
    head = ("method", *TIMES, "times FedAvg", "asked for")
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
        if all(one.seconds for one in (outcome, *outcomes[:2])):
            more, than_judged = (outcome.best / one.best - 1 for one in outcomes[:2])
            last = outcome is outcomes[-1]
            goal = f"at most +10 %: {'reached' if than_judged <= 0.1 else 'NOT reached'}" if last else ""
            rows.append((outcome.name, *times(outcome), f"{more:+.1%}", f"{than_judged:+.1%}" if last else "", goal))
    words = (
        "A tenth of each client's examples is held out; all three train on the same rest. In turns, by best rounds. "
        "What F_ki adds is the third row against the second: forgetting measured or not, all else equal."
    )
    head = ("every round", *TIMES, "more than training alone", "F_ki adds", "asked for")
    return Table("Measuring forgetting at W1", words, head, rows, problems(outcomes))


def workers(settings: Settings) -> Table:
    """Two workers against one."""
    rows, notes = [], []
    for name in ("W1", "W2"):
        shape = settings.shape(name)
        layout = "rows" if name == "W1" else "channels-last"  # the same for all
        counts = sorted({1, 2, CORES})
        contenders = [ours(f"{n}", name, settings.sources, shape, workers=n, layout=layout) for n in counts]
        outcomes = held(settings, contenders, shape)
        notes += problems(outcomes)
        for outcome in outcomes:
            if outcome.seconds and outcomes[0].seconds:
                ratio = outcomes[0].best / outcome.best
                goal = f"at least 1.8: {'reached' if ratio >= 1.8 else 'NOT reached'}" if outcome.name == "2" else ""
                rows.append((name, outcome.name, *times(outcome), f"{ratio:.2f}", goal))
    head = ("workload", "workers", *TIMES, "times as fast as one", "asked for")
    return Table("Workers", "In turns, by best rounds.", head, rows, notes)


def lenet(settings: Settings) -> Table:
    """The papers' long run."""
    shape = settings.shape("LeNet")
    (outcome,) = held(settings, [ours("LeNet", "LeNet", settings.sources, shape)], shape)
    rows = []
    if outcome.seconds:
        hours = outcome.median * 4000 / 3600
        rows.append((*times(outcome), f"{hours:.2f} h", outcome.facts["layout"]))
    head = (*TIMES, "4000 rounds", "layout")
    return Table(shape.title, "The papers run 4000 rounds of this.", head, rows, problems([outcome]))


def start_up(settings: Settings) -> Table:
    """Time until the workers are ready, and memory, at W1; each time alone on the machine."""
    shape = replace(settings.shape("W1"), turns=1, rounds_a_turn=1)
    outcomes = []
    for _ in range(1 if settings.quick else 3):
        outcomes += race([ours("FedKeep", "W1", settings.sources, shape)], 1, 1)
    done = [outcome for outcome in outcomes if outcome.seconds]
    rows = []
    if done:
        stages = min((outcome.facts["stages"] for outcome in done), key=lambda stages: sum(stages.values()))
        most, took = max(outcome.memory for outcome in done), sum(stages.values())
        rows.append(("start-up", seconds(took), f"at most 5 s: {'reached' if took <= 5 else 'NOT reached'}"))
        rows += [(f"- {stage}", seconds(part), "") for stage, part in stages.items()]
        rows.append(
            ("memory, PSS of all", megabytes(most), f"at most 1 GB: {'reached' if most <= 2**30 else 'NOT reached'}")
        )
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
            start = sum(outcome.facts["stages"].values())
            rows.append((what, value, seconds(outcome.best), megabytes(outcome.memory), seconds(start)))
    words = (
        "MLP, clients of 60 images, batch 20, 1 epoch; unless the row says otherwise 1000 clients, 10 a round, 159010 "
        "parameters, all cores (the rows of workers: 100 a round). Clients share a pool of 60000 images."
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


ALONE = {
    "methods": methods,
    "measuring": measuring,
    "workers": workers,
    "lenet": lenet,
    "startup": start_up,
    "growth": growth,
}
