"""Clients with examples of their own, which never leave them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from deploy.loopback import Deployment
from fedkeep.deploy.options import Options
from fedkeep.deploy.scene import checked_examples, function_of
from fedkeep.errors import ConfigError, DataError
from fedkeep.experiment import Config, execute
from fedkeep.experiment.build import prepare

torch.set_num_threads(1)
SHARED = {"clients": 3, "fraction": 1.0, "rounds": 2, "local_epochs": 1}

MODULE = """
import numpy as np

def load(client_name):
    data = np.load({path!r})
    return data[client_name + "-x"], data[client_name + "-y"]

def test():
    data = np.load({path!r})
    return data["test-x"], data["test-y"]

def broken(client_name):
    raise OSError("the disk is gone")

def wrong(client_name):
    return [1, 2, 3]
"""


@pytest.fixture
def own(tmp_path):
    """The simulator's own partition, written down as three clients' own files."""
    config = Config(method="scaffold+wsm", limit=120, **SHARED)
    prepared = prepare(config)
    files = {"test-x": prepared.dataset.test_x.numpy(), "test-y": prepared.dataset.test_y.numpy()}
    for k in range(3):
        rows = prepared.partition.indices(k)
        files[f"client-{k}-x"] = prepared.dataset.train_x.numpy()[rows]
        files[f"client-{k}-y"] = prepared.dataset.train_y.numpy()[rows]
    np.savez(tmp_path / "data.npz", **files)
    (tmp_path / "mine.py").write_text(MODULE.format(path=str(tmp_path / "data.npz")))
    return tmp_path / "mine.py", config


def options(place, **more):
    return {"load": f"{place}:load", "shape": "1,8,8", "classes": 10, **more}


def test_own_examples_give_what_the_simulator_gives(tmp_path, own):
    place, config = own
    deployment = Deployment(tmp_path, "scaffold+wsm", options(place, test=f"{place}:test", probe=True), **SHARED)
    network, simulated = deployment.serve(), execute(config)
    torch.testing.assert_close(network.params, simulated.params, rtol=1e-5, atol=1e-6)
    columns = ["accuracy", "validation_accuracy", "forgetting", "forgettable"]
    np.testing.assert_allclose(network.frame("rounds")[columns], simulated.frame("rounds")[columns], rtol=1e-6)
    from fedkeep.experiment.rundir import RunDirectory

    table = RunDirectory(network.directory).partition().to_pandas()
    assert table["train"].sum() + table["held_out"].sum() == 120


def test_no_example_is_in_any_message(tmp_path, own):
    place, _ = own
    deployment = Deployment(tmp_path, "importance(lam=1)", options(place), **SHARED)
    deployment.serve()
    examples = np.load(tmp_path / "data.npz")["client-0-x"].astype("<f4")
    rows = {example.tobytes() for example in examples}
    for client, _, content in deployment.grid.uploads:
        for record in content.values():
            for value in record.values():
                data = getattr(value, "data", b"")
                assert client != 0 or not any(row in data for row in rows)


def test_without_test_examples_the_clients_judge(tmp_path, own):
    place, _ = own
    rows = Deployment(tmp_path, "fedavg", options(place), **SHARED).serve().frame("rounds")
    assert rows["accuracy"].isna().all() and rows["validation_accuracy"].between(0, 1).all()


def test_forgetting_off_sends_no_labels(tmp_path, own):
    place, _ = own
    deployment = Deployment(tmp_path, "fedavg", options(place), **SHARED, forgetting="off")
    deployment.serve()
    greetings = [content for _, kind, content in deployment.grid.uploads if kind == "query.hello"]
    assert len(greetings) == 3 and all(set(content["numbers"]) == {"examples"} for content in greetings)


def test_a_nodes_own_function_comes_first(tmp_path, own):
    place, config = own
    deployment = Deployment(tmp_path, "scaffold+wsm", options("elsewhere.py"), **SHARED)
    deployment.grid.node_config["load"] = f"{place}:load"
    torch.testing.assert_close(deployment.serve().params, execute(config).params, rtol=1e-5, atol=1e-6)


def test_a_client_whose_function_fails_is_named_with_the_reason(tmp_path, own):
    place, _ = own
    impatient = {"load": f"{place}:broken", "time_limit": 0.5, "start_wait": 0.1}
    deployment = Deployment(tmp_path, "fedavg", {**options(place), **impatient}, **SHARED)
    with pytest.raises(Exception, match="0 of 3 clients answered"):
        deployment.serve()
    assert sum("did not say who it is" in line for line in deployment.lines) == 3  # each once, not again and again
    assert deployment.said("its app raised an error", "the disk is gone")


GIVEN = Options(load="x.py:load", shape="2", classes=3)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), r"shape \(4, 3\), not \(n, 2\)"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "shape"),
        (torch.zeros(4, 2), torch.zeros(3, dtype=torch.long), "one label for each"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "not none"),
        (torch.zeros(4, 2), torch.zeros(4), "whole numbers"),
        (torch.zeros(4, 2), torch.tensor([0, 1, 2, 3]), "labels run from 0 to 3, not 0 ... 2"),
        (torch.full((4, 2), float("nan")), torch.zeros(4, dtype=torch.long), "NaN"),
    ],
)
def test_examples_that_do_not_fit_are_refused(x, y, words):
    with pytest.raises(DataError, match=words):
        checked_examples(x, y, GIVEN, "x.py:load")


def test_whole_numbers_and_doubles_are_converted():
    x, y = checked_examples(torch.zeros(4, 2, dtype=torch.uint8), torch.ones(4, dtype=torch.int8), GIVEN, "here")
    assert x.dtype == torch.float32 and y.dtype == torch.int64


@pytest.mark.parametrize(
    "reference", ["load", "x.py", ":load", "x.py:", "x.py:a b", "no_such_module_x:load", "/no/x.py:load"]
)
def test_references_that_name_nothing_are_refused(reference):
    with pytest.raises(ConfigError):
        function_of(reference)


def test_a_wrong_return_value_is_named(tmp_path, own):
    from fedkeep.deploy.scene import examples_of

    with pytest.raises(DataError, match="returned list, not a pair"):
        examples_of(f"{own[0]}:wrong", "client-0", GIVEN, "examples")


@pytest.mark.parametrize(
    ("more", "words"),
    [({"shape": ""}, "shape of one example"), ({"shape": "1,x"}, "shape"), ({"classes": 0}, "number of classes")],
)
def test_shape_and_classes_are_needed(tmp_path, own, more, words):
    with pytest.raises(ConfigError, match=words):
        Deployment(tmp_path, "fedavg", options(own[0], **more), **SHARED).serve()
