"""Measure forgetting in a Flower strategy, by two overridden methods.

    pip install "fedkeep[flower]"
    FLWR_TELEMETRY_ENABLED=0 python examples/meter_flower.py

`MeteredFedAvg` goes into a server app as any strategy does; the client app adds `ConfigRecord({"client": number})` to
its reply. Here the clients run in this process, without a network. The meter needs examples of each client where the
strategy runs: all of them in a simulation, those that the server may hold in a real federation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedkeep as fk

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    FedAvg: Any = object  # without Flower this file can be imported, not run


class MeteredFedAvg(FedAvg):
    """FedAvg that measures each round's forgetting. One module serves for all models: each is judged at once."""

    def __init__(self, meter: fk.ForgettingMeter, module: nn.Module, **options: Any) -> None:
        super().__init__(**options)
        self.meter, self.module = meter, module

    def _model(self, arrays: ArrayRecord) -> nn.Module:
        self.module.load_state_dict(arrays.to_torch_state_dict())
        return self.module

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> list[Message]:
        self.meter.open(self._model(arrays), round=server_round)
        return list(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        replies = list(replies)
        for content in (reply.content for reply in replies if not reply.has_error()):
            (about,) = content.config_records.values()
            (arrays,) = content.array_records.values()
            self.meter.local(int(about["client"]), self._model(arrays))
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:  # nobody answered
            self.meter.abandon()
            return arrays, metrics
        summary = self.meter.close(self._model(arrays)).summary
        metrics["forgetting"], metrics["forgettable"] = summary["forgetting"], summary["forgettable"]
        return arrays, metrics


class LocalGrid:
    """Stands for a network: every client is a function called in this process."""

    def __init__(self, clients: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.clients = clients
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # what Flower does before a server app

    def get_node_ids(self) -> list[int]:
        return [client + 1 for client in self.clients]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.train(message, message.metadata.dst_node_id - 1) for message in messages]

    def train(self, message: Message, client: int) -> Message:
        """What a client app does: train on its own examples and send the model back."""
        model, (x, y) = new_model(), self.clients[client]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in torch.arange(len(y)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        numbers = MetricRecord({"num-examples": len(y)})
        answer = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": numbers,
            "about": ConfigRecord({"client": client}),
        }
        return Message(RecordDict(answer), reply_to=message)


def new_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def main(rounds: int = 3) -> None:
    if FedAvg is object:
        raise SystemExit('This example needs Flower: pip install "fedkeep[flower]"')
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    held_out = torch.arange(len(y)) % 5 == 0
    train = {k: (x[(y // 5 == k) & ~held_out], y[(y // 5 == k) & ~held_out]) for k in range(2)}  # 0-4 and 5-9
    judged = {k: (x[(y // 5 == k) & held_out], y[(y // 5 == k) & held_out]) for k in range(2)}

    torch.manual_seed(0)
    meter = fk.ForgettingMeter(judged, classes=10, train=train)
    strategy = MeteredFedAvg(meter, new_model(), fraction_evaluate=0.0)
    strategy.start(LocalGrid(train), ArrayRecord(new_model().state_dict()), num_rounds=rounds)
    print(
        meter.frame("rounds")[["round", "validation_accuracy", "forgetting", "forgettable"]]
        .round(3)
        .to_string(index=False)
    )


if __name__ == "__main__":
    main()
