"""What a process does with the memory that tensors leave behind, told from how often it touches a fresh page."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")

TENSORS = """
import resource
import torch
from purerl.backends.hf.allocator import keep_memory
{first}
for _ in range(20):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _fresh_pages(first: str, **environment: str) -> int:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", TENSORS.format(first=first)]
    done = subprocess.run(command, env=own | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_tensors_leave_behind_is_used_again():
    fetched, kept = _fresh_pages(""), _fresh_pages("keep_memory()")
    assert fetched > 1000, "each tensor's pages are fetched anew, or this test shows nothing"
    assert kept < fetched / 10


def test_who_sets_it_otherwise_is_left_alone():
    threshold = {"MALLOC_TRIM_THRESHOLD_": "65536"}
    assert _fresh_pages("keep_memory()", **threshold) > 1000
