"""Values with tensors on their way between the processes of a cluster.

A value becomes a few bytes and the buffers of its arrays and tensors, which stay apart so that they can lie in shared
memory: every process of a machine reads them where they are. Only for what our own processes send to each other.
"""

from __future__ import annotations

import io
import pickle
import warnings
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


def opened(value: Sealed, own: bool = False) -> Any:
    """Put a value together again: on the buffers as they are (never write into them), or on copies of its own."""
    data, buffers = value
    return pickle.loads(data, buffers=[np.array(buffer) if own else buffer for buffer in buffers])


class _Pickler(pickle.Pickler):
    """A tensor travels as the array that it is; the rest as usual."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor:
            return _tensor, (obj.detach().contiguous().numpy(),)
        return NotImplemented


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():  # it may be read-only: what is shared is never written into
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)
