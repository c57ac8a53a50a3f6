"""What is refused: exit code 2, no traceback, a message that names the value, the place and the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from cli.cli_runner import SMALL, call, refused

REFUSED = {
    "unknown method": (["run", "fedagv"], ['"fedagv"', 'did you mean "fedavg"?']),
    "method without its option": (["run", "fedprox"], ["fedprox", "mu", "fedprox(mu=...)"]),
    "unknown option of a method": (["run", "fedprox(nu=1)"], ["fedprox", '"nu"', "known: mu"]),
    "two losses": (["run", "tce+wsm"], ["tce", "wsm", "keep one"]),
    "unknown server optimiser": (["run", "fedavg@adma(lr=1)"], ['"adma"', '"adam"']),
    "brackets left open": (["run", "fedprox(mu=0.1"], ["fedprox(mu=0.1", "name(key=value"]),
    "empty method": (["run", ""], ["empty", "fedavg"]),
    "unknown data set": (["run", "fedavg", "--data", "digit"], ['"digit"', 'did you mean "digits"?']),
    "no data root": (["run", "fedavg", "--data", "mnist"], ["mnist", "data root", "train-images-idx3-ubyte"]),
    "data root not there": (
        ["run", "fedavg", "--data", "mnist", "--data-root", "/no/such/place"],
        ["/no/such/place", "not a folder", "train-images-idx3-ubyte"],
    ),
    "file not there": (["run", "fedavg", "--data", "none.npz"], ["none.npz", "check the path"]),
    "unknown optimiser": (["run", "fedavg", "--optimizer", "sdg"], ['"sdg"', '"sgd"']),
    "unknown model": (["run", "fedavg", "--model", "mpl"], ['"mpl"', '"mlp"']),
    "model too large for the images": (["run", "fedavg", "--model", "lenet"], ["lenet", "8x8", "mlp"]),
    "unknown partition": (["run", "fedavg", "--partition", "dirichelt(alpha=1)"], ['"dirichelt"', '"dirichlet"']),
    "alpha zero": (["run", "fedavg", "--partition", "dirichlet(alpha=0)"], ["alpha=0", "above 0"]),
    "alpha negative": (["partition", "dirichlet(alpha=-1)"], ["dirichlet", "alpha=-1", "above 0"]),
    "alpha missing": (["partition", "dirichlet"], ["alpha is missing", "dirichlet(alpha=0.1)"]),
    "fraction selects nobody": (["run", "fedavg", "--fraction", "0.01"], ["0.01", "20 clients", "nobody", "0.025"]),
    "fraction above one": (["run", "fedavg", "--fraction", "1.5"], ["1.5", "outside (0, 1]"]),
    "more shards than samples": (
        ["run", "fedavg", "--partition", "shards", "--clients", "5000"],
        ["5000 clients", "10000 shards", "1438 samples", "719"],
    ),
    "more clients than samples": (["partition", "iid", "--clients", "9999"], ["9999", "1438"]),
    "no natural clients": (["partition", "natural"], ["natural", "this data set", "another partition"]),
    "sizes and clients disagree": (["partition", "label_clusters(sizes=2:7)"], ["9 clients", "clients=20"]),
    "rounds zero": (["run", "fedavg", "--rounds", "0"], ["rounds=0", "at least 1"]),
    "negative seed": (["run", "fedavg", "--seed", "-1"], ["seed=-1", "at least 0"]),
    "learning rate zero": (["run", "fedavg", "--lr", "0"], ["lr", "0"]),
    "momentum with adam": (["run", "fedavg", "--optimizer", "adam", "--momentum", "0.9"], ["0.9", "adam"]),
    "unknown layer": (["run", "fedavg", "--freeze", "clasifier"], ["clasifier", "classifier"]),
    "more clusters than clients": (
        ["run", "fedwagg(clusters=30)"],
        ["clusters=30", "10 clients", "fraction"],
    ),
    "unstable pull": (["run", "fedprox(mu=100)"], ["mu=100", "lr", "lower"]),
    "no such run": (["resume", "/no/such/run"], ["/no/such/run", "no such run directory"]),
    "unknown method to explain": (["methods", "scafold"], ['"scafold"', '"scaffold"']),
    "data root to list": (["data", "--data-root", "/no/such/place"], ["/no/such/place", "not a folder"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_value_place_and_remedy(case):
    words, wanted = REFUSED[case]
    message = refused(*words)
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    for piece in wanted:
        assert piece in message, message


@pytest.mark.parametrize("words", (["run", "fedavg", "--lr", "fast"], ["run"], ["flie"], ["resume"]))
def test_what_the_parser_refuses_has_the_same_exit_code(words):
    result = call(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_brackets_in_a_value_are_printed_not_read_as_markup(tmp_path):
    folder = tmp_path / "[bold]"
    folder.mkdir()
    assert "[bold]" in refused("resume", folder)


def test_nan_in_the_data_is_refused_before_round_one(tmp_path):
    x = np.zeros((40, 3), dtype=np.float32)
    x[7, 1] = np.nan
    y = np.arange(40) % 2
    np.savez(tmp_path / "bad.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    message = refused("run", "fedavg", "--data", tmp_path / "bad.npz", *SMALL)
    assert "bad.npz" in message
    assert "7" in message


def test_a_truncated_file_is_refused(tmp_path):
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    assert "cut.npz" in refused("run", "fedavg", "--data", tmp_path / "cut.npz")


def test_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "give a directory" in refused("run", "fedavg", *SMALL, "--out", tmp_path / "file")


def test_a_directory_of_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "holiday.jpg").write_text("x")
    assert "holiday.jpg" in refused("run", "fedavg", *SMALL, "--out", tmp_path)
    assert (tmp_path / "holiday.jpg").read_text() == "x"


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "-o" in refused("partition", "iid", "-o", tmp_path / "file" / "p.html")
