"""`fedkeep methods`, `partition`, `data`, and the help of every command."""

from __future__ import annotations

import numpy as np
import pytest

import fedkeep as fk
from cli.cli_runner import document, ok
from fedkeep.cli import app
from fedkeep.cli.methods import KINDS, terms
from fedkeep.data import load
from fedkeep.grammar import SERVER, TERMS

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", (60, 100))
def test_help_teaches_with_an_example_and_fits_the_terminal(command, columns):
    text = ok(command, "--help", columns=columns).stdout
    assert text.count(f"fedkeep {command}") >= 2  # the usage, and at least one example
    assert max(map(len, text.splitlines())) <= columns


def test_the_commands_that_are_promised():
    assert {"run", "resume", "methods", "partition", "data", "demo"} <= set(COMMANDS)
    overview = ok("--help").stdout
    for command in COMMANDS:
        assert command in overview


def test_without_a_command_the_help_is_shown():
    from cli.cli_runner import call

    assert "fedkeep demo" in call().output


def test_every_term_is_listed_with_kind_options_and_what_it_sends():
    listed = {term["name"]: term for term in document("methods")}
    assert set(listed) == set(TERMS) | {f"@{name}" for name in SERVER}
    assert listed["wsm"]["kind"] == "loss"
    assert listed["fedprox"]["needs"] == ["mu"]
    assert listed["scaffold"]["kind"] == "mechanism"
    assert listed["@adam"]["options"] == {"beta1": 0.9, "beta2": 0.99, "tau": 0.001}
    assert "as large as the model" in listed["importance"]["sends"]
    assert "one accuracy for each" in listed["fedwagg"]["sends"]  # its line is long and wrapped
    assert all(term["summary"] and term["sends"] for term in listed.values())


@pytest.mark.parametrize("columns", (60, 100))
def test_the_list_of_methods_fits_and_loses_nothing(columns):
    text = ok("methods", columns=columns).stdout
    assert max(map(len, text.splitlines())) <= columns
    for term in terms():
        assert term["name"] in text
    assert len(KINDS) == sum(
        title in text for title in ("Losses:", "Mechanisms:", "Aggregations:", "Server optimisers:")
    )


def test_a_method_is_taken_apart():
    text = ok("methods", "wsm + fedprox( mu=0.010 ) @ adam(lr=0.010)").stdout
    assert text.splitlines()[0] == "fedprox(mu=0.01)+wsm@adam(lr=0.01)"
    assert "mu (w - w_t)" in text
    assert "log sum_c beta_c exp f_c(x)" in text
    assert "the trained model and the number of examples" in text.split("What leaves a client")[1]


def test_the_parts_of_a_method_can_be_typed_again():
    parts = document("methods", "scaffold+wsm@adam(lr=0.01)")["parts"]
    names = [part["name"] for part in parts]
    assert names == ["wsm", "scaffold", "fedavg(weights=uniform)", "@adam(lr=0.01)"]


@pytest.mark.parametrize("name", ("fedprox", "@adam", "adam", "ewc", "importance"))
def test_a_term_that_needs_options_can_be_explained_alone(name):
    text = ok("methods", name).stdout
    assert "=..." in text
    assert "Sends:" in text


def test_the_picture_of_a_partition_draws_each_share():
    # the counts come from the partition itself, the signs from the thresholds 0, 5, 20 and 50 %
    counts = np.array(document("partition", "shards", "--clients", 12)["label_counts"])
    share = counts / counts.sum(axis=1, keepdims=True)
    signs = np.array(list("·░▒▓█"))[np.searchsorted([0.0, 0.05, 0.2, 0.5], share, side="left")]
    lines = ok("partition", "shards", "--clients", 12, columns=100).stdout.splitlines()
    for client, line in enumerate(lines[2:14]):
        number, *cells, examples = line.split()
        assert (int(number), int(examples)) == (client, counts[client].sum())
        assert [cell[0] for cell in cells] == signs[client].tolist()


def test_partition_reports_the_skew_it_achieved():
    labels = load("digits").train_y.numpy()
    made = fk.partition.dirichlet(labels, clients=7, alpha=0.3, seed=5)
    told = document("partition", "dirichlet(alpha=0.3)", "--clients", 7, "--seed", 5)
    assert told["label_counts"] == made.label_counts(labels).tolist()
    assert told["skew"]["distance"] == made.skew(labels).distance
    assert made.skew(labels).describe() in ok("partition", "dirichlet(alpha=0.3)", "--clients", 7, "--seed", 5).stdout


def test_many_clients_are_cut_and_said_so(tmp_path):
    text = ok("partition", "iid", "--clients", 100, "-o", tmp_path / "p.html").stdout
    assert "60 more clients" in text
    page = (tmp_path / "p.html").read_text()
    assert page.count("<tr>") == 101
    assert "http" not in page


def test_more_classes_than_columns_share_cells(tmp_path):
    y = np.arange(300) % 100
    x = np.zeros((300, 2), dtype=np.float32) + y[:, None]
    np.savez(tmp_path / "many.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    text = ok("partition", "iid", "--clients", 3, "--data", tmp_path / "many.npz", columns=60).stdout
    rows = [line for line in text.splitlines() if line.endswith(" 100")]
    assert len(rows) == 3
    assert max(map(len, rows)) <= 60


def test_label_clusters_choose_the_number_of_clients():
    told = document("partition", "label_clusters(sizes=2:3)", "--clients", 0)
    assert told["skew"]["clients"] == 5


def test_data_says_what_is_there(tmp_path):
    without = {row["name"]: row["found"] for row in document("data")["data"]}
    assert without["digits"] is True
    assert without["mnist"] is None
    folder = tmp_path / "SVHN"
    folder.mkdir()
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (folder / name).write_bytes(b"")
    found = {row["name"]: row["found"] for row in document("data", "--data-root", tmp_path)["data"]}
    assert (found["svhn"], found["mnist"]) == (True, False)


def test_data_names_the_files_it_needs():
    text = ok("data").stdout
    assert "train-images-idx3-ubyte" in text
    assert "--data-root" in text
