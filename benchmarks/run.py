"""Speed and memory of FedKeep beside its peers, in one run on this machine.

    python benchmarks/run.py                                everything; writes benchmarks/RESULTS.md
    python benchmarks/run.py --data-root DATA               with the official MNIST files
    python benchmarks/run.py --only W1,methods --rounds 10  some tables, printed only
    python benchmarks/run.py --quick                        does everything work? (one timed round; numbers mean little)

`make bench-peers` installs the peers; one that is not there is left out with a message.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import torch
from alone import ALONE
from contenders import PEERS
from tables import Settings, Table
from tasks import Sources
from versus import beside_peers, measured_peak
from workloads import PEER_WORKLOADS

import fedkeep

SECTIONS = (*PEER_WORKLOADS, *ALONE)
RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"some of: {', '.join(SECTIONS)}")
    parser.add_argument("--peers", default="", help=f"some of: {', '.join(PEERS)}; - for none")
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds of each contender")
    parser.add_argument("--repeat", type=int, default=1, help="how often each race is held, with new processes")
    parser.add_argument("--data-root", default="", help="folder with the MNIST files; without it, images are made up")
    parser.add_argument("--quick", action="store_true", help="one timed round each, to see that everything works")
    parser.add_argument("--out", default="", help="write there (default: benchmarks/RESULTS.md, for a complete run)")
    given = parser.parse_args()
    given.only = chosen(parser, given.only or ",".join(SECTIONS), SECTIONS)
    given.all_peers = bool(given.peers)
    given.peers = () if given.peers == "-" else chosen(parser, given.peers or ",".join(PEERS), tuple(PEERS))
    return given


def chosen(parser: argparse.ArgumentParser, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Some of the known names, in their order."""
    names = [name.strip() for name in text.split(",")]
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return tuple(name for name in known if name in names)


def command(data_root: str) -> str:
    """The command line, without this machine's paths."""
    given = ["DATA" if word == data_root else word.replace(f"={data_root}", "=DATA") for word in sys.argv[1:]]
    if "--out" in given:
        given[given.index("--out") + 1] = "FILE"
    return shlex.join(["python", "benchmarks/run.py", *given])


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {size:.0f} GB, Linux {platform.release()}"


def header(given: argparse.Namespace, sources: Sources, peak: dict[str, float], load: float) -> str:
    lines = [
        "# Speed and memory",
        "",
        f"- command: `{command(given.data_root)}`",
        f"- date: {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        f"- machine: {machine()}; load {load:.2f} when the run began" + (" (BUSY)" if load > 0.5 else ""),
        f"- versions: fedkeep {fedkeep.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        f"- data: {sources.words}",
        f"- peak of float32 matrix multiplication: {peak['one core']:.0f} GFLOP/s on one core, "
        f"{peak['all cores']:.0f} on {peak['cores']}",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    given, load, began = arguments(), os.getloadavg()[0], time.monotonic()
    if load > 0.5:
        print(f"warning: the machine is busy (load {load:.2f}); numbers will be off", file=sys.stderr)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="bench-data-") as folder:
        sources = Sources.find(Path(folder), given.data_root)
        settings = Settings(sources, given.peers, given.all_peers, given.repeat, given.rounds, given.quick)
        peak = measured_peak()
        parts = [header(given, sources, peak, load)]
        print(parts[0], flush=True)
        for name in given.only:
            started = time.monotonic()
            table = measure(name, settings, peak["all cores"])
            parts.append(table.markdown())
            print(parts[-1], flush=True)
            print(f"({name}: {time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)
    complete = given.only == SECTIONS and not given.quick
    if path := given.out or (complete and RESULTS):
        Path(path).write_text("\n".join(parts))
        print(f"written: {path}", file=sys.stderr)
    print(f"took {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    return 0


def measure(name: str, settings: Settings, peak: float) -> Table:
    return ALONE[name](settings) if name in ALONE else beside_peers(name, settings, peak)


if __name__ == "__main__":
    sys.exit(main())
