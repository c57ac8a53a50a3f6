"""Client memories: what a dictionary would hold, whatever the size of the cache, the undoing and the killing."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedkeep.errors import RunError
from fedkeep.memories import Memories, size_of

CLIENTS = st.integers(0, 6)


def memory(value: float, size: int = 3) -> dict:
    return {"scaffold": {"c": {"w": torch.full((size,), float(value))}}, "events": {}}


def value(found) -> float:
    tensor = found["scaffold"]["c"]["w"]
    assert found["events"] == {} and bool((tensor == tensor[0]).all())
    return float(tensor[0])


class AsADictionary(RuleBasedStateMachine):
    """Rounds, undone rounds, checkpoints, and processes that vanish, against plain dictionaries."""

    @initialize(limit=st.sampled_from([None, 0, 2500, 10**6]))
    def start(self, limit):
        self.folder = Path(tempfile.mkdtemp())
        self.memories, self.limit = Memories(limit, self.folder), limit
        self.now: dict[int, float] = {}
        self.before: dict[int, float] = {}
        self.round = 0
        self.saved: list[tuple[int, dict[int, float], dict]] = []  # the last two checkpoints
        self.begin()

    @rule()
    def begin(self):
        self.round += 1
        self.before = dict(self.now)
        self.memories.begin(self.round)

    @rule(client=CLIENTS, number=st.integers(0, 99))
    def put(self, client, number):
        self.now[client] = float(number)
        self.memories[client] = memory(number)

    @rule(client=CLIENTS)
    def get(self, client):
        found = self.memories.get(client)
        assert (None if found is None else value(found)) == self.now.get(client)

    @rule(client=CLIENTS)
    def delete(self, client):
        if client in self.now:
            del self.now[client], self.memories[client]

    @rule()
    def undo(self):
        self.now = dict(self.before)
        self.memories.undo()

    @rule()
    def checkpoint(self):
        state = self.memories.save()
        self.memories.saved(self.round)
        self.saved = [*self.saved, (self.round, dict(self.now), state)][-2:]
        self.begin()

    @rule(which=st.integers(0, 1))
    def vanish_and_go_on(self, which):
        """The process is gone; a new one goes on from one of the last two checkpoints."""
        if which < len(self.saved):
            del self.saved[which + 1 :]
            self.round, known, state = self.saved[which]
            self.now = dict(known)
            self.memories = Memories(self.limit, self.folder)
            self.memories.load(state, self.round)
            self.begin()

    @invariant()
    def the_same_clients_and_within_the_limit(self):
        assert dict.fromkeys(self.memories) == dict.fromkeys(self.now)
        assert len(self.memories) == len(self.now) and all(k in self.memories for k in self.now)
        assert self.limit is None or self.memories.held <= self.limit
        held = sum(size for _, size in self.memories._cache.values())
        assert self.memories.held == held

    def teardown(self):
        for client, number in self.now.items():
            assert value(self.memories[client]) == number
        shutil.rmtree(self.folder)


AsADictionary.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_it_is_a_dictionary = AsADictionary.TestCase


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.tensors"))


def test_a_checkpoint_writes_only_what_has_changed(tmp_path):
    memories = Memories(None, tmp_path)
    for number in range(1, 5):
        memories.begin(number)
        memories[number] = memory(number)
        memories[0] = memory(10 + number)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tensors")}
        memories.save()
        memories.saved(number)
        kept = [path for path in before if path.exists()]
        assert all(path.stat().st_mtime_ns == before[path] for path in kept)
    # of client 0: the newest, and the one that the checkpoint before needs
    assert files(tmp_path) == [f"0-{r:08d}.tensors" for r in (3, 4)] + [f"{k}-{k:08d}.tensors" for k in (1, 2, 3, 4)]


def test_without_a_folder_nothing_is_written_until_the_cache_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    memories = Memories(limit=3 * size_of(memory(0)))
    for client in range(3):
        memories[client] = memory(client)
    assert list(tmp_path.iterdir()) == []
    for client in range(3, 9):
        memories[client] = memory(client)
    assert [value(memories[client]) for client in range(9)] == list(range(9))
    assert len(list(tmp_path.iterdir())) == 1
    del memories
    assert list(tmp_path.iterdir()) == []  # it goes with its owner


def test_what_replaces_an_unsaved_memory_leaves_no_file(tmp_path):
    memories = Memories(0, tmp_path)
    for number in range(1, 20):
        memories.begin(number)
        memories[7] = memory(number)
    assert len(files(tmp_path)) == 2  # this round's, and the one to go back to


def test_a_view_does_not_keep_its_whole_alive():
    whole = torch.zeros(1000, 1000)
    memories = Memories(None)
    memories[0] = {"m": {"c": {"w": whole[3]}}}
    assert memories[0]["m"]["c"]["w"].untyped_storage().nbytes() == 4000


def test_the_longest_unused_goes_first(tmp_path):
    memories = Memories(2 * size_of(memory(0)), tmp_path)
    memories[0], memories[1] = memory(0), memory(1)
    _ = memories[0]
    memories[2] = memory(2)
    assert files(tmp_path) == ["1-00000000.tensors"]


def test_a_full_disk_is_said_and_the_round_can_be_undone(tmp_path, monkeypatch):
    memories = Memories(0, tmp_path)
    memories.begin(1)
    memories[1] = memory(1)
    memories.begin(2)
    real, wrote = open, []

    def full(path, mode="r", *more, **options):
        if "w" in mode and "tensors" in str(path):
            wrote.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, mode, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full)
        with pytest.raises(RunError, match="No space left on device"):
            memories[1] = memory(5)
    assert wrote
    memories.undo()
    assert value(memories[1]) == 1 and not list(tmp_path.rglob("*.tmp"))


def test_what_is_loaded_is_not_written_over(tmp_path):
    first = Memories(0, tmp_path)
    first.begin(4)
    first[1] = memory(1)
    state = first.save()
    second = Memories(0, tmp_path)
    second.load(state, 4)
    second[1] = memory(2)
    second.undo()
    assert value(second[1]) == 1


@pytest.mark.parametrize("what", ["flip", "cut", "gone"])
def test_damage_is_never_read(tmp_path, what):
    memories = Memories(0, tmp_path)
    memories[3] = memory(1)
    state = memories.save()
    [path] = tmp_path.rglob("*.tensors")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if what == "gone":
        path.unlink()
    else:
        path.write_bytes(data if what == "flip" else data[:-5])
    with pytest.raises(RunError, match="client 3 remembers is missing or damaged"):
        _ = memories[3]
    other = Memories(0, tmp_path)
    with pytest.raises(RunError, match="client 3 remembers is missing or damaged"):
        other.load(state, 0)
    assert len(other) == 0  # nothing changed


KILLED = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
import torch
from fedkeep import packing
from fedkeep.files import write_whole
from fedkeep.memories import Memories
folder = Path(sys.argv[1])
memories = Memories(4000, folder / "memories")
last = 0
if (folder / "state").exists():
    state, meta = packing.from_bytes((folder / "state").read_bytes(), "state")
    last = meta["round"]
    memories.load(state, last)
    for client in range(8):  # every client's memory is what the checkpoint says: the last round that trained it
        wanted = max((r for r in range(1, last + 1) if r % (client + 1) == 0), default=None)
        found = memories.get(client)
        assert (None if found is None else int(found["m"]["c"]["w"][0])) == wanted, (client, last)
print(last, flush=True)
for number in range(last + 1, last + 10_000):
    memories.begin(number)
    for client in range(8):
        if number % (client + 1) == 0:
            memories[client] = {{"m": {{"c": {{"w": torch.full((200,), float(number))}}}}}}
    if number % 3 == 0:
        write_whole(folder / "state", packing.to_bytes(memories.save(), {{"round": number}}))
        memories.saved(number)
"""


def test_killed_at_random_moments(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(KILLED.format(path=sys.path))
    reached = []
    for life in range(6):
        process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the memories were not as the checkpoint says"
        reached.append(int(line))
        time.sleep(0.05 + 0.037 * life)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
    assert reached == sorted(reached) and reached[-1] > 0
