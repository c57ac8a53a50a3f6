"""Runs one kernel on tensors."""

import ctypes
from collections.abc import Callable

from torch import Tensor

from fedkeep.native.emit import Program


def run(write: Callable[..., None], *tensors: Tensor, times: int = 1, advance: dict[int, int] | None = None) -> None:
    """write(kernel, pointer of each tensor), compiled and run."""
    program = Program()
    with program.kernel() as kernel:
        write(kernel, *(kernel.pointer(slot, 0) for slot in range(len(tensors))))
    places = [tensor.data_ptr() for tensor in tensors]
    program.compile(advance or {})((ctypes.c_void_p * len(places))(*places), times)
