"""Local training on another device: nothing that is made on the CPU gets into it.

Tensors are those of torch's meta device, which every build of torch has; they hold no numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkeep.engine.sealed import opened, sealed
from fedkeep.experiment.build import prepare, simulation_of
from fedkeep.experiment.config import Config
from fedkeep.local.evaluate import logits_of
from fedkeep.local.loop import passes, train
from fedkeep.rng import stream
from fedkeep.rounds import _receive, begin, broadcast_of

TINY = {"limit": 60, "clients": 4, "step": "eager", "local_steps": 2, "batch_size": 8, "forgetting": "off"}


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("fedavg", "mlp"),
        ("scaffold+wsm", "cnn"),
        ("fedprox(mu=0.1)+tce", "cnn"),
        ("fedavg+ewc(lam=1)", "mlp"),
        ("importance(lam=10, walk=true)+fedlc(tau=1.0)", "mlp"),
        ("fednova", "resnet-shallow"),
    ],
)
def test_training_stays_on_the_device_of_the_data(method, model):
    prepared = prepare(Config(method=method, model=model, **TINY))
    bench = simulation_of(prepared).engine.bench
    trainer = bench.trainer
    broadcast = sealed(broadcast_of(begin(trainer.method, *prepared.model.initial())))
    data = sealed(bench.client_data(1))
    ready = _receive(trainer, opened(broadcast, device="meta"), there := opened(data, device="meta"), None)
    orders = passes(len(there.y), trainer.plan, stream(0, "x"))
    size = trainer.plan.batch_size
    end = train(trainer.step, ready.state(), ready.x, there.y, ready.constants, orders, size, True)
    logits = logits_of(trainer.model, end.w, end.buffers, there.x)
    tensors = [*end.w.values(), *end.buffers.values(), logits]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_values_come_back_from_a_device_as_they_went():
    value = {"w": torch.arange(3.0), "rows": np.arange(2)}
    back = opened(sealed(opened(sealed(value), device="cpu")))
    assert torch.equal(back["w"], value["w"]) and (back["rows"] == value["rows"]).all()
