"""Two Ray nodes of one core each against one of them: how much faster is a round?

    python benchmarks/ray_nodes.py                       W1 and W2 on made-up images of MNIST's shape
    python benchmarks/ray_nodes.py --data-root DATA      with the official MNIST files

Needs Linux, Ray (pip install fedkeep[ray]), `ip` and `unshare`: the cluster runs in a network namespace of its own,
because Ray listens on all interfaces. After a round each to warm up, one node and two have their rounds alternately, so
that whatever else the machine does hits both alike; a row has the medians and the best rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

TARGET = 1.6
PORT = 6391
HOSTS = ("127.0.0.1", "127.0.0.2")
WORKLOADS = ("W1", "W2")


def measure(
    workloads: Sequence[str] = WORKLOADS, data_root: str = "", rounds: int = 9, seconds: float = 900
) -> list[dict[str, Any]]:
    """One row per workload: seconds a round with one node and with two, and how many times faster two are."""
    order = json.dumps({"workloads": list(workloads), "data_root": data_root, "rounds": rounds})
    # with a process namespace too: whatever is in it ends with its first process
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*alone, "sh", "-c", 'ip link set lo up && exec "$0" "$@"', sys.executable, __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    done = subprocess.run(
        [*command, "--inside", order], env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the cluster could not be measured: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def inside(workloads: Sequence[str], data_root: str, rounds: int) -> list[dict[str, Any]]:
    """The same from within the namespace."""
    from tasks import Sources, config_of
    from workloads import WORKLOADS as KNOWN

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fk-", ignore_cleanup_errors=True)))
        for host in HOSTS:
            stack.callback(end, start_node(host, folder))
        rows = []
        for name in workloads:
            config = config_of(name, Sources.find(folder, data_root))
            times = timed(config, rounds)
            one, two = statistics.median(times[1]), statistics.median(times[2])
            best = min(times[1]) / min(times[2])
            rows.append(
                {"workload": name, "title": KNOWN[name].title, "one node, s": one, "two nodes, s": two}
                | {
                    "times faster": one / two,
                    "times faster, best rounds": best,
                    "target": TARGET,
                    "met": one / two >= TARGET,
                }
            )
        return rows


def timed(config: Any, rounds: int) -> dict[int, list[float]]:
    """Seconds of each round with one actor and with two, one to a node."""
    import torch

    from fedkeep.engine.ray_engine import ray_engine
    from fedkeep.experiment.build import prepare, resolved, simulation_of

    torch.set_num_threads(1)
    prepared = resolved(prepare(config))
    simulation = simulation_of(prepared, lambda bench: ray_engine(bench, f"{HOSTS[0]}:{PORT}", 2, 2))
    crew = simulation.engine._crew  # type: ignore[attr-defined]
    try:
        deadline = time.monotonic() + 120
        while len(crew.ready) < 2:
            assert time.monotonic() < deadline, "not both nodes came"
            crew.wait()
        both = list(crew.members)
        times: dict[int, list[float]] = {1: [], 2: []}
        for round in range(rounds + 1):
            for nodes in times:
                crew.members[:], crew._most = both[:nodes], nodes
                seconds = simulation.step().seconds
                times[nodes] += [seconds] if round else []
        return times
    finally:
        simulation.close()


def start_node(host: str, folder: Path) -> subprocess.Popen:
    """A node of one core; the first is the head."""
    ray = str(Path(sys.executable).with_name("ray"))
    where = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
    command = [ray, "start", "--block", f"--node-ip-address={host}", "--num-cpus=1", "--disable-usage-stats"]
    log = folder / f"{host}.log"
    with log.open("w") as handle:
        joining = [f"--address={HOSTS[0]}:{PORT}"]
        node = subprocess.Popen(
            [*command, *(where if host == HOSTS[0] else joining)], stdout=handle, stderr=handle, start_new_session=True
        )
    deadline = time.monotonic() + 90
    while "This command will now block" not in log.read_text():
        assert node.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return node


def end(node: subprocess.Popen) -> None:
    """End a node and all its processes: they are a session of their own."""
    node.terminate()
    with suppress(subprocess.TimeoutExpired):
        node.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait(15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="some of W1, W2, W3")
    parser.add_argument("--data-root", default="", help="folder with the MNIST files; without it, images are made up")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of each")
    parser.add_argument("--out", default="", help="write the table there as well, e.g. benchmarks/RAY.md")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and with us what we have started
    if given.inside:
        print(json.dumps(inside(**json.loads(given.inside))))
        return
    lines = ["| workload | one node | two nodes | times faster | best rounds |", "|---|---|---|---|---|"]
    for row in measure(given.workloads.split(","), given.data_root, given.rounds):
        one, two = row["one node, s"], row["two nodes, s"]
        faster = f"{row['times faster']:.2f} | {row['times faster, best rounds']:.2f}"
        lines.append(f"| {row['workload']}: {row['title']} | {one:.3f} s | {two:.3f} s | {faster} |")
    print("\n".join(lines))
    if given.out:
        Path(given.out).write_text("\n".join([*header(given.rounds, bool(given.data_root)), *lines, ""]))


def header(rounds: int, real: bool) -> list[str]:
    """What was run, where and when."""
    from fedkeep.experiment.about import about

    facts = about()
    machine, versions = facts["machine"], facts["versions"]
    return [
        "# Two Ray nodes of one core beside one",
        "",
        f"Written by `python benchmarks/ray_nodes.py{' --data-root DATA' if real else ''} --rounds {rounds}` on "
        f"{facts['started']}: {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; Python "
        f"{facts['python']}, torch {versions['torch']}. Medians; rounds in turns. Asked for: at least 1.6 times.",
        "",
    ]


if __name__ == "__main__":
    main()
