"""Programs that tests run inside the namespace of a Ray cluster: python ray_programs.py NAME ARGUMENTS"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import fedkeep as fk
from fedkeep.engine.ray_engine import ray_engine
from fedkeep.errors import RunError
from fedkeep.experiment.build import prepare, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.packing import to_bytes

TINY = {"limit": 200, "clients": 7, "fraction": 0.7, "rounds": 3, "batch_size": 8, "local_epochs": 1}
EAGER = {"step": "eager", "model": "resnet-shallow", "limit": 60, "clients": 3, "rounds": 2}
CASES = {
    "fedavg": {},
    "scaffold+wsm": {},
    "importance(lam=10)": {},
    "fedwagg(clusters=2)": {},
    "fednova+fedrs(alpha=0.5)@momentum": {"model": "cnn", "limit": 80, "layout": "channels-last", "rounds": 2},
    "fedprox(mu=0.1)": EAGER,  # with batch norm
}
CHANGING = {**TINY, "method": "scaffold", "limit": 300, "clients": 12, "rounds": 1000}


def options(method: str) -> dict:
    return {**TINY, **CASES[method]}


def methods(address: str, folder: str) -> None:
    """Every case on the cluster, one after another in one process; one of them fails on the way."""
    for number, method in enumerate(CASES):
        fk.run(method, engine="ray", ray_address=address, out=Path(folder) / str(number), **options(method))
        if number == 1:
            try:
                fk.run("fedavg", engine="ray", ray_address=address, **{**TINY, "lr": 1e30})
            except RunError as error:
                print(f"failed as it should: {error}")


class SlowOnce:
    """Stands in for a population: while there is an order to do so, whoever works on a node stops for a minute."""

    def __init__(self, real, folder: Path, host: str) -> None:
        self.real, self.folder, self.host = real, folder, host

    def __getattr__(self, name):
        if name in ("real", "folder", "host"):
            raise AttributeError(name)  # while it is unpickled
        return getattr(self.real, name)

    def __len__(self):
        return len(self.real)

    def examples(self, client):
        import ray.util

        if (self.folder / "order").exists() and ray.util.get_node_ip_address() == self.host:
            (self.folder / "working").touch()
            time.sleep(60)
        return self.real.examples(client)


def rounds(address: str, folder: str, host: str) -> None:
    """A round for each line of stdin; says where its workers are. At the end the model is written."""

    from ray_programs import SlowOnce  # by its module's name: other processes know no class of this program

    def make(bench):
        return ray_engine(replace(bench, population=SlowOnce(bench.population, Path(folder), host)), address, 0, 1)

    simulation = simulation_of(prepare(Config(**CHANGING)), make)
    try:
        for _ in sys.stdin:
            record = simulation.step()
            places = sorted(member.greeting.place for member in simulation.engine._crew.ready)
            print(json.dumps({"round": record.round, "places": places}), flush=True)
        memories = {str(client): memory for client, memory in simulation.memories.items()}
        state = {"params": simulation.state.params, "memories": memories}
        Path(folder, "state").write_bytes(to_bytes(state, {"round": simulation.state.round}))
    finally:
        simulation.close()


if __name__ == "__main__":
    {"methods": methods, "rounds": rounds}[sys.argv[1]](*sys.argv[2:])
