"""What the command line says, and where: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

_shown: ContextVar[Console | None] = ContextVar("_shown", default=None)


def output() -> Console:
    """The console for results; made anew, so that it fits the terminal as it is now."""
    return Console(highlight=False)


def errors() -> Console:
    """The console for progress, notes and errors: that of the bar that is on the screen, if there is one."""
    return _shown.get() or Console(stderr=True, highlight=False)


@contextmanager
def on_screen(bar: Progress) -> Iterator[Progress]:
    """Show a progress bar; what is said meanwhile stands above it."""
    token = _shown.set(bar.console)
    try:
        with bar:
            yield bar
    finally:
        _shown.reset(token)


def say(console: Console, head: str, style: str, message: str) -> None:
    """One message with a coloured head; whatever it holds is printed as it is, never read as markup.

    In a terminal it is wrapped between words; in a file it stays one line, so that it can be searched for.
    """
    text = Text.assemble((head, style), message)
    console.print(text, soft_wrap=not console.is_terminal)


def error(message: object) -> None:
    """Say what was refused."""
    say(errors(), "error: ", "bold red", str(message))


def note(message: object) -> None:
    """Say what the user should know, in one line."""
    say(errors(), "note: ", "bold yellow", " ".join(str(message).split()))


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show what parts warn of as notes, each once."""
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            note(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def print_json(document: Any) -> None:
    """One JSON document on stdout; what is not a number is null."""
    print(json.dumps(plain(document), indent=1, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """A value as strict JSON has it.

    >>> plain({"a": float("nan"), "b": (1, 2.5)})
    {'a': None, 'b': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a number of numpy
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """A table in the house's look; columns named in `numbers` stand to the right."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def keep_whole(made: Table, most: int = 28) -> None:
    """Cells of the first column are not broken, unless one is longer than `most`; rather the other columns are."""
    made.columns[0].no_wrap = all(len(str(cell)) <= most for cell in made.columns[0].cells)


def size(count: float) -> str:
    """Bytes for people.

    >>> size(600632), size(12), size(3.2e9)
    ('0.60 MB', '12 B', '3.20 GB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale / 2:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(2.34), duration(75), duration(7260)
    ('2.3 s', '1 min 15 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
