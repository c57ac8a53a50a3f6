from __future__ import annotations

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from fedkeep.papers import figures
from fedkeep.papers.cells import Cell, Table
from fedkeep.papers.images import browser, svg
from fedkeep.papers.recipe import Number


def test_bands_are_thinned_out_by_means():
    rounds = np.arange(1, 1201)
    found = figures.band([pd.Series(rounds.astype(float), index=rounds)])
    assert len(found.x) == 600 and found.x[:2].tolist() == [2, 4] and found.x[-1] == 1200
    assert found.mean[:2].tolist() == [1.5, 3.5]
    assert len(figures.band([]).x) == 0


def test_points_show_ours_and_the_papers():
    cells = {("a", "c"): Cell("a", "c", {0: 1.0, 1: 3.0}, Number(5.0)), ("b", "c"): Cell("b", "c", {}, Number(6.0))}
    figure = figures.points(Table("t", ["a", "b"], ["c"], cells), "title <b>")
    ours, theirs = figure.data
    assert ours.x[0] == 2.0 and np.isnan(ours.x[1])
    assert list(theirs.x) == [5.0, 6.0]
    assert ours.error_x.array[0] == pytest.approx(12.706 * np.sqrt(2) / np.sqrt(2), abs=1e-3)
    assert "&lt;b&gt;" in figure.layout.title.text


def test_a_heatmap_has_models_down_and_data_across():
    pairs = pd.DataFrame(
        {
            "model": [3, 3, 5, 5],
            "data": [3, 5, 3, 5],
            "forgetting": [0.1, 0.2, 0.3, 0.4],
            "accuracy_local": [0.5, 0.6, 0.7, 0.8],
            "data_in_cohort": [True] * 4,
        }
    )
    figure = figures.heatmaps({"round 1": {"FedAvg": pairs}}, "t", 0)
    forgetting, accuracy = figure.data
    assert forgetting.y == ("3", "5") and np.array(forgetting.z).tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert np.array(accuracy.z).tolist() == [[0.5, 0.6], [0.7, 0.8]]


@pytest.mark.browser
@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on the PATH")
def test_a_browser_draws_svg(tmp_path):
    script = tmp_path / "plotly.min.js"
    script.write_text(get_plotlyjs())
    drawn = svg(go.Figure(go.Scatter(x=[1, 2], y=[3, 4]), {"title": {"text": "drawn ±"}}), script)
    assert isinstance(drawn, bytes), drawn
    assert drawn.startswith(b"<svg") and re.search("drawn ±", drawn.decode())


def test_without_a_browser_there_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert svg(go.Figure(), tmp_path / "x.js") == "there is no Chromium or Chrome on the PATH"
