"""The few error types. Each message says what was wrong with its value, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedKeepError(Exception):
    """Anything FedKeep refuses to do; the command line prints it and leaves with exit code 2."""


class ConfigError(FedKeepError, ValueError):
    """An option, a method name or a combination that makes no sense."""


class DataError(FedKeepError, ValueError):
    """Data that is missing, corrupt, or does not fit what was asked of it."""


class RunError(FedKeepError, RuntimeError):
    """A run that cannot go on, or a run directory that cannot be used."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the nearest known one, or the list of all.

    >>> nearest("fedagv", ["fedavg", "fedprox"])
    'did you mean "fedavg"?'
    >>> nearest("zzz", ["fedavg", "fedprox"])
    'known: fedavg, fedprox'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f'did you mean "{close[0]}"?' if close else "known: " + ", ".join(names)
