from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import fedkeep as fk
from fedkeep.centralised import Centralised, Epoch, centralised, federated_events
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment.build import prepare
from fedkeep.rng import stream

TINY = {"limit": 90, "clients": 3, "partition": "iid", "batch_size": 16, "validation": 0.1, "seed": 5}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# -- against a slow twin that keeps every model


class Twin:
    """Plain PyTorch training that keeps the model before each step, and judges them all afterwards."""

    def __init__(self, config: fk.Config, epochs: int) -> None:
        prepared = prepare(config)
        population = prepared.population
        self.rows = sorted(int(n) for k in range(len(population)) for n in population.train.indices(k))
        self.x, self.y = population.x[self.rows], population.y[self.rows]
        self.module = prepared.model.module.requires_grad_(True).train()
        optimizer = torch.optim.SGD(
            self.module.parameters(), config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
        self.seen: list[tuple[int, list[int], dict]] = []  # epoch, examples, the model just before it learns from them
        for epoch in range(1, epochs + 1):
            order = torch.from_numpy(stream(config.seed, "centralised", epoch).permutation(len(self.rows)))
            for batch in order.split(config.batch_size):
                before = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
                self.seen.append((epoch, batch.tolist(), before))
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.module(self.x[batch]), self.y[batch]).backward()
                optimizer.step()
        self.final = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}

    def looks(self) -> dict[int, list[tuple[int, bool, float]]]:
        """Per example: (epoch, right, 1 - p_y) each time its batch came up."""
        found: dict[int, list[tuple[int, bool, float]]] = {n: [] for n in range(len(self.rows))}
        self.module.eval()
        for epoch, batch, weights in self.seen:
            self.module.load_state_dict(weights)
            for n in batch:
                with torch.no_grad():
                    share = self.module(self.x[n : n + 1])[0].double().softmax(0)
                label = int(self.y[n])
                found[n].append((epoch, int(share.argmax()) == label, 1.0 - float(share[label])))
        return found

    def events(self, epochs: int, slack: float = 0.0) -> list[tuple[int, int]]:
        """Per epoch: forgotten by accuracy; that, or an error grown by more than `slack`."""
        counts = [[0, 0] for _ in range(epochs)]
        for looks in self.looks().values():
            assert len(looks) == epochs
            for (_, was_right, old), (epoch, is_right, new) in pairwise(looks):
                lost = was_right and not is_right
                counts[epoch - 1][0] += lost
                counts[epoch - 1][1] += lost or new > old + slack
        return [(lost, worse) for lost, worse in counts]


@pytest.mark.parametrize(
    "options",
    [{"lr": 0.3}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, {"lr": 0.2, "batch_size": 80}],
)
def test_events_of_a_twin_that_keeps_every_model(options: dict) -> None:
    config = fk.Config(**(TINY | options))
    done, twin = centralised(config, epochs=5), Twin(config, 5)
    assert [epoch.accuracy_events for epoch in done.epochs] == [lost for lost, _ in twin.events(5)]
    surely, perhaps = (sum(worse for _, worse in twin.events(5, slack)) for slack in (1e-6, -1e-6))
    assert surely <= done.events.margin <= perhaps <= surely + 2  # rounding decides of hardly any
    assert 0 < done.events.accuracy < done.events.margin
    assert done.examples.tolist() == twin.rows
    for name, tensor in done.params.items():
        torch.testing.assert_close(tensor, twin.final[name], rtol=1e-4, atol=1e-6)


def test_events_per_example_add_up_to_those_per_epoch() -> None:
    done = centralised(fk.Config(**TINY, lr=0.3), epochs=4)
    assert done.accuracy_events.sum() == sum(epoch.accuracy_events for epoch in done.epochs)
    assert done.margin_events.sum() == sum(epoch.margin_events for epoch in done.epochs)
    assert (done.accuracy_events <= done.margin_events).all()
    assert done.margin_events.max() <= 3  # four looks at each, three comparisons
    assert done.summary()["ever_forgotten"] == sum(count > 0 for count in done.accuracy_events.tolist())


# -- special cases


def test_a_model_that_stands_still_forgets_nothing() -> None:
    config = fk.Config(**TINY, lr=1e-12)
    done = centralised(config, epochs=3)
    assert done.events.accuracy == 0
    assert len({epoch.accuracy for epoch in done.epochs}) == 1


def test_the_first_pass_has_no_events() -> None:
    (only,) = centralised(fk.Config(**TINY, lr=0.5), epochs=1).epochs
    assert (only.epoch, only.accuracy_events, only.margin_events) == (1, 0, 0)


def test_one_client_with_all_the_data_in_one_batch_is_centralised() -> None:
    options = {"limit": 200, "clients": 1, "partition": "iid", "fraction": 1.0, "batch_size": 500, "lr": 0.5}
    run = fk.run("fedavg", rounds=6, local_epochs=1, workers=1, **options)
    done = centralised(fk.Config(**options), epochs=6)
    assert done.frame()["accuracy"].tolist() == run.frame("rounds")["accuracy"].tolist()
    np.testing.assert_allclose(done.frame()["loss"], run.frame("rounds")["loss"], rtol=1e-4)
    assert federated_events(run) == 0  # its own last model is the global one
    assert len(done.examples) == 180  # a tenth is held out


def test_the_method_does_not_matter_and_the_caller_is_left_alone() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    plain = centralised(fk.Config(**TINY), epochs=2)
    other = centralised(fk.Config(method="scaffold+wsm", **TINY), epochs=2)
    assert all(torch.equal(tensor, other.params[name]) for name, tensor in plain.params.items())
    assert plain.events == other.events
    assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()


def test_batch_norm_and_a_last_batch_of_one() -> None:
    config = fk.Config(**(TINY | {"limit": 17, "clients": 1, "validation": 0.0}), model="resnet-shallow")
    heard: list[Epoch] = []
    done = centralised(config, epochs=2, listen=heard.append)
    assert tuple(heard) == done.epochs and len(done.examples) == 17
    assert "num_batches_tracked" in "".join(done.buffers)
    tracked = {int(tensor) for name, tensor in done.buffers.items() if name.endswith("num_batches_tracked")}
    assert tracked == {4}  # two passes of two batches; looking changes no statistics


@pytest.mark.parametrize(("fraction", "passes"), [(1.0, 6), (0.5, 3), (0.25, 2)])
def test_as_many_passes_as_a_client_makes_on_average(fraction: float, passes: int) -> None:
    config = fk.Config(limit=40, clients=4, partition="iid", fraction=fraction, rounds=3, local_epochs=2)
    assert len(centralised(config).epochs) == passes


def test_bad_budgets_are_refused() -> None:
    with pytest.raises(ConfigError, match="epochs=0 is too small"):
        centralised(fk.Config(**TINY), epochs=0)
    with pytest.raises(ConfigError, match="local_steps=7 says nothing of passes over the data; give epochs"):
        centralised(fk.Config(**TINY, local_steps=7))
    assert len(centralised(fk.Config(**TINY, local_steps=7), epochs=1).epochs) == 1


def test_a_training_that_blows_up_is_refused() -> None:
    with pytest.raises(RunError, match="no longer finite; lower the learning rate"):
        centralised(fk.Config(**TINY, lr=1e30), epochs=3)


# -- the federated side


def test_federated_events_are_those_of_all_rounds_and_clients() -> None:
    rounds = []
    options = {"limit": 200, "clients": 4, "fraction": 0.5, "rounds": 4, "workers": 1}
    run = fk.run("fedavg", listen=rounds.append, **options)
    total = 0
    for record in rounds:
        total += sum(int(count) for count in record.measured.clients["forgettable"] if not math.isnan(count))
    assert federated_events(run) == total > 0


def test_runs_that_did_not_count_are_refused() -> None:
    options = {"limit": 100, "clients": 2, "fraction": 1.0, "rounds": 2, "workers": 1}
    with pytest.raises(RunError, match="run with forgetting="):
        federated_events(fk.run("fedavg", forgetting="off", **options))
    with pytest.raises(RunError, match="event_period=1"):
        federated_events(fk.run("fedwavg(alpha=0.3, event_period=2)", **options))


def test_the_frame_has_a_row_for_each_pass() -> None:
    done = centralised(fk.Config(**TINY), epochs=2)
    assert isinstance(done, Centralised)
    frame = done.frame()
    assert frame["epoch"].tolist() == [1, 2]
    assert frame["accuracy"].iloc[-1] == done.accuracy
