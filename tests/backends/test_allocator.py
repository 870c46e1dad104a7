"""Reuse of the memory of freed tensors, measured by the number of page faults."""

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
from purerl.backends.hf.training.allocator import disable_malloc_trim
{first}
for _ in range(20):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_page_faults(first: str, **variables: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", SCRIPT.format(first=first)]
    process = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
    return int(process.stdout)


@pytest.mark.slow
def test_memory_of_freed_tensors_is_reused():
    default, reused = count_page_faults(""), count_page_faults("disable_malloc_trim()")
    assert default > 1000, "by default each tensor must cause page faults, or this test has no meaning"
    assert reused < default / 10


@pytest.mark.slow
def test_environment_variables_take_precedence():
    threshold = {"MALLOC_TRIM_THRESHOLD_": "65536"}
    assert count_page_faults("disable_malloc_trim()", **threshold) > 1000
