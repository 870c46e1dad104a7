"""Observing processes, for tests of worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["check_terminates", "child_guards", "cpu_seconds", "is_alive", "wait_until"]


def child_guards() -> list[int]:
    """The process ids of the children of this process that are guards of worker processes."""
    return [pid for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")) if _is_guard(pid)]


def _is_guard(pid: int) -> bool:
    try:
        _, parent, _, session, *_ = map(int, ("0", *_status(pid)[1:]))
        is_guard = b"purerl.system.workers.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return parent == os.getpid() and session == pid and is_guard  # a server that forks guards leads no session
    except (FileNotFoundError, ProcessLookupError):
        return False


def check_terminates(pid: int, *, seconds: float = 15.0) -> None:
    assert wait_until(lambda: not is_alive(pid), seconds=seconds), "the process is still alive"


def wait_until(condition: Callable[[], bool], *, seconds: float = 30.0) -> bool:
    """Wait until `condition` holds and return True, or return False after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return _status(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def cpu_seconds(pid: int) -> float:
    """The CPU time of the process, which grows while it is inside of a function that never returns."""
    return sum(map(int, _status(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, which is the state."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
