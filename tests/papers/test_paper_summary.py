"""RESULTS.md is made from the records, verdicts included, and is never stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedkeep.errors import RunError
from fedkeep.papers.cells import Cell, Table
from fedkeep.papers.pages import readme, rendered, write_readme
from fedkeep.papers.recipe import PAPERS, load, recipes
from fedkeep.papers.result import Result, write
from fedkeep.papers.summary import refresh, results_in, summary

REPOSITORY = Path(__file__).parents[2]
ABOUT = {
    "command": "fedkeep reproduce importance/table4 --scale paper --data-root DIR",
    "date": "2024-01-02",
    "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0, "system": "Linux"},
    "versions": {"python": "3.11", "fedkeep": "0.1.0"},
    "git": None,
}


def result(ewc, walk, scale="paper", **more):
    recipe = load("importance/table4")
    cells = {}
    for row, values in (("EWC", ewc), ("RWalk", walk)):
        cells[row, "MLP"] = Cell(row, "MLP", dict(enumerate(values)), recipe.numbers[row, "MLP"], label=row)
        cells[row, "CNN"] = Cell(row, "CNN", {}, recipe.numbers[row, "CNN"], label=row, text="not run")
    table = Table(recipe.title, ["EWC", "RWalk"], ["MLP", "CNN"], cells)
    seeds = tuple(range(len(ewc)))
    return Result(recipe.name, scale, seeds, (table,), "", ABOUT, not_run={"CNN": "data set x not found"}, **more)


@pytest.fixture
def folder(tmp_path):
    out = tmp_path / "results"
    place, notes = write(result([89.0, 89.5, 90.0], [88.0, 88.4, 89.1]), None, {}, out, False)
    assert not notes
    write_readme(result([89.0, 89.5, 90.0], [88.0, 88.4, 89.1]), place)
    return out


def test_one_line_for_each_result_and_for_what_was_not_run(folder):
    page = summary(folder)
    line = next(line for line in page.splitlines() if "importance/table4" in line)
    # differences -1, -1.1, -0.9: mean -1, half of the interval 2.484 * 0.1
    assert "MLP: RWalk against EWC \N{MINUS SIGN}1.00 ± 0.25 (paper \N{MINUS SIGN}0.37)" in line
    assert "| **reproduced**; not run here: CNN |" in line
    assert "[Table 4](results/importance/table4/paper/README.md)" in line
    assert "| paper, 3 seeds |" in line
    assert page.count("**not run here**, because it takes ") == len(recipes()) - 1
    assert all(f"## {title}" in page for title in PAPERS.values())


def test_a_verdict_cannot_be_typed_in(folder):
    path = folder / "importance/table4/paper/result.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"verdict": "not", "findings": []}))
    assert "**reproduced**" in summary(folder)
    for cell in document["tables"][0]["cells"]:
        if cell["row"] == "RWalk" and cell["column"] == "MLP":
            cell["values"] = {"0": 95.0, "1": 95.5, "2": 96.0}
    path.write_text(json.dumps(document))
    assert "| **not**; not run here: CNN |" in summary(folder)


def test_the_larger_scale_comes_first_and_smoke_is_left_out(folder):
    write(result([80.0], [79.0], "small"), None, {}, folder, False)
    write(result([10.0], [10.0], "smoke"), None, {}, folder, False)
    lines = [line for line in summary(folder).splitlines() if "importance/table4" in line]
    assert [line.split("|")[3].strip() for line in lines] == ["paper, 3 seeds", "small, 1 seed"]
    assert "**partly**" in lines[1]  # one seed has no interval


def test_the_page_is_the_same_twice_and_readmes_follow_notes(folder):
    place = folder / "importance/table4/paper"
    (place / "notes.md").write_text("RWalk pulls twice.\n")
    assert refresh(folder) == summary(folder)
    text = (place / "README.md").read_text()
    assert text == readme(Result.read(place / "result.json"), "RWalk pulls twice.\n")
    assert 'command: "fedkeep reproduce importance/table4 --scale paper --data-root DIR"' in text
    assert "| EWC | 89.50 ± 1.24 (89.19) | not run (95.08) |" in text
    assert "- RWalk is less accurate than EWC: holds. MLP: RWalk against EWC" in text


def test_damaged_results_are_refused(folder, tmp_path):
    (folder / "importance/table4/paper/result.json").write_text("{}")
    with pytest.raises(RunError, match=r"result\.json: cannot be read as a result"):
        summary(folder)
    with pytest.raises(RunError, match="is no folder"):
        summary(tmp_path / "nowhere")


def test_committed_results_are_not_stale():
    results = REPOSITORY / "results"
    if not results.is_dir():
        pytest.skip("there are no results in this copy")
    page = REPOSITORY / "RESULTS.md"
    remedy = "run: fedkeep reproduce --summary results -o RESULTS.md"
    assert page.exists() and page.read_text(encoding="utf-8") == summary(results), f"RESULTS.md is stale; {remedy}"
    for found, place in results_in(results):
        text = (place / "README.md").read_text(encoding="utf-8")
        assert text == rendered(found, place), f"{place}/README.md is stale; {remedy}"
