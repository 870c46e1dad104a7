"""Processes below a process, by /proc, and waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["DEADLINE", "children", "descendants", "is_alive", "wait_until"]

DEADLINE = 240.0  # seconds: for a hang; nothing else takes so long on a busy machine


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true; an AssertionError after `DEADLINE`."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def children(process: int) -> list[int]:
    """The process ids of the children of all threads of `process`."""
    files = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def descendants(process: int) -> list[int]:
    """The children of `process`, theirs, and so on."""
    own = children(process)
    return own + [other for child in own for other in descendants(child)]


def is_alive(process: int) -> bool:
    """Whether `process` has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
