"""Finding a data set's files under the data root."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from fedkeep.errors import DataError


@dataclass(frozen=True)
class Layout:
    """Files that belong together. Folders are tried in order, relative to the data root; "" is the root itself.

    A file name may hold a * and may also be there with .gz at its end.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]

    def missing(self, folder: Path) -> list[str]:
        """The files that are not in `folder`."""
        return [file for file in self.files if not matching(folder, file)]

    def describe(self) -> str:
        """For a message: where to put which files."""
        return f"{self.folders[0] or '.'}/ with " + ", ".join(self.files)


def matching(folder: Path, file: str) -> list[Path]:
    """The paths that a file name of a layout stands for, plain before .gz, sorted."""
    plain = sorted(path for path in folder.glob(file) if path.is_file())
    return plain or sorted(path for path in folder.glob(file + ".gz") if path.is_file())


def find(root: Path, layouts: tuple[Layout, ...]) -> tuple[Layout, Path] | None:
    """The first layout with a folder that has all its files, and that folder."""
    for layout in layouts:
        for folder in layout.folders:
            if (root / folder).is_dir() and not layout.missing(root / folder):
                return layout, root / folder
    return None


def located(name: str, root: Path | None, layouts: tuple[Layout, ...], remedy: str) -> tuple[Layout, Path]:
    """The files of a data set, or an error that says what is expected where and how to get it."""
    expected = "; or ".join(layout.describe() for layout in layouts)
    if root is None:
        raise DataError(f"{name}: needs a data root, none was given. Expected under it: {expected}. {remedy}")
    if not root.is_dir():
        raise DataError(f"{name}: data root {root} is not a folder. Expected under it: {expected}. {remedy}")
    if (found := find(root, layouts)) is not None:
        return found
    places = [(layout.missing(root / folder), layout, folder) for layout in layouts for folder in layout.folders]
    partly = [place for place in places if len(place[0]) < len(place[1].files)]
    if partly:
        lost, _, folder = min(partly, key=lambda place: len(place[0]))
        raise DataError(f"{name}: {root / folder} lacks {', '.join(lost)}. {remedy}")
    raise DataError(f"{name}: no files under {root}. Expected there: {expected}. {remedy}")


def read_bytes(path: Path) -> bytes:
    """A file's content, unpacked if its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); the file is damaged, fetch it again") from error
