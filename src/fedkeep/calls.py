"""The small notation `name(key=value, ...)` used for methods, partitions and options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedkeep.errors import ConfigError

_CALL = re.compile(r"\s*([A-Za-z0-9_.:/-]+)\s*(?:\(([^()]*)\))?\s*")


def parse_call(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Take `name(key=value, ...)` apart.

    >>> parse_call("dirichlet(alpha=0.1)", "partition")
    ('dirichlet', {'alpha': 0.1})
    >>> parse_call("iid", "partition")
    ('iid', {})
    """
    match = _CALL.fullmatch(text)
    if not match:
        raise ConfigError(f'{what} "{text}" is not of the form name or name(key=value, ...); mend the brackets')
    name, inside = match.groups()
    options: dict[str, Any] = {}
    for item in (inside or "").split(","):
        if not item.strip():
            continue
        key, equals, value = item.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise ConfigError(f'{what} "{text}": "{item.strip()}" is not of the form key=value')
        if key.strip() in options:
            raise ConfigError(f'{what} "{text}": {key.strip()} is given twice; give it once')
        options[key.strip()] = parse_value(value.strip())
    return name, options


def parse_value(text: str) -> Any:
    """A number, true/false, none, or the text itself.

    >>> [parse_value(t) for t in ("3", "1e5", "true", "none", "2:7")]
    [3, 100000.0, True, None, '2:7']
    """
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def format_value(value: Any) -> str:
    """The shortest text that reads as the same value (a whole number stands for a float where one is wanted).

    >>> [format_value(v) for v in (0.1, 1e5, 1e-5, 1.0, True, None, "2:7")]
    ['0.1', '100000', '1e-5', '1', 'true', 'none', '2:7']
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        short = re.sub(r"e([+-])0*", lambda match: "e" + match[1].strip("+"), f"{value:g}")
        return short if float(short) == value else repr(value)
    return str(value)


def format_call(name: str, options: Mapping[str, Any]) -> str:
    """The text of a call.

    >>> format_call("fedprox", {"mu": 0.01})
    'fedprox(mu=0.01)'
    """
    inside = ", ".join(f"{key}={format_value(value)}" for key, value in options.items())
    return f"{name}({inside})" if inside else name
