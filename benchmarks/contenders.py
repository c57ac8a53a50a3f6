"""Who can race: FedKeep with any options, and each peer with its own interpreter."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peers.setup import interpreter
from processes import isolation
from race import HERE, Contender
from tasks import Sources, config_of
from turns import OPTIONS, TASK
from workloads import Workload

CORES = len(os.sched_getaffinity(0))
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
SLOW = "{} is left out of W4, where a round takes it minutes; `--peers` with its name includes it"
TORCHRUN = ("-m", "torch.distributed.run", "--master-addr", "127.0.0.1", "--master-port", "29511")


@dataclass(frozen=True)
class Peer:
    """How a peer is run."""

    title: str
    script: str
    arguments: tuple[str, ...] = ()  # of the interpreter, before the script
    environment: Mapping[str, str] = field(default_factory=dict)
    isolated: bool = False  # opens ports: runs in a network of its own
    leaves_out: Mapping[str, str] = field(default_factory=dict)  # workload -> why


PEERS = {
    "flower": Peer("Flower simulation (Ray)", "flower_sim.py", (), SILENT, isolated=True),
    "pfl": Peer(
        "pfl",
        "pfl_sim.py",
        (*TORCHRUN, "--nproc-per-node", str(CORES)),
        {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        isolated=True,
    ),
    "fedjax": Peer("fedjax", "fedjax_sim.py", (), {"JAX_PLATFORMS": "cpu"}, leaves_out={"W4": SLOW.format("fedjax")}),
    "fedlab": Peer("FedLab", "fedlab_sim.py", leaves_out={"W4": SLOW.format("FedLab")}),
    "plain": Peer("plain PyTorch loop", "plain_loop.py"),
}


def peer(name: str, task: Path, home: Path) -> Contender | str:
    """A peer ready to race, or why it cannot."""
    about = PEERS[name]
    python = Path(sys.executable) if name == "plain" else interpreter(name)
    if not python.exists():
        return f"{about.title} is not installed; `make bench-peers` installs it"
    prefix = isolation() if about.isolated else ()
    if prefix is None:
        return f"{about.title} opens ports and this system gives it no network of its own (unshare --net)"
    command = (*prefix, str(python), *about.arguments, str(HERE / "peers" / about.script))
    environment = {**about.environment, TASK: str(task), "FLWR_HOME": str(home), "HOME": str(home)}
    return Contender(about.title, command, environment)


def limit(workload: str, sources: Sources, shape: Workload) -> Contender:
    """The bare products of a workload."""
    return replace(ours("bare products", workload, sources, shape), command=(sys.executable, str(HERE / "bare.py")))


def ours(
    name: str, workload: str, sources: Sources, shape: Workload, vary: Mapping[str, Any] | None = None, **options: Any
) -> Contender:
    """FedKeep on a workload, some options changed."""
    config_of(workload, sources, **options)  # refuses what is wrong here rather than in the race
    run = {**shape.options, **sources.options(shape.data), "rounds": shape.rounds + 1, **options}
    environment = {OPTIONS: json.dumps({"run": run, "vary": dict(vary or {})})}
    convolutions = shape.options["model"] != "mlp"  # FedKeep then measures which memory layout is faster
    return Contender(name, (sys.executable, str(HERE / "ours.py")), environment, quiet_start=convolutions)
