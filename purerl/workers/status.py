"""The status file of a worker process, and its watchdog."""

from __future__ import annotations

import faulthandler
import math
import os
import time

__all__ = ["IDLE", "Status"]

IDLE = -2  # the index in a status file while a worker makes no call


class Status:
    """The file in which a worker records the index of its current input and, if it is terminated, its stack."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._watchdog_start = -math.inf
        self.write_index(IDLE)
        os.lseek(descriptor, 0, os.SEEK_END)

    def write_index(self, index: int) -> None:
        os.pwrite(self._descriptor, f"{index:8d}\n".encode(), 0)

    def start_watchdog(self, seconds: float) -> None:
        """Terminate the process after `seconds`, unless this is called again or the watchdog is stopped.

        It works even if the interpreter is blocked. Before the end, it writes the stack to the file. Restarting a
        watchdog that is younger than 1 % of `seconds` has no effect, to save time in fast functions.
        """
        now = time.monotonic()
        if now - self._watchdog_start > seconds / 100:
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._descriptor)
            self._watchdog_start = now

    def stop_watchdog(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._watchdog_start = -math.inf
