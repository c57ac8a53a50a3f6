"""What smaller payloads cost in accuracy: Importance with its Fisher as float16, as 8-bit numbers, or its top q % only.

    python benchmarks/compression.py                       digits, five seeds; prints a Markdown table
    python benchmarks/compression.py --seeds 2 --rounds 5  quicker
    python benchmarks/compression.py --out benchmarks/COMPRESSION.md

Every update goes through the encodings of `fedkeep.deploy` on its way from client to server, as over a network, but in
this process. Kim et al. 2020 name such a reduction as future work. Seeds are paired: partition, initial weights and
cohorts of a seed are the same for every row.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedkeep import grammar
from fedkeep.bundles import collect
from fedkeep.data.sampling import cohort
from fedkeep.deploy.encoding import PLAIN, Encoding, Encodings, parse
from fedkeep.experiment import Config
from fedkeep.experiment.build import Prepared, prepare
from fedkeep.experiment.statistics import holm, mean_interval, paired_difference
from fedkeep.local.evaluate import evaluate
from fedkeep.method import Update
from fedkeep.rng import stream
from fedkeep.rounds import ClientData, Trainer, begin, broadcast_of, client_round, server_round
from fedkeep.tree import Params

LAST = 5  # rounds whose mean accuracy counts
ROWS = (
    "",
    "delta=float16",
    "delta=int8",
    "importance=float16",
    "importance=int8",
    "importance=top(q=50)",
    "importance=top(q=10)",
    "importance=top(q=1)",
    "importance=top(q=10, then=int8)",
    "delta=float16, importance=top(q=10, then=int8)",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="importance(lam=10)")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--partition", default="dirichlet(alpha=0.1)")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", default="", help="write the table there, too")
    return parser.parse_args()


def sent(tree: Params, encoding: Encoding) -> tuple[Params, int]:
    """A tree as it arrives, and the bytes it took."""
    arrived, size = {}, 0
    for name, tensor in tree.items():
        how = encoding if tensor.is_floating_point() else PLAIN
        parts = how.encode(tensor)
        size += sum(part.nbytes for part in parts.values())
        arrived[name] = how.decode(parts, (tuple(tensor.shape), tensor.dtype))
    return arrived, size


def through(update: Update, encodings: Encodings) -> tuple[Update, int]:
    """An update as it arrives at the server, and the bytes of its tensors."""
    delta, size = sent(update.delta, encodings.get("delta", PLAIN))
    size += sum(buffer.nbytes for buffer in update.buffers.values())
    uploads = {}
    for mechanism, slots in update.uploads.items():
        uploads[mechanism] = {}
        for slot, tree in slots.items():
            uploads[mechanism][slot], more = sent(tree, encodings.get(slot, PLAIN))
            size += more
    return replace(update, delta=delta, uploads=uploads), size


def accuracy_and_bytes(prepared: Prepared, encodings: Encodings) -> tuple[float, float]:
    """Mean test accuracy of the last rounds, and bytes that a client sends in a round."""
    config, population = prepared.config, prepared.population
    method = grammar.parse(config.method)
    trainer = Trainer.of(prepared.model, method, config.plan)
    state = begin(method, *prepared.model.initial())
    accuracies, sizes = [], []
    while state.round < config.rounds:
        number = state.round + 1
        updates = []
        for k in cohort(config.seed, number, len(population), prepared.cohort_size).tolist():
            x, y = population.examples(k)
            data = ClientData(x, y, population.class_counts(y))
            rng = stream(config.seed, "client", number, k)
            outcome = client_round(trainer, broadcast_of(state), data, None, k, rng)
            update, size = through(outcome.update, encodings)
            updates.append(update)
            sizes.append(size)
        state = server_round(method, state, collect(method, updates), len(population))
        judged = evaluate(prepared.model, state.params, state.buffers, prepared.dataset.test_x, prepared.dataset.test_y)
        accuracies.append(judged.accuracy)
    return float(np.mean(accuracies[-LAST:])), float(np.mean(sizes))


def table(given: argparse.Namespace, rows: Sequence[str] = ROWS) -> str:
    """One row per setting: accuracy, its difference to sending everything, bytes."""
    found: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    for seed in range(given.seeds):
        config = Config(
            method=given.method,
            data=given.data,
            data_root=given.data_root,
            partition=given.partition,
            clients=given.clients,
            rounds=given.rounds,
            seed=seed,
        )
        prepared = prepare(config)
        for row in rows:
            began = time.perf_counter()
            found[row].append(accuracy_and_bytes(prepared, parse(row)))
            print(f"seed {seed}, {row or 'everything'}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    whole = [accuracy for accuracy, _ in found[""]]
    size = found[""][0][1]
    lines = [
        f"`{given.method}` on {given.data}, {given.partition}, {given.clients} clients, {given.rounds} rounds, "
        f"{given.seeds} seeds; test accuracy in %, mean of the last {LAST} rounds; 95 % intervals over seeds, p of the "
        "paired t-test corrected for the number of rows (Holm).",
        "",
        "| sent as | accuracy | difference to everything | p | kB up | share |",
        "|---|---|---|---|---|---|",
    ]
    changes = {row: paired_difference([a for a, _ in pairs], whole) for row, pairs in found.items() if row}
    p_values = dict(zip(changes, holm([change.p for change in changes.values()]), strict=True))
    for row, pairs in found.items():
        mean, change = mean_interval([a for a, _ in pairs]), changes.get(row)
        bytes_up = float(np.mean([b for _, b in pairs]))
        reached = f"{100 * mean.mean:.1f} ({100 * mean.low:.1f} to {100 * mean.high:.1f})"
        difference = p_value = ""
        if change:
            difference = f"{100 * change.mean:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
            p_value = f"{p_values[row]:.2f}"
        lines.append(
            f"| {row or 'everything, float32'} | {reached} | {difference} | {p_value} | {bytes_up / 1e3:.0f} | "
            f"{100 * bytes_up / size:.0f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    given = arguments()
    text = table(given)
    print(text)
    if given.out:
        Path(given.out).write_text("# What smaller payloads cost\n\n" + text)


if __name__ == "__main__":
    main()
