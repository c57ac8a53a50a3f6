"""The page as text: self-contained, complete, safe. What it does in a browser is tested in test_report_browser."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console

from fedkeep.errors import RunError
from fedkeep.report import text_summary, write_report
from fedkeep.report.matrices import Matrix
from fedkeep.report.page import page, save
from fedkeep.report.sections import client_tables, costs, sends
from fedkeep.report.series import group, load_report
from fedkeep.report.text import colour, heatmap
from report.made_up import made_up, two_methods

SECTIONS = ("rounds", "heat", "clients", "partition", "classes", "cost", "again")


@pytest.fixture(scope="module")
def html(runs: Path) -> str:
    return page(load_report([runs]))


def without_plotly(html: str) -> str:
    return html.replace(get_plotlyjs(), "")


def test_the_page_is_one_file_with_plotly_once(html: str) -> None:
    assert html.count("* plotly.js v") == 1
    rest = without_plotly(html)
    assert not re.search(r"""(?:src|href|action)\s*=\s*["'](?!#|data:)""", rest)
    assert not re.search(r"@import|url\(|https?:", rest)
    assert "default-src 'none'" in rest


def test_every_section_is_there_in_order(html: str) -> None:
    places = [html.index(f'<section id="{name}">') for name in SECTIONS]
    assert places == sorted(places)


def test_every_figure_of_the_page_has_its_data_and_the_other_way_round(html: str) -> None:
    rest = without_plotly(html)
    data = json.loads(re.search(r'id="data">(.*?)</script>', rest, re.S).group(1))  # type: ignore[union-attr]
    drawn = re.findall(r'class="plot" data-card="([^"]+)"', rest)
    assert sorted(drawn) == sorted(data["cards"]) and len(set(drawn)) == len(drawn)
    assert data["heat"]["rounds"] == [1, 2, 3, 4] and data["heat"]["seeds"] == [0, 1]
    titles = [variant["label"] for name in ("well", "forgets") for variant in data["cards"][name]]
    assert len(titles) == 9


def test_command_and_configuration_are_there(html: str, runs: Path) -> None:
    config = (runs / "fedavg+wsm-0" / "config.toml").read_text().strip()
    assert config.replace('"', "&#34;") in html


def test_what_was_not_recorded_says_how_to_record_it(unmeasured: Path, tmp_path: Path) -> None:
    text = write_report([unmeasured], tmp_path / "deep" / "report.html").read_text()
    assert without_plotly(text).count("<code>--forgetting cohort</code>") >= 4
    assert 'id="round"' not in text, "no slider without matrices"


def test_an_unfinished_run_is_called_so(unfinished: Path) -> None:
    text = without_plotly(page(load_report([unfinished])))
    assert "Before you read on" in text and "not finished, 3 of 4 rounds are recorded" in text


def test_names_from_a_foreign_directory_cannot_run_code() -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    text = without_plotly(page(group([made_up(evil, accuracy=[0.5]), made_up("fedavg", accuracy=[0.4])], [evil])))
    assert "<script>alert" not in text and "<img" not in text
    assert text.count("<script") == 3


def test_values_that_are_no_numbers_do_not_break_the_data() -> None:
    text = without_plotly(page(group([made_up(accuracy=[np.nan, 0.5], loss=[np.inf, np.nan])])))
    json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))  # type: ignore[union-attr]


def test_a_page_cannot_replace_a_directory(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is a directory"):
        save("page", tmp_path)


def test_costs_are_set_beside_the_baseline() -> None:
    common = {"seconds": [2.0, 4.0], "clients": [10, 10]}
    base = made_up("fedavg", accuracy=[0.5] * 2, bytes_up=[500, 500], bytes_down=[500, 500], **common)
    other = made_up("scaffold", accuracy=[0.5] * 2, bytes_up=[1500, 500], bytes_down=[1000, 1000], **common)
    first, second = costs(group([base, other]))
    assert (first["up"], first["up_client"], first["seconds"]) == ("0.50 kB", "50 B", "3.00")
    assert (first["times"], second["times"]) == ("1.00 \N{MULTIPLICATION SIGN}", "2.00 \N{MULTIPLICATION SIGN}")


def test_what_leaves_a_client_is_said_part_by_part() -> None:
    assert sends("fedavg+wsm") == ["The trained model and the number of examples"]
    assert len(sends("scaffold")) == 2 and "control variate" in sends("scaffold")[1]
    assert sends("unheard_of") == ["unknown: this version does not know the method"]


def test_the_client_table_has_all_clients_and_the_means(runs: Path) -> None:
    (table,) = client_tables(load_report([runs]))
    assert table["labels"] == ["fedavg", "fedavg+wsm"] and len(table["rows"]) == 6
    assert all(len(row["values"]) == 2 for row in table["rows"])


def printed(width: int = 100, **options) -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=width, **options), out


def test_the_terminal_says_the_same_and_draws_a_heatmap(runs: Path) -> None:
    console, out = printed()
    report = text_summary([runs], console)
    text = " ".join(out.getvalue().split())
    assert "What is forgotten" in text and "Who forgets whom" in text and "`" not in text
    assert len(report.series) == 2
    assert "\x1b" not in out.getvalue(), "no colours where there is no terminal"


def test_the_terminal_says_how_to_record_what_is_missing(unmeasured: Path) -> None:
    console, out = printed()
    text_summary([unmeasured], console)
    assert "--forgetting cohort" in out.getvalue()


def test_the_small_heatmap_reads_without_colours() -> None:
    found = Matrix(
        9, np.array([2, 5]), np.array([2, 5, 8]), np.array([0.5, 0.8, 1]), np.array([[0.5, 0.3, 1], [0.75, np.nan, 1]])
    )
    console, out = printed()
    console.print(heatmap("fedavg", found))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines == [["fedavg,", "round", "9"], ["2", "5"], ["2", "0", "+50"], ["5", "\N{MINUS SIGN}25", "."]]


def test_the_colours_of_the_terminal_are_those_of_the_page() -> None:
    assert (colour(-1), colour(0.5), colour(7)) == ("#00568a", "#ea9a61", "#b34a00")


def test_a_narrow_terminal_is_enough() -> None:
    from fedkeep.report.text import renderable

    console, out = printed(width=40)
    console.print(renderable(two_methods()))
    assert max(map(len, out.getvalue().splitlines())) <= 40
