import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")

START = """
import ctypes, resource, sys
import torch
from fedkeep.engine.allocator import keep_freed_memory

PR_SET_THP_DISABLE = 41  # prctl.h: pages of one size, wherever this runs
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
"""
ASKED_AGAIN = """
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for turn in range(int(sys.argv[2])):
    before = faults()
    pieces = [torch.ones(2 << 20) for _ in range(40)]  # 8 MB each
    del pieces
    print(faults() - before)
"""
GIVEN_BACK = """
def held():
    return int(open("/proc/self/statm").read().split()[1])

pieces = [torch.ones(2 << 20) for _ in range(40)]
most = held()
while pieces:
    pieces.pop()  # the last first: it lies at the end of the heap, where memory can be given back
print(most - held())
"""
PAGES = 40 * (8 << 20) // 4096


def pages(script: str, *how: str) -> int:
    """What a script says in the end."""
    command = [sys.executable, "-c", START + script, *how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def test_freed_memory_is_kept():
    assert pages(ASKED_AGAIN, "keep", "8") < PAGES // 100
    assert pages(GIVEN_BACK, "keep") < PAGES // 100


def test_without_it_every_page_is_asked_for_again():
    assert pages(ASKED_AGAIN, "leave", "2") > PAGES // 2
    assert pages(GIVEN_BACK, "leave") > PAGES // 2
