"""The figure of accuracy against swept values."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedkeep.experiment.compare import Comparison
from fedkeep.experiment.config import Config
from fedkeep.experiment.sweep import Arm
from fedkeep.report.sensitivity import sensitivity_figure


def comparison(*arms: tuple[str, dict, list[float]]) -> Comparison:
    rows = [
        {"arm": place, "seed": seed, "final": final, "validation": final}
        for place, (_, _, finals) in enumerate(arms)
        for seed, final in enumerate(finals)
    ]
    made = tuple(Arm(label, tuple(setting.items()), Config()) for label, setting, _ in arms)
    frame = pd.DataFrame(rows, columns=["arm", "seed", "final", "validation"])
    return Comparison(made, (0, 1), Config(), Path("nowhere"), frame, {})


def test_a_line_per_method_over_the_swept_values():
    figure = sensitivity_figure(
        comparison(
            ("fedavg", {"lr": 0.01}, [0.5, 0.7]),
            ("fedavg", {"lr": 0.1}, [0.8, 0.8]),
            ("wsm", {"lr": 0.01}, [0.6, 0.6]),
            ("wsm", {"lr": 0.1}, [0.9]),
        )
    )
    first, second = figure.data
    assert (first.name, list(first.x), list(first.y)) == ("fedavg", [0.01, 0.1], pytest.approx([0.6, 0.8]))
    assert (second.name, list(second.y)) == ("wsm", pytest.approx([0.6, 0.9]))
    assert first.error_y.array[0] == pytest.approx(12.706 * 0.1, abs=1e-3)  # t(1) s / sqrt(2), s = sqrt(0.02)
    assert list(second.error_y.array) == [0, 0]  # all equal, and one seed alone
    assert figure.layout.xaxis.type == "log" and list(figure.layout.xaxis.ticktext) == ["0.01", "0.1"]
    assert figure.layout.xaxis.title.text == "lr"
    assert figure.layout.yaxis.range[0] == 0 and figure.layout.yaxis.range[1] == 1


def test_a_panel_per_option_and_a_dash_per_condition():
    arms = [
        ("fedavg", {"lr": lr, "clients": clients}, [lr / 10, lr / 10])
        for lr, clients in ((1.0, 5), (2.0, 5), (1.0, 9), (2.0, 9))
    ]
    figure = sensitivity_figure(comparison(*arms))
    lines = {(trace.name, trace.xaxis): trace for trace in figure.data}
    assert lines.keys() == {("fedavg, clients=5", "x"), ("fedavg, clients=9", "x"), ("fedavg", "x2")}
    assert lines["fedavg, clients=5", "x"].line.dash != lines["fedavg, clients=9", "x"].line.dash
    assert list(lines["fedavg", "x2"].y) == pytest.approx([0.2, 0.2])  # at the better lr
    assert lines["fedavg", "x2"].customdata[0][0] == "lr=2"
    assert figure.layout.xaxis.type == "linear"


def test_words_are_categories():
    figure = sensitivity_figure(comparison(("a", {"partition": "iid"}, [0.5]), ("a", {"partition": "shards"}, [0.25])))
    assert figure.layout.xaxis.type == "category" and list(figure.data[0].x) == ["iid", "shards"]


def test_nothing_swept_and_nothing_finished():
    assert len(sensitivity_figure(comparison(("a", {}, [0.5]))).data) == 0
    assert len(sensitivity_figure(comparison(("a", {"lr": 1}, []))).data) == 0
