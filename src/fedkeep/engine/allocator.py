"""What a process that trains asks of the C library's allocator."""

from __future__ import annotations

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
NEVER = -1
LARGEST = 32 << 20  # the most that glibc takes for M_MMAP_THRESHOLD


def keep_freed_memory() -> bool:
    """Have the allocator keep what is freed, in pieces of up to 32 MB, for the next use; says whether it agreed.

    Otherwise glibc gives a step's tensors back to the system and the next step asks for them again, page by page,
    each cleared first. What is kept was needed a moment ago and will be needed again.
    """
    with suppress(OSError, AttributeError):  # another C library has its own ways
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, NEVER))
    return False
