"""Reading run directories: whole ones, unfinished ones, damaged ones, foreign ones, and none at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedkeep.errors import RunError
from fedkeep.files import digest, read_sums, write_sums
from fedkeep.report.load import load_runs, read_run, spread
from fedkeep.report.series import load_report


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    """A copy of a run that may be damaged."""
    return Path(shutil.copytree(runs / "fedavg-0", tmp_path / "copy"))


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))


def rewrite(file: Path, text: str) -> None:
    """Change a file of a run as another version of the program would: with its checksum."""
    file.write_text(text)
    sums = read_sums(file.parent)
    assert sums is not None
    write_sums(file.parent, {**sums, file.name: digest(file.read_bytes())})


def test_a_finished_run_has_nothing_to_complain_about(runs: Path) -> None:
    found, notes = load_runs([runs / "fedavg-0"])
    assert notes == []
    (run,) = found
    assert (run.method, run.seed, run.status, run.last_round) == ("fedavg", 0, "finished", 4)
    assert run.clients is not None and run.classes is not None and run.partition is not None and run.pairs is not None
    assert len(run.clients) == 4 * 6 and len(run.classes) == 4 * 10
    assert len(run.pairs) == 4 * 3 * 6  # three models of the cohort on the data of all six clients


def test_a_folder_stands_for_the_runs_in_it_and_a_run_counts_once(runs: Path) -> None:
    found, _ = load_runs([runs, runs / "fedavg-0", f"{runs}/../{runs.name}/fedavg-1"])
    assert sorted(run.path.name for run in found) == ["fedavg+wsm-0", "fedavg+wsm-1", "fedavg-0", "fedavg-1"]


def test_reading_changes_nothing(runs: Path) -> None:
    def state() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}

    before = state()
    load_report([runs])
    assert state() == before


def test_an_unfinished_run_is_shown_as_far_as_it_got(unfinished: Path) -> None:
    (run,), notes = load_runs([unfinished])
    assert run.last_round == 3
    assert run.status == "not finished, 3 of 4 rounds"
    assert any("not finished, 3 of 4 rounds are recorded" in note for note in notes)


def test_a_damaged_table_is_left_out_and_named(copy: Path) -> None:
    damage(copy / "clients.parquet")
    run = read_run(copy)
    assert run.clients is None and run.classes is not None
    assert any("clients.parquet" in note and "damaged" in note for note in run.notes)


def test_a_damaged_partition_is_left_out_and_named(copy: Path) -> None:
    damage(copy / "partition.parquet")
    run = read_run(copy)
    assert run.partition is None
    assert any("partition.parquet" in note for note in run.notes)


def test_without_rounds_there_is_nothing_to_show(copy: Path, runs: Path) -> None:
    damage(copy / "rounds.parquet")
    with pytest.raises(RunError, match="nothing to show"):
        load_runs([copy])
    found, notes = load_runs([copy, runs / "fedavg-1"])
    assert len(found) == 1
    assert any(str(copy) in note and "rounds.parquet" in note for note in notes)


def test_a_run_of_another_version_is_shown_with_a_warning(copy: Path) -> None:
    text = (copy / "config.toml").read_text()
    rewrite(copy / "config.toml", text.replace("version = 1", "version = 99") + "\nunheard_of = 3\n")
    run = read_run(copy)
    assert run.method == "fedavg" and run.last_round == 4
    assert any("version 99" in note and "What can be read is shown" in note for note in run.notes)


def test_a_config_that_is_no_toml_is_refused(copy: Path) -> None:
    rewrite(copy / "config.toml", "= nonsense")
    with pytest.raises(RunError, match=r"config\.toml"):
        read_run(copy)


def test_without_checksums_what_is_there_is_shown_unchecked(copy: Path) -> None:
    (copy / "sums.json").unlink()
    run = read_run(copy)
    assert run.last_round == 4 and run.clients is not None and run.partition is not None
    assert run.notes == ("sums.json is missing or damaged: what is there is shown as it is, unchecked",)


@pytest.mark.parametrize("make", ["missing", "empty", "file", "nothing"])
def test_what_is_no_run_is_refused_with_its_path(make: str, tmp_path: Path) -> None:
    path = tmp_path / "no-run"
    if make == "empty":
        path.mkdir()
    elif make == "file":
        path.write_text("text")
    with pytest.raises(RunError, match="no-run" if make != "nothing" else "no run directory was given"):
        load_runs([] if make == "nothing" else [path])


def test_spread_keeps_both_ends_and_never_repeats() -> None:
    many = spread(np.arange(1, 201), 25)
    assert (many[0], many[-1], len(set(many.tolist()))) == (1, 200, 25)
    gaps = np.diff(many)
    assert gaps.max() - gaps.min() <= 1


def test_f_is_kept_for_the_asked_rounds_only(runs: Path) -> None:
    (run,), _ = load_runs([runs / "fedavg-1"], matrix_rounds=[2])
    assert run.pairs is not None
    assert run.pairs["round"].unique().tolist() == [2]
