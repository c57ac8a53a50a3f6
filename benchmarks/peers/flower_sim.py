"""Flower's simulation on Ray: ServerApp, ClientApp and FedAvg, one actor with one thread per core.

The clients follow the schedule, keep data and model in their actor's memory, and do no more than train: client code as
fast as one can reasonably write it.
"""

from __future__ import annotations

import logging
import os
import time
from importlib.metadata import version

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers.torch_models import build, final
from turns import TASK, Turns
from workloads import Task

CORES = len(os.sched_getaffinity(0))
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    from peers import flower_client

    weights = message.content["arrays"].to_torch_state_dict()
    weights, examples = flower_client.train(context.node_config["partition-id"], weights)
    metrics = MetricRecord({"num-examples": examples})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)


@client_app.query()
def who(message: Message, context: Context) -> Message:
    number = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"who": number}), reply_to=message)


class Scheduled(FedAvg):
    """FedAvg whose cohorts are those of the task."""

    def __init__(self, schedule: list[list[int]], nodes: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=len(nodes))
        self._schedule, self._nodes = schedule, nodes

    def configure_train(self, server_round, arrays, config, grid):
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        chosen = [self._nodes[client] for client in self._schedule[server_round - 1]]
        return self._construct_messages(record, chosen, "train")


def nodes_by_client(grid: Grid, clients: int) -> dict[int, int]:
    """Ask every node which client it is."""
    while len(ids := list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    empty = RecordDict({"nothing": ConfigRecord({"x": 1})})
    asked = [Message(empty, message_type="query", dst_node_id=node) for node in ids]
    return {
        int(answer.content["who"]["client"]): answer.metadata.src_node_id for answer in grid.send_and_receive(asked)
    }


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    turns, task = Turns(), Task.load(os.environ[TASK])
    strategy = Scheduled(task.schedule.tolist(), nodes_by_client(grid, len(task.parts)))
    turns.ready(version=f"{version('flwr')}, ray {version('ray')}", how=f"{CORES} actors x 1 thread")

    def between(number: int, arrays: ArrayRecord) -> None:
        """Called by the strategy before round 1 and after each round."""
        if number:
            turns.stop()
        if number < task.rounds:
            turns.start()

    model = build(task)
    arrays = ArrayRecord(model.state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=task.rounds, evaluate_fn=between)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    turns.end(final(model))


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(Task.load(os.environ[TASK]).parts),
        backend_config={
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
            "init_args": {"address": "local", "num_cpus": CORES, "include_dashboard": False},
        },
    )
