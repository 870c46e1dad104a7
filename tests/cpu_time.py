"""The CPU time of another process. Tests compare it with that of a known task, so that the computer does not matter."""

from __future__ import annotations

import resource
import subprocess
import sys

__all__ = ["cpu_seconds"]


def cpu_seconds(*arguments: str, check: bool = True) -> float:
    """The CPU time of a process of Python, from its start to its exit. With `check`, its exit status must be 0."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=check)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
