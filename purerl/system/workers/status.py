"""The status file of a worker process, and its watchdog."""

from __future__ import annotations

import faulthandler
import math
import os
import time
from threading import RLock

__all__ = ["AWAITED", "CALL", "CALLED", "IDLE", "Status"]

IDLE = -2  # the index in a status file while a worker makes no call
AWAITED, CALLED = "a", "c"  # what the watchdog waits for
CALL = -1  # key of the deadline of the current call


class Status:
    """The file in which a worker records the index of its current input and, if it is terminated, its stack.

    Its watchdog terminates the process at the earliest of several deadlines, which have keys.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._deadlines: dict[int, float] = {}
        self._lock = RLock()
        os.pwrite(descriptor, f"{IDLE:8d}{CALLED}\n".encode(), 0)
        os.lseek(descriptor, 0, os.SEEK_END)

    def write_index(self, index: int) -> None:
        os.pwrite(self._descriptor, f"{index:8d}".encode(), 0)

    def start_watchdog(self, key: int, seconds: float) -> None:
        """Terminate the process after `seconds`, unless this is called again or `stop_watchdog` is called.

        A deadline that would move by less than 1 % of `seconds` stays as it is, to save time in fast functions.
        """
        deadline = time.monotonic() + seconds
        if self._deadlines.get(key, -math.inf) < deadline - seconds / 100:
            with self._lock:
                self._deadlines[key] = deadline
                self._arm()

    def stop_watchdog(self, key: int) -> None:
        with self._lock:
            self._deadlines.pop(key, None)
            self._arm()

    def _arm(self) -> None:
        """Let the process be terminated at the earliest deadline."""
        if not self._deadlines:
            faulthandler.cancel_dump_traceback_later()
            return
        key = min(self._deadlines, key=self._deadlines.__getitem__)
        os.pwrite(self._descriptor, (CALLED if key == CALL else AWAITED).encode(), 8)
        seconds = max(self._deadlines[key] - time.monotonic(), 0.001)
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._descriptor)
