from __future__ import annotations

import pytest

from cli.cli_runner import call, document, ok, refused
from fedkeep.papers.recipe import recipes


def test_the_list_names_claims_data_and_time():
    text = ok("reproduce", "--list").stdout
    for name, recipe in recipes().items():
        assert name in text and ", ".join(recipe.data).split(",")[0] in text
    assert "importance/table3" in ok("reproduce", "importance/*", "--list").stdout
    listed = document("reproduce", "--list")
    assert [entry["name"] for entry in listed] == list(recipes())
    assert set(listed[0]["scales"]) == {"smoke", "small", "paper"}
    assert listed[0]["claim"] == recipes()[listed[0]["name"]].claim


def test_a_recipe_is_printed_in_the_layout_of_the_paper(tiny_root, tmp_path):
    words = (
        "reproduce",
        "importance/table4",
        "--data-root",
        tiny_root,
        "--out",
        tmp_path,
        "--jobs",
        1,
        "--only",
        "MLP",
    )
    result = ok(*words)
    assert "89.19" in result.stdout and "88.82" in result.stdout
    assert "reduced: 200 examples" in result.stdout
    assert "CNN not run" in result.stderr
    assert (tmp_path / "importance/table4/smoke/result.json").exists()
    again = document(*words)
    assert again[0]["item"] == "table4" and again[0]["tables"][0]["cells"][0]["paper"] == 89.19
    page = tmp_path / "RESULTS.md"
    ok("reproduce", "--summary", tmp_path, "-o", page)
    assert page.read_text().startswith("# Results")


def test_what_cannot_be_done_is_refused(tmp_path):
    assert 'no recipe "importance/tabel3": did you mean "importance/table3"' in refused(
        "reproduce", "importance/tabel3"
    )
    assert "is not a folder" in refused("reproduce", "importance/table3", "--data-root", tmp_path / "nowhere")
    assert "is no folder" in refused("reproduce", "--summary", tmp_path / "nowhere")
    result = call("reproduce", "tce/*", "--out", tmp_path)
    assert result.exit_code == 2 and "nothing of it can be run" in result.stderr
    assert 'scale "samll" is unknown: did you mean "small"' in refused("reproduce", "wsm/a4", "--scale", "samll")


def test_ctrl_c_says_how_to_go_on(tiny_root, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkeep.papers.store.run_jobs", interrupt)
    result = call("reproduce", "wsm/a4", "--data-root", tiny_root, "--out", tmp_path)
    assert result.exit_code == 130 and "Run the same command again" in result.stderr


@pytest.mark.parametrize("columns", (60, 120))
def test_help_fits(columns):
    text = ok("reproduce", "--help", columns=columns).stdout
    assert "fedkeep reproduce importance/table3" in text
