"""A client's memory on disk: whole or not at all, and never trusted when damaged."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkeep.errors import ConfigError, RunError
from fedkeep.store import Store

MEMORY = {"scaffold": {"c": {"w": torch.arange(4.0)}}, "fedprox": {}}


@pytest.fixture
def store(tmp_path):
    return Store.of(tmp_path, "experiment1", "client-0")


def test_an_entry_survives(store):
    store.put("memory-00000001", MEMORY, {"round": 1})
    found, meta = Store(store.path).read("memory-00000001")
    assert meta == {"round": 1} and found.keys() == MEMORY.keys() and found["fedprox"] == {}
    assert torch.equal(found["scaffold"]["c"]["w"], torch.arange(4.0))


def test_it_behaves_like_a_dictionary(store):
    assert store.keys() == [] and store.get("a") is None and "a" not in store
    for key in ("b", "a"):
        store.put(key, MEMORY)
    store.put("a", {"other": {"x": torch.ones(1)}})
    assert list(store) == ["a", "b"] and "a" in store
    assert set(store.get("a")) == {"other"}
    store.delete("a")
    store.delete("a")
    assert store.keys() == ["b"]


def test_clients_and_experiments_are_apart(tmp_path):
    for experiment in ("e1", "e2"):
        for client in ("c1", "c2"):
            Store.of(tmp_path, experiment, client).put("x", {"id": {"n": torch.tensor([hash(client + experiment)])}})
    values = {int(Store.of(tmp_path, e, c).get("x")["id"]["n"]) for e in ("e1", "e2") for c in ("c1", "c2")}
    assert len(values) == 4


@pytest.mark.parametrize("key", ["", "../x", "a/b", ".hidden", "x" * 200, "a b", "ä"])
def test_names_cannot_leave_the_store(tmp_path, key):
    with pytest.raises(ConfigError):
        Store.of(tmp_path, "e", "c").put(key, {})
    with pytest.raises(ConfigError):
        Store.of(tmp_path, key, "c")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_is_noticed(store, place, change):
    store.put("m", MEMORY)
    path = store.path / "m.tensors"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= change
    path.write_bytes(bytes(data))
    assert store.get("m") is None and store.notes and not path.exists()
    assert store.keys() == []


@pytest.mark.parametrize("data", [b"", b"fedkeep1", b"x" * 500])
def test_cut_or_foreign_files_are_set_aside(store, data):
    store.put("m", MEMORY)
    (store.path / "m.tensors").write_bytes(data)
    assert store.get("m") is None
    assert any(name.startswith("damaged-") for name in os.listdir(store.path))
    store.put("m", MEMORY)
    assert store.get("m") is not None


def test_a_kill_in_the_middle_leaves_the_old_entry(store):
    store.put("m", MEMORY)
    script = f"""
import os, sys, torch
sys.path[:0] = {sys.path!r}
from pathlib import Path
import fedkeep.files as files
from fedkeep.store import Store
os.replace = lambda *_: os.kill(os.getpid(), 9)
Store(Path({str(store.path)!r})).put("m", {{"new": {{"w": torch.zeros(1000)}}}})
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=120)
    assert done.returncode == -9
    assert set(store.get("m")) == {"scaffold", "fedprox"} and store.keys() == ["m"]


def test_a_store_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made"):
        Store.of(tmp_path / "file", "e", "c").put("m", MEMORY)


def test_nobody_else_can_read_it(store):
    store.put("m", MEMORY)
    assert store.path.stat().st_mode & 0o077 == 0
