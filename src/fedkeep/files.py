"""Files written whole or not at all, with checksums."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedkeep.errors import RunError

SUMS = "sums.json"


def write_whole(path: Path, *parts: bytes, durable: bool = True) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one.

    Not `durable`: after a power cut it may be torn, until `sync` is called for it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _put(temporary, *parts, durable=durable)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from None


def _put(path: Path, *parts: bytes, durable: bool = True) -> None:
    with open(path, "wb") as handle:
        for part in parts:
            handle.write(part)
        handle.flush()
        if durable:
            os.fsync(handle.fileno())


def sync(path: Path) -> None:
    """Make a file that was written earlier survive a power cut."""
    try:
        handle = os.open(path, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> RunError:
    """What is said where the disk refuses."""
    return RunError(f"{path}: cannot be written ({error.strerror or error}); free some space or choose another --out")


def digest(data: bytes) -> str:
    """A checksum of bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files with their checksums, whole or not at all."""
    write_folder_as_it_is(path, {**files, SUMS: _sealed({name: digest(data) for name, data in files.items()})})


def write_folder_as_it_is(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for name, data in files.items():
            _put(temporary / name, data)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the file system can."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Remember the checksums of some files of a folder, and the checksum of these checksums."""
    write_whole(folder / SUMS, _sealed(sums))
    sync_folder(folder)


def _sealed(sums: Mapping[str, str]) -> bytes:
    return json.dumps({**sums, SUMS: digest(json.dumps(dict(sums)).encode())}, indent=1).encode()


def read_sums(folder: Path) -> dict[str, str] | None:
    """The checksums of a folder, None where there are none or they are damaged."""
    try:
        sums: Any = json.loads((folder / SUMS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(sums, dict):
        return None
    seal = sums.pop(SUMS, None)
    return sums if seal == digest(json.dumps(sums).encode()) else None


def read_checked(folder: Path, name: str, sums: Mapping[str, str]) -> bytes | None:
    """A file's bytes if they match their checksum, else None."""
    try:
        data = (folder / name).read_bytes()
    except OSError:
        return None
    return data if sums.get(name) == digest(data) else None


def set_aside(path: Path, folder: Path) -> None:
    """Move something damaged to `folder`, as damaged-NAME: out of the way, never deleted."""
    number, free = 1, folder / f"damaged-{path.name}"
    while free.exists():
        number += 1
        free = folder / f"damaged-{path.name}-{number}"
    try:
        os.rename(path, free)
    except OSError as error:
        raise cannot_write(free, error) from None


_HELD: set[int] = set()


def take_lock(path: Path) -> int:
    """Lock a file until `drop_lock` or the end of this process; BlockingIOError where another holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    _HELD.add(lock)
    return lock


def drop_lock(lock: int) -> None:
    if lock in _HELD:
        _HELD.remove(lock)
        os.close(lock)


def _forget_locks() -> None:
    """A forked worker must not keep a lock alive when its parent was killed."""
    for lock in list(_HELD):
        drop_lock(lock)


os.register_at_fork(after_in_child=_forget_locks)
