"""The memory of freed tensors: it is reused, measured by page faults, and returned, measured by the resident size."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")

SCRIPT = """
import resource
import torch
from purerl.system.allocator import disable_malloc_trim
{first}
for _ in range(20):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


GAPS = """
import torch
from pathlib import Path
from purerl.system.allocator import disable_malloc_trim, release_freed
disable_malloc_trim()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * {page}

freed, kept = [], []
for _ in range({count}):
    freed.append(torch.ones(2**20))
    kept.append(torch.ones(2**12))
freed.clear()
before = resident()
release_freed()
print(before - resident())
assert all(bool((tensor == 1).all()) for tensor in kept)
"""


def run(script: str, **variables: str) -> int:
    """The number that `script` prints, in a process with default settings of the allocator and `variables`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
    return int(process.stdout)


def count_page_faults(first: str, **variables: str) -> int:
    return run(SCRIPT.format(first=first), **variables)


def released(count: int, **variables: str) -> int:
    """Bytes that `release_freed` returns of `count` tensors of 4 MiB, with small ones between them that are in use."""
    return run(GAPS.format(count=count, page=os.sysconf("SC_PAGE_SIZE")), **variables)


@pytest.mark.slow
def test_memory_of_freed_tensors_is_reused():
    default, reused = count_page_faults(""), count_page_faults("disable_malloc_trim()")
    assert default > 1000, "by default each tensor must cause page faults, or this test has no meaning"
    assert reused < default / 10


@pytest.mark.slow
def test_environment_variables_take_precedence():
    threshold = {"MALLOC_TRIM_THRESHOLD_": "65536"}
    assert count_page_faults("disable_malloc_trim()", **threshold) > 1000


@pytest.mark.slow
def test_gaps_between_tensors_are_returned_at_the_end_of_a_phase():
    assert released(64) > 0.9 * 64 * 2**22


@pytest.mark.slow
def test_little_memory_is_kept_for_the_next_phase():
    assert abs(released(16)) < 2**20


@pytest.mark.slow
def test_nothing_is_returned_if_the_user_has_set_a_threshold():
    assert abs(released(64, MALLOC_MMAP_THRESHOLD_=str(2**30))) < 2**20
