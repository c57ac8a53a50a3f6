"""What a million clients, many memories and a large model cost: benchmarks/SCALE.md and a table in docs/scale.md.

    python benchmarks/scale.py               all of it; minutes
    python benchmarks/scale.py --quick       fewer rounds, a smaller model; prints and writes nothing

Every line of a table is a process of its own, so that its peak memory is its own. Lines that are compared do their
rounds in turns, so that whatever else the machine does hits all of them alike; times are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
POPULATIONS = (10**3, 10**4, 10**5, 10**6, 10**8)
COHORT = 100
CACHE_MB = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a trial of the script itself")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if given.line:
        LINES[json.loads(given.line)["kind"]](**json.loads(given.line))
        return
    results = {}
    for name, section in SECTIONS.items():
        results[name] = section(given.quick)
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    text = document(results)
    print(text)
    if not given.quick:
        (HERE / "SCALE.md").write_text(text, encoding="utf-8")
        page = HERE.parent / "docs" / "scale.md"
        marked = re.compile(r"(<!-- measured: begin -->\n).*(<!-- measured: end -->)", re.S)
        table = arithmetic(results)
        page.write_text(marked.sub(lambda m: m[1] + table + m[2], page.read_text(encoding="utf-8")), encoding="utf-8")


# ---------------------------------------------------------------- a line is a process that works when it is told to


class Line:
    """A process that prints one JSON document per request: first when it is ready, then for each `go`."""

    def __init__(self, **what: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--line", json.dumps(what)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self._read()
        self.answers: list[dict[str, Any]] = []

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.answers.append(self._read())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def median(self, key: str) -> float:
        return statistics.median(answer[key] for answer in self.answers[1:] or self.answers)

    @property
    def last(self) -> dict[str, Any]:
        return self.answers[-1]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a line of the benchmark ended with code {self.process.wait()}")
        return json.loads(line)


def in_turns(lines: Sequence[Line], times: int) -> None:
    """Let every line work `times` times, one after another, each time in another order."""
    for turn in range(times):
        for place in range(len(lines)):
            lines[(place + turn) % len(lines)].go()
    for line in lines:
        line.close()


def answer_requests(work: Callable[[], dict[str, Any]], **ready: Any) -> None:
    """The other end of `Line`."""
    print(json.dumps(ready | memory()), flush=True)
    for _ in sys.stdin:
        print(json.dumps(work() | memory()), flush=True)


def memory() -> dict[str, int]:
    """Bytes: the most that this process ever had, and what it has now."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"peak": int(status["VmHWM"].split()[0]) * 1024, "now": int(status["VmRSS"].split()[0]) * 1024}


# ---------------------------------------------------------------- rounds over a population


def rounds_line(kind: str, **options: Any) -> None:
    """Rounds of a method over a population."""
    import torch

    from fedkeep.experiment.build import prepare, resolved, simulation_of
    from fedkeep.experiment.config import Config

    torch.set_num_threads(1)
    started = time.perf_counter()
    simulation = simulation_of(resolved(prepare(Config(**options))))
    most_held = 0

    def work() -> dict[str, Any]:
        nonlocal most_held
        cpu = time.process_time()
        record = simulation.step()
        cpu = time.process_time() - cpu
        memories = simulation.memories
        most_held = max(most_held, memories.held)
        return {
            "seconds": record.seconds,
            "cpu": cpu,
            "held": most_held,
            "seen": len(memories),
            "accuracy": record.accuracy,
        }

    answer_requests(work, setup=time.perf_counter() - started)


def population_section(quick: bool) -> dict[str, Any]:
    common = {"kind": "rounds", "cohort": COHORT, "samples": 20, "rounds": 10**6, "workers": 1}
    found: dict[str, Any] = {}
    for method in ("fedavg", "scaffold+wsm"):
        lines = [Line(**common, method=method, population=clients) for clients in POPULATIONS]
        in_turns(lines, 3 if quick else 15)
        found[method] = [
            {
                "clients": clients,
                "setup": line.ready["setup"],
                "seconds": line.median("seconds"),
                "cpu": line.median("cpu"),
                "peak": line.last["peak"],
                "seen": line.last["seen"],
            }
            for clients, line in zip(POPULATIONS, lines, strict=True)
        ]
    return found


def memories_section(quick: bool) -> dict[str, Any]:
    common = {
        "kind": "rounds",
        "method": "scaffold",
        "population": 10**6,
        "cohort": COHORT,
        "rounds": 10**6,
        "workers": 1,
        "judge_every": 0,
        "forgetting": "off",
        "validation": 0.0,
    }
    caches = (0.0, float(CACHE_MB), 1e6)
    lines = [Line(**common, cache_mb=cache) for cache in caches]
    in_turns(lines, 3 if quick else 20)
    return {
        "rows": [
            {
                "cache": cache,
                **{key: line.last[key] for key in ("seen", "held", "peak")},
                "seconds": line.median("seconds"),
            }
            for cache, line in zip(caches, lines, strict=True)
        ]
    }


# ---------------------------------------------------------------- the store and the draw, per piece


def pieces_line(kind: str, entries: int) -> None:
    """What single pieces cost: an entry of the store, a client of a population, a draw of a cohort."""
    import numpy as np
    import torch

    from fedkeep.data.availability import Availability
    from fedkeep.data.partition import parse
    from fedkeep.data.resampled import Resampled
    from fedkeep.memories import Memories

    def each(count: int, work: Callable[[int], Any]) -> float:
        started = time.perf_counter()
        for number in range(count):
            work(number)
        return (time.perf_counter() - started) / count

    drawn = Resampled(np.arange(60000) % 10, parse("dirichlet(alpha=0.1)"), 20, 0)
    drawn(0)
    reliable, unreliable = Availability(), Availability(online=0.1)

    def work() -> dict[str, Any]:
        found: dict[str, Any] = {"client": each(2000, drawn)}
        for clients in (10**3, 10**6, 10**8):
            found[f"cohort {clients}"] = each(50, lambda r, n=clients: reliable.cohort(0, r, n, 100))
            found[f"online {clients}"] = each(5, lambda r, n=clients: unreliable.cohort(0, r, n, 100))
        found["cohort 10000 of 10**8"] = each(5, lambda r: reliable.cohort(0, r, 10**8, 10**4))
        before = memory()["now"]
        many = Memories(None)
        many._current = dict.fromkeys(range(10**6), 1)
        found["index"] = (memory()["now"] - before) / 10**6
        with tempfile.TemporaryDirectory(dir=HERE) as folder:
            memories = Memories(0, Path(folder))
            memory_of_one = {"scaffold": {"c": {"w": torch.zeros(40_000)}}}
            memories.begin(1)
            found["write"] = each(entries, lambda k: memories.__setitem__(k, memory_of_one))
            found["read"] = each(entries, lambda k: memories[k])
            started = time.perf_counter()
            memories.save()
            found["sync"] = (time.perf_counter() - started) / entries
        return found

    answer_requests(work)


def pieces_section(quick: bool) -> dict[str, Any]:
    line = Line(kind="pieces", entries=200 if quick else 2000)
    in_turns([line], 2 if quick else 4)
    return {key: line.median(key) for key in line.last}


# ---------------------------------------------------------------- one large model


def model_line(kind: str, method: str, parameters: int, clients: int, workers: int) -> None:
    """Rounds of one large perceptron."""
    import torch

    from fedkeep import grammar
    from fedkeep.data.partition import Partition
    from fedkeep.data.population import Population
    from fedkeep.engine import SerialEngine
    from fedkeep.engine.base import Bench
    from fedkeep.engine.workers import WorkerEngine
    from fedkeep.errors import ConfigError
    from fedkeep.experiment.budget import need, refuse_if_short
    from fedkeep.local.step import EagerStep
    from fedkeep.local_opt import SGD
    from fedkeep.memories import Memories
    from fedkeep.method import Plan
    from fedkeep.model import Model
    from fedkeep.models.mlp import MLP
    from fedkeep.rounds import Trainer, begin
    from fedkeep.simulate import Simulation

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = round(parameters / (784 + 1 + 10))
    model = Model.of(MLP((1, 28, 28), 10, hidden))
    parsed, plan = grammar.parse(method), Plan(SGD(0.01), batch_size=16, steps=2)
    needed = need(parsed, *model.initial(), plan, clients, workers, int(1e9))
    said = {"need": needed.total, "words": needed.describe()}
    try:
        refuse_if_short(parsed, needed, 24.0)
    except ConfigError as error:
        answer_requests(dict, **said, refused=str(error))
        return
    x, y = torch.rand(32 * clients, 1, 28, 28), torch.arange(32 * clients) % 10
    owners = torch.arange(32 * clients) // 32
    population = Population.of(x, y, Partition.from_owners(owners.numpy(), clients), 10, 0.0, 0)
    bench = Bench(Trainer.of(model, parsed, plan, EagerStep), population, (x[:100], y[:100]), 0)
    engine = SerialEngine(bench) if workers == 1 else WorkerEngine(bench, workers)
    simulation = Simulation(
        parsed, population, engine, begin(parsed, *model.initial()), 0, clients, "off", memories=Memories(int(1e9))
    )

    def work() -> dict[str, Any]:
        record = simulation.step()
        return {"seconds": record.seconds, "loss": record.loss}

    answer_requests(work, **said, parameters=hidden * 795 + 10)


def models_section(quick: bool) -> dict[str, Any]:
    parameters = 10**7 if quick else 10**8
    rows = []
    wanted = (("fedavg", 10), ("scaffold", 10), ("importance(lam=1.0)", 40))
    for method, clients in wanted:
        line = Line(kind="model", method=method, parameters=parameters, clients=clients, workers=1)
        row = {"method": method, "clients": clients, **line.ready}
        if "refused" not in row:
            for _ in range(2):
                line.go()
            row |= line.last
        line.close()
        rows.append(row)
    return {"rows": rows}


# ---------------------------------------------------------------- adding models up


def sums_line(kind: str, parameters: int, models: int) -> None:
    """Adding up models that arrive one after another, beside a plain sum in place."""
    import torch

    from fedkeep import grammar
    from fedkeep.bundles import collect
    from fedkeep.method import Facts, Update

    torch.set_num_threads(1)
    method = grammar.parse("fedavg")
    # what arrives is made before the clock starts: a pool, used again and again
    pool = [{"w": torch.full((parameters,), 1e-3), "b": torch.full((1000,), 1e-3)} for _ in range(6)]
    left, right = torch.ones(parameters), torch.full((parameters,), 1e-3)

    def work() -> dict[str, Any]:
        started = time.perf_counter()
        for _ in range(4):
            left.add_(right)
        plain = 4 * 12 * parameters / (time.perf_counter() - started)
        updates = [Update(Facts(k, 1 + k, 1, 1.0), dict(pool[k % len(pool)])) for k in range(len(pool))]
        started = time.perf_counter()
        collect(method, updates, consume=True)
        spent = time.perf_counter() - started
        moved = (8 * len(pool) + 12 * (len(pool) - 1)) * parameters
        return {"plain": plain, "sums": moved / spent}

    answer_requests(work)


def sums_section(quick: bool) -> dict[str, Any]:
    line = Line(kind="sums", parameters=10**6 if quick else 10**8, models=6)
    in_turns([line], 10)
    return {key: max(answer[key] for answer in line.answers) for key in ("plain", "sums")}


SECTIONS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "population": population_section,
    "memories": memories_section,
    "pieces": pieces_section,
    "models": models_section,
    "sums": sums_section,
}
LINES: dict[str, Callable[..., None]] = {
    "rounds": rounds_line,
    "pieces": pieces_line,
    "model": model_line,
    "sums": sums_line,
}


# ---------------------------------------------------------------- what is written


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}"


def document(results: dict[str, Any]) -> str:
    from fedkeep.experiment.about import about

    facts = about()
    machine, versions = facts["machine"], facts["versions"]
    parts = [
        "# What scale costs\n\n",
        f"Written by `python benchmarks/scale.py` on {facts['started']}: {machine['processor']}, {machine['cores']} "
        f"cores, {machine['memory_gb']} GB; Python {facts['python']}, torch {versions['torch']}, numpy "
        f"{versions['numpy']}. One process, one thread. Each line is a process of its own; lines of one table do their "
        "rounds in turns; times are medians, peak memory is that of the whole process, Python and torch included.\n\n",
        _population(results["population"]),
        _memories(results["memories"]),
        _models(results["models"]),
        _sums(results["sums"]),
        _pieces(results["pieces"]),
    ]
    return "".join(parts)


def _population(found: dict[str, Any]) -> str:
    text = f"## A round of {COHORT} clients out of ever more\n\n"
    text += "Digits; each client draws 20 examples with Dirichlet(0.1) labels; 2 local epochs; forgetting measured.\n\n"
    for method, rows in found.items():
        base = rows[0]
        text += f"`{method}`\n\n"
        text += table(
            [
                "clients",
                "seconds a round",
                "CPU seconds",
                "against the first",
                "peak MB",
                "against the first",
                "start, s",
            ],
            [
                [
                    f"{row['clients']:,}",
                    f"{row['seconds']:.3f}",
                    f"{row['cpu']:.3f}",
                    f"{100 * (row['cpu'] / base['cpu'] - 1):+.1f} %",
                    megabytes(row["peak"]),
                    f"{(row['peak'] - base['peak']) / 1e6:+,.0f} MB",
                    f"{row['setup']:.2f}",
                ]
                for row in rows
            ],
        )
        text += "\n"
    return text


def _memories(found: dict[str, Any]) -> str:
    rows = [
        [
            "all" if row["cache"] == 1e6 else f"{row['cache']:.0f}",
            f"{row['seen']:,}",
            f"{row['held'] / 1e6:.1f}",
            megabytes(row["peak"]),
            f"{row['seconds']:.3f}",
        ]
        for row in found["rows"]
    ]
    text = "## SCAFFOLD's memories of a million clients\n\n"
    text += f"{COHORT} clients a round, a memory of 60 kB for each client that was ever trained.\n\n"
    head = ["cache, MB", "clients seen", "most held, MB", "peak MB", "seconds a round"]
    return text + table(head, rows) + "\n"


def _models(found: dict[str, Any]) -> str:
    parameters = next(row["parameters"] for row in found["rows"] if "parameters" in row)
    rows = [
        [
            f"`{row['method']}`",
            str(row["clients"]),
            f"{row['need'] / 1e9:.1f}",
            "refused" if "refused" in row else f"{row['peak'] / 1e9:.1f}",
            "" if "refused" in row else f"{row['seconds']:.1f}",
        ]
        for row in found["rows"]
    ]
    text = f"## A model of {parameters / 1e6:.0f} million parameters, 24 GB allowed\n\n"
    text += "All clients take part; two steps of 16 examples each.\n\n"
    text += table(["method", "clients a round", "GB foretold", "peak GB", "seconds a round"], rows)
    refused = [row["refused"] for row in found["rows"] if "refused" in row]
    return text + ('\nThe refusal: "' + refused[0] + '"\n\n' if refused else "\n")


def _sums(found: dict[str, Any]) -> str:
    text = "## Adding models up\n\nSix models of 400 MB, each weighed and added in place as it arrives, beside "
    text += "`a.add_(b)` on one core, in turns; bytes read and written, the best of ten.\n\n"
    rows = [
        ["`a.add_(b)`", f"{found['plain'] / 1e9:.1f}", "100 %"],
        ["aggregation", f"{found['sums'] / 1e9:.1f}", f"{100 * found['sums'] / found['plain']:.0f} %"],
    ]
    return text + table(["what", "GB/s", "share"], rows) + "\n"


def _pieces(found: dict[str, Any]) -> str:
    words = {
        "client": "the examples of one client, drawn",
        "cohort 1000": "a cohort of 100 of 1,000",
        "cohort 1000000": "a cohort of 100 of 1,000,000",
        "cohort 100000000": "a cohort of 100 of 100,000,000",
        "cohort 10000 of 10**8": "a cohort of 10,000 of 100,000,000",
        "online 1000000": "a cohort of 100 of 1,000,000 of whom a tenth is online",
        "write": "a memory of 160 kB, written",
        "read": "a memory of 160 kB, read and checked",
        "sync": "a memory made safe from a power cut, at a checkpoint",
    }
    rows = [[text, f"{1e6 * found[key]:,.0f} us"] for key, text in words.items()]
    rows.append(["what stays in memory of a client that was once seen", f"{found['index']:.0f} bytes"])
    return "## Single pieces\n\n" + table(["what", "cost"], rows) + "\n"


def arithmetic(results: dict[str, Any]) -> str:
    """A federation of 10^8 clients, 10^4 a round, from the measured pieces."""
    pieces, rows = results["pieces"], results["population"]["fedavg"]
    train = rows[0]["seconds"] / COHORT
    clients, seen = 10**4, 10**7
    sums = results["sums"]["sums"]
    lines = [
        ["choose the cohort", f"{pieces['cohort 10000 of 10**8']:.4f} s", "grows with the cohort, not the population"],
        ["draw the cohort's examples", f"{clients * pieces['client']:.1f} s", "per client; divided by the workers"],
        ["train the cohort, small model", f"{clients * train:.0f} s", "per client; divided by the workers"],
        [
            "read and write memories of 160 kB",
            f"{clients * (pieces['read'] + pieces['write'] + pieces['sync']):.0f} s",
            "per client of the cohort; SCAFFOLD only",
        ],
        ["add up 10,000 models of 60 kB", f"{clients * 20 * 15_000 / sums:.2f} s", "bandwidth of one core"],
        ["add up 10,000 models of 400 MB", f"{clients * 20 * 10**8 / sums:,.0f} s", "bandwidth of one core"],
        ["index after 1,000 rounds (10^7 seen)", f"{seen * pieces['index'] / 1e9:.1f} GB", "memory, per client seen"],
        ["store after 1,000 rounds, 60 kB each", f"{seen * 60e3 / 1e9:,.0f} GB", "disk, per client seen"],
        ["store after 1,000 rounds, 400 MB each", f"{seen * 4e8 / 1e15:.0f} PB", "disk, per client seen"],
    ]
    return table(["part of a round (or of what stays)", "cost", "what it depends on"], lines)


if __name__ == "__main__":
    main()
