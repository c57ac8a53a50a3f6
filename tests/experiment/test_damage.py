"""Bit flips and truncation in every file of a run directory: detected, never a traceback, never silently wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from experiment.kill_and_compare import assert_same_run, assert_same_tree, die_at, in_child, small
from fedkeep import packing
from fedkeep.errors import FedKeepError
from fedkeep.experiment.run import execute, load_run
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.tables import TABLES
from fedkeep.rng import stream

CONFIG = small("fedwavg(alpha=0.3)+scaffold")
NO_MATTER = {"log.txt", "lock"}  # nothing is ever read from these


def damages(data: bytes, random: np.random.Generator, flips: int, cuts: tuple[float, ...] = (0, 0.5, 1)):
    """A file's bytes, wrong in several ways."""
    for place in random.integers(len(data), size=flips) if data else []:
        wrong = bytearray(data)
        wrong[place] ^= 1 << int(random.integers(8))
        yield f"bit flip at byte {place}", bytes(wrong)
    for size in {int(cut * (len(data) - 1)) for cut in cuts}:
        if 0 <= size < len(data):
            yield f"cut to {size} bytes", data[:size]


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def everything(path: Path) -> tuple[list, dict, list[str]]:
    """All that can be read of a finished run, and the notes."""
    directory = RunDirectory(path)
    done = load_run(path, directory.notes)
    tables = [directory.table(name) for name in TABLES]
    plain = [done.config, directory.outcome(), directory.about(), directory.partition().to_pydict()]
    shown = [None if table is None else repr(table.to_pydict()) for table in tables]
    return [*plain, *shown], {"final": done.params, "best": done.best[0]}, directory.notes


def test_every_file_of_a_finished_run(tmp_path):
    execute(CONFIG, tmp_path / "good")
    known, models, notes = everything(tmp_path / "good")
    assert not notes
    random = stream(0, "damage")
    names = files_of(tmp_path / "good")
    assert len(names) == 13
    for name in names:
        path = tmp_path / "good" / name
        data = path.read_bytes()
        for what, wrong in damages(data, random, flips=8):
            path.write_bytes(wrong)
            try:
                found, tensors, notes = everything(tmp_path / "good")
            except FedKeepError as error:
                assert name in str(error) or "sums.json" in str(error), (name, what)
                continue
            if name in NO_MATTER:
                assert found == known and not notes, (name, what)
            else:
                assert any(name in note for note in notes), (name, what)
                assert all(a == b or b is None or b == {} for a, b in zip(known, found, strict=True)), (name, what)
            assert_same_tree(models, tensors)
        path.write_bytes(data)
    assert everything(tmp_path / "good")[0] == known


def test_a_finished_run_with_damage_is_never_run_over(tmp_path):
    execute(CONFIG, tmp_path / "good")
    for name in ("outcome.json", "sums.json", "config.toml", "rounds.parquet", "final.safetensors"):
        shutil.copytree(tmp_path / "good", tmp_path / name)
        (tmp_path / name / name).write_bytes(b"x")
        before = {file: (tmp_path / name / file).read_bytes() for file in files_of(tmp_path / name)}
        with pytest.raises(FedKeepError, match=name):
            execute(CONFIG, tmp_path / name)
        assert before == {file: (tmp_path / name / file).read_bytes() for file in files_of(tmp_path / name)}
        (tmp_path / name / name).unlink()
        if name not in ("config.toml",):
            with pytest.raises(FedKeepError, match=name):
                execute(CONFIG, tmp_path / name)


@pytest.fixture
def unfinished(tmp_path, monkeypatch) -> Path:
    """A run killed after two of its three rounds, and beside it one that was not."""
    execute(CONFIG, tmp_path / "whole")

    def run():
        die_at(monkeypatch, ("rename",), 3)
        execute(CONFIG, tmp_path / "cut")

    assert in_child(run) == 99
    assert [p.name for p in RunDirectory(tmp_path / "cut").segments.folders()] == ["000001", "000002"]
    return tmp_path / "cut"


def newest_memories(run: Path) -> set[str]:
    """The files of memories that the newest checkpoint refers to."""
    state, _ = packing.from_bytes((run / "segments/000002/state.safetensors").read_bytes(), "state")
    pairs = zip(*(state["remembered"][name].tolist() for name in ("clients", "rounds")), strict=True)
    return {f"segments/memories/{client % 256:02x}/{client}-{number:08d}.tensors" for client, number in pairs}


def test_every_file_of_an_unfinished_run(unfinished, tmp_path):
    random = stream(1, "damage")
    names = [name for name in files_of(unfinished) if not name.endswith(".tmp") and ".tmp/" not in name]
    needed = newest_memories(unfinished)
    others = {
        name for name in names if name.startswith("segments/memories/")
    } - needed  # of the round before, of the one cut off
    assert len(names) - len(needed | others) == 6 + 2 * 6  # config, about, partition, sums, log, lock; four tables ...
    for name in names:
        data = (unfinished / name).read_bytes()
        for number, (what, wrong) in enumerate(damages(data, random, flips=1, cuts=(0.5,))):
            out = tmp_path / f"{name.replace('/', '-')}-{number}"
            shutil.copytree(unfinished, out)
            (out / name).write_bytes(wrong)
            try:
                done = execute(CONFIG, out)
            except FedKeepError as error:
                assert name in str(error), (name, what)
                assert name in ("config.toml", "sums.json")
                continue
            assert_same_run(tmp_path / "whole", out, states=False)
            if name not in (
                *NO_MATTER,
                *others,
                "segments/000001/state.safetensors",
            ):  # of two states the newer one is used
                told = [
                    note for note in done.notes if "damaged" in note or "checksum" in note or "cannot be used" in note
                ]
                assert told, (name, what)
                assert list(out.glob("damaged-*")), (name, what)
            shutil.rmtree(out)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(unfinished, tmp_path):
    state = unfinished / "segments" / "000002" / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 4
    state.write_bytes(data)
    done = execute(CONFIG, unfinished)
    assert done.notes[-1] == "went on from round 1"
    assert "checkpoint 000002 cannot be used" in done.notes[0]
    assert (unfinished / "damaged-000002" / "state.safetensors").read_bytes() == data  # kept, also after the end
    assert "000002 cannot be used" in (unfinished / "log.txt").read_text()
    assert_same_run(tmp_path / "whole", unfinished, states=False)


def test_all_checkpoints_damaged_begins_again(unfinished, tmp_path):
    for name in ("000001", "000002"):
        (unfinished / "segments" / name / "rounds.parquet").write_bytes(b"")
    done = execute(CONFIG, unfinished)
    assert len(done.notes) == 2 and "went on" not in " ".join(done.notes)
    assert_same_run(tmp_path / "whole", unfinished, states=False)


def test_a_missing_checkpoint_leaves_no_gap(unfinished, tmp_path):
    """Records of round 1 are gone, the state after round 2 is whole: the run must not go on without round 1."""
    shutil.rmtree(unfinished / "segments" / "000001")
    done = execute(CONFIG, unfinished)
    assert len(done.rounds) == 3
    assert_same_run(tmp_path / "whole", unfinished, states=False)


def test_tables_of_an_unfinished_run_say_where_they_end(unfinished):
    assert RunDirectory(unfinished).table("rounds").num_rows == 2  # type: ignore[union-attr]
    (unfinished / "segments" / "000002" / "sums.json").write_text("{}")
    directory = RunDirectory(unfinished)
    log = (unfinished / "log.txt").read_bytes()
    assert directory.table("rounds").num_rows == 1  # type: ignore[union-attr]
    assert "left out" in directory.notes[0]
    assert (unfinished / "log.txt").read_bytes() == log  # a reader does not write
    with pytest.raises(FedKeepError, match="finish or repeat"):
        load_run(unfinished)


def test_removed_checksums_of_an_unfinished_run_can_be_made_again(unfinished, tmp_path):
    (unfinished / "sums.json").write_bytes(b"{")
    with pytest.raises(FedKeepError, match=r"remove sums\.json"):
        execute(CONFIG, unfinished)
    (unfinished / "sums.json").unlink()
    done = execute(CONFIG, unfinished)
    assert done.notes == ["went on from round 2"]
    assert_same_run(tmp_path / "whole", unfinished, states=False)
