"""What clients remember between their rounds: some of it here, the rest in a store on disk.

Nothing here is proportional to the population. Of every client that was ever trained two numbers stay in memory; its
tensors are in a cache of bounded size, or in the store, one file each.

A memory is kept by the round that made it. So a round that is interrupted can be undone, and a checkpoint needs to
write only what has changed since the one before it: the rest it names by round.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkeep.errors import RunError
from fedkeep.store import Store
from fedkeep.tree import Slots

Memory = dict[str, Slots]
"""What one client keeps between its rounds: slots by the name of the mechanism."""

Version = tuple[int, int]
"""A client and the round that made its memory."""

FOLDERS = 256  # a folder of a million files is slow on some disks
OVERHEAD = 1000  # bytes that a small tensor costs beside its numbers
READ_AT_START = 10**9  # bytes of memories that are compared with their checksums when a run goes on


class Memories(MutableMapping[int, Memory]):
    """The memories of all clients that were ever trained, by client.

    limit: bytes of them held here at a time (None: all); what is more, longest unused, goes to the store.
    folder: where the store is; None makes one among the temporary files when it is needed, and removes it at the end.

    >>> memories = Memories(limit=0)
    >>> memories[7] = {"scaffold": {"c": {"w": torch.ones(2)}}}
    >>> memories.held, memories[7]["scaffold"]["c"]["w"].tolist()
    (0, [1.0, 1.0])
    """

    def __init__(self, limit: int | None = None, folder: Path | None = None) -> None:
        self.limit, self._folder, self._temporary = limit, folder, False
        self.held = 0  # bytes of the memories that are here
        self.round = 0  # the round whose memories are being made
        self._current: dict[int, int] = {}  # the round of each client's memory
        self._cache: OrderedDict[Version, tuple[Memory, int]] = OrderedDict()  # longest unused first
        self._unsaved: set[Version] = set()  # not in the store
        self._unsynced: list[Version] = []  # in the store, but not safe from a power cut
        self._undo: dict[int, int | None] = {}  # what `_current` was before this round
        self._saved = -1  # the round of the last checkpoint
        self._replaced: list[Version] = []  # since the last checkpoint, which needs them
        self._expiring: list[Version] = []  # needed by the checkpoint before the last

    # -- a mapping

    def __getitem__(self, client: int) -> Memory:
        version = (client, self._current[client])
        if version in self._cache:
            self._cache.move_to_end(version)
            return self._cache[version][0]
        store, key = self._place(version)
        memory = store.get(key)
        if memory is None:
            raise self._lost(version)
        self._hold(version, memory)
        return memory

    def __setitem__(self, client: int, memory: Memory) -> None:
        version = (client, self.round)
        self._undo.setdefault(client, self._current.get(client))
        if self._current.get(client) == self.round:
            self._drop(version)
        self._current[client] = self.round
        self._unsaved.add(version)
        self._hold(version, _own(memory))

    def __delitem__(self, client: int) -> None:
        made = self._current.pop(client)
        if made == self.round:
            self._drop((client, made))
        self._undo.setdefault(client, made)

    def __iter__(self) -> Iterator[int]:
        return iter(self._current)

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, client: object) -> bool:
        return client in self._current

    # -- rounds

    def begin(self, round: int) -> None:
        """A new round begins: what the last one replaced is not needed any more."""
        self._settle()
        self.round = round

    def _settle(self) -> None:
        for client, old in self._undo.items():
            if old is None or old == self._current.get(client):
                continue
            if old <= self._saved:
                self._replaced.append((client, old))
                self._forget((client, old))
            else:
                self._drop((client, old))
        self._undo.clear()

    def undo(self) -> None:
        """Back to where `begin` was called."""
        while self._undo:
            client, old = next(iter(self._undo.items()))
            self._drop((client, self.round))
            if old is None:
                self._current.pop(client, None)
            else:
                self._current[client] = old
            del self._undo[client]

    # -- checkpoints

    def at(self, folder: Path) -> None:
        """Keep the store here."""
        assert not self._current, "memories move only before there are any"
        self._folder = folder

    def save(self) -> dict[str, Tensor]:
        """Write what has changed since the last checkpoint; returns what `load` needs, two numbers for each client."""
        self._settle()
        for version in sorted(self._unsaved):
            self._write(version)
        for version in self._unsynced:
            store, key = self._place(version)
            if key in store:
                store.sync(key)
        self._unsynced.clear()
        clients = sorted(self._current)
        return {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "rounds": torch.tensor([self._current[client] for client in clients], dtype=torch.int64),
        }

    def saved(self, round: int) -> None:
        """The checkpoint of a round stands: what only the one before the last needed goes."""
        for version in self._expiring:
            self._remove(version)
        self._expiring, self._replaced, self._saved = self._replaced, [], round

    def load(self, saved: Mapping[str, Tensor], round: int) -> None:
        """Put things where `save` found them; memories that were made later do not count any more.

        Refused, and nothing changed, if one of them is not there. They are also read and compared with their
        checksums, as long as they are few; of more, damage is found when they are needed.
        """
        pairs = zip(saved["clients"].tolist(), saved["rounds"].tolist(), strict=True)
        current = {int(client): int(made) for client, made in pairs}
        read = 0
        for version in current.items():
            store, key = self._place(version)
            size = store.size(key)
            read += size or 0
            if size is None or (read <= READ_AT_START and store.get(key) is None):
                raise self._lost(version)
        for past in (self._cache, self._unsaved, self._unsynced, self._undo, self._replaced, self._expiring):
            past.clear()
        self._current, self.held, self.round, self._saved = current, 0, round + 1, round

    def _lost(self, version: Version) -> RunError:
        store, key = self._place(version)
        return RunError(
            f"{store.path / key}: what client {version[0]} remembers is missing or damaged; run the same command again "
            "to go back to an earlier checkpoint, or repeat the run"
        )

    # -- here and on disk

    def _hold(self, version: Version, memory: Memory) -> None:
        size = size_of(memory)
        self._cache[version] = memory, size
        self.held += size
        while self.limit is not None and self.held > self.limit and self._cache:
            oldest = next(iter(self._cache))
            if oldest in self._unsaved:
                self._write(oldest)
            self._forget(oldest)

    def _forget(self, version: Version) -> None:
        """Not here any more."""
        if version in self._cache:
            self.held -= self._cache.pop(version)[1]

    def _drop(self, version: Version) -> None:
        """Neither here nor on disk any more."""
        self._forget(version)
        if version in self._unsaved:
            self._unsaved.discard(version)
        elif self._folder is not None:
            self._remove(version)

    def _write(self, version: Version) -> None:
        store, key = self._place(version)
        store.put(key, self._cache[version][0], durable=False)
        self._unsaved.discard(version)
        if not self._temporary:
            self._unsynced.append(version)

    def _remove(self, version: Version) -> None:
        store, key = self._place(version)
        store.delete(key)

    def _place(self, version: Version) -> tuple[Store, str]:
        if self._folder is None:
            self._folder, self._temporary = Path(tempfile.mkdtemp(prefix="fedkeep-memories-")), True
            weakref.finalize(self, shutil.rmtree, self._folder, True)
        client, round = version
        return Store(self._folder / f"{client % FOLDERS:02x}"), f"{client}-{round:08d}"


def size_of(nested: Mapping[str, Any]) -> int:
    """About how many bytes a nesting of tensors takes."""
    return sum(t.nbytes + OVERHEAD if isinstance(t, Tensor) else size_of(t) for t in nested.values())


def _own(nested: Any) -> Any:
    """The same tensors, each with storage that holds nothing else."""
    if not isinstance(nested, Tensor):
        return {key: _own(value) for key, value in nested.items()}
    shared = nested.untyped_storage().nbytes() > nested.nbytes
    return nested.clone() if shared else nested
