"""Reading pickles without running what is in them: numpy arrays and plain containers only."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedkeep.data.layout import read_bytes
from fedkeep.errors import DataError


class _Refused(pickle.UnpicklingError):
    """The pickle asks for something that is neither an array nor a plain container."""


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


class _Type:
    """Stands in for numpy.dtype: a number type and its byte order."""

    def __init__(self, code: str | bytes, align: Any = False, copy: Any = False) -> None:
        self.code, self.order = _text(code), "="
        if not re.fullmatch(r"[|<>=]?[biuf][1248]", self.code):
            raise _Refused(f"it holds an array of type {self.code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1]).replace("|", "=")

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code.lstrip("|<>="))


class _Array:
    """Stands in for numpy.ndarray while its state is read."""

    def __init__(self, subtype: Any, shape: Any, kind: Any) -> None:
        self.value = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, data = state
        self.value = np.frombuffer(data, dtype=kind.numpy()).reshape(shape, order="F" if by_columns else "C")


def _from_buffer(buffer: Any, kind: _Type, shape: tuple[int, ...], order: Any) -> _Array:
    """How protocol 5 stores an array."""
    array = _Array(None, None, None)
    array.__setstate__((1, shape, kind, _text(order) == "F", buffer))
    return array


def _latin1(text: str, encoding: str) -> bytes:
    """How protocol 2 stores bytes."""
    if _text(encoding) != "latin1":
        raise _Refused(f"it holds text in the encoding {encoding!r}")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    return b""


ALLOWED = {
    "numpy.ndarray": "only ever handed on, never called",
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "_codecs.encode": _latin1,
    "builtins.bytes": _empty_bytes,
    "__builtin__.bytes": _empty_bytes,  # its name in protocol 2
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name not in ALLOWED:
            raise _Refused(f"it refers to {name}")
        return ALLOWED[name]


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file, its keys as text, its arrays (directly in it) as numpy arrays.

    Old pickles hold byte strings where newer ones hold text; both are accepted.
    """
    try:
        content = _Unpickler(io.BytesIO(read_bytes(path)), encoding="bytes").load()
    except _Refused as error:
        raise DataError(
            f"{path}: refused, {error}; only arrays of numbers and plain containers are read from a pickle, "
            "because anything else could run code. Fetch the official file again"
        ) from error
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path}: not a readable pickle ({error}); the file is damaged, fetch it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, not a dictionary; fetch the official file again")
    return {
        _text(key) if isinstance(key, bytes) else str(key): value.value if isinstance(value, _Array) else value
        for key, value in content.items()
    }
