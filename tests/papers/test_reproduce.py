"""Every recipe runs at smoke scale on files that the test writes, and leaves a whole result behind."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from fedkeep.errors import ConfigError, DataError
from fedkeep.papers import Settings, load, recipes, reproduce
from fedkeep.papers.result import NO_VERDICT, Result
from fedkeep.papers.summary import refresh, summary
from papers.tiny_data import write_rare_sets

WITHOUT_RECORDS = ("wsm/figure2",)


@pytest.fixture(scope="module")
def settings(tiny_root, tmp_path_factory):
    """One folder for all recipes, so that they share their runs."""
    return Settings("smoke", tiny_root, out=tmp_path_factory.mktemp("results"), jobs=1, workers=1, images=False)


@pytest.mark.parametrize("name", recipes())
def test_smoke(name, settings):
    done = reproduce(load(name), settings)
    assert not done.result.failures
    assert done.folder == settings.out / name / "smoke"
    document = json.loads((done.folder / "result.json").read_text())
    recipe = load(name)
    assert (document["paper"], document["item"], document["scale"]) == (recipe.paper, recipe.item, "smoke")
    assert document["seeds"] == [0] and document["verdict"] == NO_VERDICT and document["reduced"]
    assert {"machine", "versions", "date", "command"} <= document.keys()
    assert str(settings.root) not in json.dumps(document)  # a result is the same on every machine
    first = done.result.tables[0]
    known = [cell for cell in first.cells.values() if cell.known]
    missing = [cell for cell in first.cells.values() if cell.text == "not run"]
    assert known
    assert {cell.column.partition(",")[0] for cell in missing} <= {"CIFAR-100", "FEMNIST"}
    assert all(cell.compared() for cell in known)
    readme = (done.folder / "README.md").read_text()
    for part in ("---\npaper: ", "## What agrees", "## What does not", "## Best explanation", recipe.claim):
        assert part in readme
    assert "Plotly.newPlot" in (done.folder / "figure.html").read_text()
    if name not in WITHOUT_RECORDS:
        records = pd.read_parquet(done.folder / "records.parquet")
        assert records["round"].max() == 2 and records["run"].nunique() == len(document["runs"])


def test_missing_data_is_said(settings):
    done = reproduce(load("wsm/table3"), settings)
    assert done.result.not_run == {"CIFAR-100": "data set cifar100 not found under the data root"}
    assert (
        "CIFAR-100: not run: data set cifar100 not found under the data root" in (done.folder / "README.md").read_text()
    )


def test_sets_that_are_rare_run_where_they_are(settings, tmp_path):
    root = write_rare_sets(tmp_path / "data")
    here = Settings("smoke", root, out=tmp_path / "results", jobs=1, workers=1, images=False)
    result = reproduce(load("wsm/table5"), here).result
    assert list(result.not_run) == ["CIFAR-10"]
    assert result.tables[0].cells["FedAvg, lr=0.1", "CIFAR-100"].estimate.count == 1
    result = reproduce(load("tce/table2"), here).result
    assert list(result.not_run) == ["CIFAR-10"]
    assert result.tables[0].cells["FedAvg", "FEMNIST, best"].estimate.count == 1


def test_nothing_can_be_run_without_data(tmp_path):
    with pytest.raises(DataError, match=r"importance/table4: nothing of it can be run .*no --data-root was given"):
        reproduce(load("importance/table4"), Settings(out=tmp_path))
    assert not list(tmp_path.iterdir())


def test_finished_runs_are_not_run_again(settings):
    heard = []

    class Watch:
        def __init__(self, todo):
            heard.append(len(todo))

        def __enter__(self):
            return None

        def __exit__(self, *_):
            pass

    reproduce(load("importance/table4"), settings, Watch)
    reproduce(load("importance/table4"), settings, Watch)
    assert heard[-1] == 0


def test_only_some_columns(settings, tmp_path):
    here = Settings(
        "smoke", settings.root, out=tmp_path, runs=settings.store, jobs=1, workers=1, only="mlp", images=False
    )
    result = reproduce(load("importance/table3"), here).result
    assert list(result.not_run) == ["10 rounds, CNN", "100 rounds, CNN"]
    assert result.about["command"].endswith("--scale smoke --only mlp --data-root DIR")


def test_finished_runs_alone_make_a_result(settings, tmp_path):
    reproduce(load("importance/table4"), settings)  # seed 0
    here = Settings("smoke", settings.root, 2, tmp_path, settings.store, run=False, images=False)
    result = reproduce(load("importance/table4"), here).result
    assert list(result.tables[0].cells["EWC", "MLP"].values) == [0]
    assert set(result.failures.values()) == {"did not come to its end"}
    nothing = Settings("smoke", settings.root, 1, tmp_path, tmp_path / "no runs", run=False, images=False)
    result = reproduce(load("fedwavg/table1"), nothing).result
    assert not any(cell.known for cell in result.tables[0].cells.values())


def test_what_is_not_in_the_paper_is_said(settings):
    result = reproduce(load("wsm/table3"), settings).result
    assert result.remarks[0] == "Not in the paper, for comparison: FedAvg+TCE."


def test_a_subset_of_a_data_set_is_said(settings):
    readme = (reproduce(load("fedwavg/table4"), settings).folder / "README.md").read_text()
    assert "- Data: SVHN cropped digits, .mat files, 600 training and 40 test samples, NOT the official" in readme


def test_two_seeds_give_an_interval(settings, tmp_path):
    here = Settings("smoke", settings.root, 2, tmp_path, settings.store, 1, 1, "CNN", images=False)
    cell = reproduce(load("importance/table4"), here).result.tables[0].cells["EWC", "CNN"]
    assert sorted(cell.values) == [0, 1] and not math.isnan(cell.estimate.low)


def test_notes_of_a_person_are_kept_word_for_word(settings):
    done = reproduce(load("wsm/a4"), settings)
    (done.folder / "notes.md").write_text("Because *we* say so.\n\n- and so\n")
    assert "Nobody has written one yet" in (done.folder / "README.md").read_text()
    page = refresh(settings.out)
    readme = (done.folder / "README.md").read_text()
    assert readme.endswith("## Best explanation\n\nBecause *we* say so.\n\n- and so\n")
    assert page == summary(settings.out)
    assert "smoke" not in page  # it is no result


def test_results_are_read_as_they_were_written(settings):
    done = reproduce(load("fedwavg/table6"), settings)
    again = Result.read(done.folder / "result.json")
    written = json.loads((done.folder / "result.json").read_text())
    assert again.document() == written


def test_bad_settings_are_refused(tiny_root, tmp_path):
    with pytest.raises(ConfigError, match='scale "huge" is unknown'):
        reproduce(load("wsm/a4"), Settings("huge", tiny_root, out=tmp_path))
    with pytest.raises(ConfigError, match="seeds=0 is too small"):
        reproduce(load("wsm/a4"), Settings("smoke", tiny_root, 0, tmp_path))
    with pytest.raises(ConfigError, match='no recipe "importance/tabel3": did you mean "importance/table3"'):
        load("importance/tabel3")
