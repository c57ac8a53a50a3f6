"""Single figures for a paper."""

from __future__ import annotations

import shutil
from pathlib import Path

import plotly.graph_objects as go
import pytest

from fedkeep.errors import ConfigError, RunError
from fedkeep.report import browser, export
from fedkeep.report.export import KINDS, figure, write_figure

needs_chromium = pytest.mark.skipif(browser.find_browser() is None, reason="no Chrome or Chromium on this machine")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_figure_is_drawn_of_one_run_and_of_many(kind: str, runs: Path, tmp_path: Path) -> None:
    for number, path in enumerate((runs / "fedavg-0", runs)):
        made = figure(path, kind)
        assert len(made.data) > 0
        target = write_figure(made, tmp_path / "new" / f"{kind}-{number}.html")
        text = target.read_text()
        assert text.count("* plotly.js v") == 1 and "<script src" not in text


def test_the_heatmap_is_of_the_asked_round(runs: Path) -> None:
    two, last = figure(runs / "fedavg-1", "heatmap", 2), figure(runs / "fedavg-1", "heatmap")
    assert "round 2" in two.layout.annotations[0].text and "round 4" in last.layout.annotations[0].text


def test_a_round_that_is_not_there_is_refused(runs: Path) -> None:
    with pytest.raises(RunError, match="choose from 1 to 4"):
        figure(runs / "fedavg-1", "heatmap", 9)


@pytest.mark.parametrize("kind", ["heatmap", "forgetting", "forgettable", "classes"])
def test_a_figure_of_what_was_not_recorded_says_how_to_record_it(kind: str, unmeasured: Path) -> None:
    with pytest.raises(RunError, match="--forgetting cohort"):
        figure(unmeasured, kind)


def test_nonsense_is_refused_with_a_hint(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='did you mean "heatmap"'):
        figure(runs, "heatmp")
    with pytest.raises(ConfigError, match="only the heatmap is of one round"):
        figure(runs, "accuracy", 3)
    with pytest.raises(ConfigError, match=r"\.svg"):
        write_figure(go.Figure(), tmp_path / "figure.jpg")


def test_without_a_browser_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "find_browser", lambda: None)
    monkeypatch.setattr(export, "_kaleido", lambda: False)
    with pytest.raises(RunError, match=r'pip install "fedkeep\[figures\]"'):
        write_figure(go.Figure(), tmp_path / "figure.svg")
    assert not (tmp_path / "figure.svg").exists()


def test_a_named_browser_that_is_not_there_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    assert browser.find_browser() is None


def test_a_program_that_is_no_browser_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="did not draw"):
        browser.picture(shutil.which("true") or "", go.Figure(), "svg", 100, 100, 1)


@needs_chromium
@pytest.mark.browser
def test_pictures_by_the_systems_chromium(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_kaleido", lambda: False)
    made = figure(runs / "fedavg-0", "heatmap", 2)
    svg = write_figure(made, tmp_path / "f.svg").read_text()
    assert svg.startswith("<svg") and svg.rstrip().endswith("</svg>") and "data of client" in svg
    png = write_figure(made, tmp_path / "f.png", scale=1).read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20], "big") == made.layout.width


@needs_chromium
@pytest.mark.browser
def test_a_pdf_has_one_page_of_the_size_of_the_picture() -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="200"><rect width="400" height="200"/></svg>'
    found = browser.pdf(str(browser.find_browser()), svg, 400, 200)
    assert found.startswith(b"%PDF") and found.count(b"/Type /Page\n") == 1
    assert b"/MediaBox [0 0 300 150]" in found  # 96 pixels are 72 points
