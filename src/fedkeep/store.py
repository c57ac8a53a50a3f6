"""Nested tensors on disk by key: what clients remember, which survives a restart and a power cut.

The simulator keeps the memories of all clients with it (`memories.py`), a client of a deployment its own. Each entry
is one file, written whole or not at all, that begins with its checksum; an entry that was damaged is set aside and
counts as missing. No pickle.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkeep import packing
from fedkeep.errors import ConfigError, DataError, RunError
from fedkeep.files import set_aside, sync, write_whole

MAGIC = b"fedkeep1"
DIGEST = 32
SUFFIX = ".tensors"
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


def checked_key(key: str) -> str:
    """A key that is safe as the name of a file.

    >>> checked_key("memory-000003")
    'memory-000003'
    """
    if not KEY.fullmatch(key):
        raise ConfigError(f'"{key[:130]}" cannot name an entry of a store; use letters, digits, ".", "_" and "-"')
    return key


@dataclass(frozen=True)
class Store:
    """The entries of one folder: `get`, `put`, `delete`, `keys`; `notes` says what was damaged."""

    path: Path
    notes: list[str] = field(default_factory=list, compare=False)

    @staticmethod
    def of(root: Path, experiment: str, client: str) -> Store:
        """The store of one client in one experiment, below a folder that all of them share."""
        return Store(Path(root) / checked_key(experiment) / checked_key(client))

    def get(self, key: str) -> dict[str, Any] | None:
        """An entry, or None where there is none or it was damaged."""
        found = self.read(key)
        return found[0] if found else None

    def read(self, key: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """An entry and the plain values put with it."""
        path = self._file(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror}); check the disk and its permissions") from None
        head = len(MAGIC) + DIGEST
        if data[: len(MAGIC)] == MAGIC and data[len(MAGIC) : head] == _digest(data[head:]):
            try:
                return packing.from_bytes(data[head:], str(path))
            except DataError:
                pass
        set_aside(path, self.path)
        self.notes.append(f"{path}: damaged, set aside")
        return None

    def put(
        self, key: str, nested: Mapping[str, Any], meta: Mapping[str, Any] | None = None, durable: bool = True
    ) -> None:
        """Write an entry; after a kill at any moment there is the old one or the new one.

        Where many entries are written, `durable=False` and a `sync` of each at the end wait for the disk only once.
        """
        path = self._file(key)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be made ({error.strerror}); choose another store") from None
        data = packing.to_bytes(nested, meta)
        write_whole(path, MAGIC, _digest(data), data, durable=durable)

    def size(self, key: str) -> int | None:
        """The bytes of an entry on disk, None where there is none."""
        try:
            return self._file(key).stat().st_size
        except FileNotFoundError:
            return None

    def sync(self, key: str) -> None:
        """Make an entry survive a power cut."""
        sync(self._file(key))

    def delete(self, key: str) -> None:
        """Remove an entry if it is there."""
        self._file(key).unlink(missing_ok=True)

    def keys(self) -> list[str]:
        """The keys of all entries, sorted."""
        if not self.path.is_dir():
            return []
        names = (name for name in os.listdir(self.path) if name.endswith(SUFFIX) and not name.startswith("."))
        return sorted(name.removesuffix(SUFFIX) for name in names if not name.startswith("damaged-"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: str) -> bool:
        return self._file(key).exists()

    def _file(self, key: str) -> Path:
        return self.path / f"{checked_key(key)}{SUFFIX}"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()
