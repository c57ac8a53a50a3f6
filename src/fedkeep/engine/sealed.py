"""Values with tensors on their way between the processes of a cluster.

A value becomes a few bytes and the buffers of its arrays and tensors, which stay apart so that they can lie in shared
memory: every process of a machine reads them where they are. Only for what our own processes send to each other.
"""

from __future__ import annotations

import io
import pickle
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

Sealed = tuple[bytes, list[np.ndarray]]
"""The bytes of a value, and its buffers."""


def sealed(value: Any) -> Sealed:
    """Take a value apart."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return stream.getvalue(), [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]


def opened(value: Sealed, own: bool = False, device: str = "cpu") -> Any:
    """Put a value together again: on the buffers as they are (never write into them), or on copies of its own.

    On another device than the CPU, tensors are copies there.
    """
    data, buffers = value
    stream = io.BytesIO(data)
    return _Unpickler(stream, device, [np.array(buffer) if own else buffer for buffer in buffers]).load()


class _Pickler(pickle.Pickler):
    """A tensor travels as the array that it is; the rest as usual."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor:
            return _tensor, (obj.detach().cpu().contiguous().numpy(),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, device: str, buffers: list[np.ndarray]) -> None:
        super().__init__(stream, buffers=buffers)
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return partial(_tensor, device=self._device) if found is _tensor else found


def _tensor(array: np.ndarray, device: str = "cpu") -> Tensor:
    with warnings.catch_warnings():  # it may be read-only: what is shared is never written into
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array).to(device)
