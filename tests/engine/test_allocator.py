import subprocess
import sys

import pytest

ASKED_AGAIN = """
import resource, sys
import torch
from fedkeep.engine.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
for turn in range(3):
    before = faults()
    pieces = [torch.ones(2 << 20) for _ in range(40)]  # 8 MB each
    del pieces
    print(kept, faults() - before)
"""
PAGES = 40 * (8 << 20) // 4096


def asked_again(how: str) -> int:
    """Pages that the system had to give for memory that was freed a moment ago."""
    command = [sys.executable, "-c", ASKED_AGAIN, how]
    *_, last = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    kept, pages = last.split()
    if kept == "False":
        pytest.skip("another allocator than glibc's")
    return int(pages)


def test_freed_memory_is_kept():
    assert asked_again("keep") < PAGES // 100


def test_without_it_every_page_is_asked_for_again():
    assert asked_again("leave") > PAGES // 2
