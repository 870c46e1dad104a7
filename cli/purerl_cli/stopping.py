"""Signals that ask a run to stop: SIGTERM and SIGUSR1.

The first one sets a flag, which the run reads between two steps: it writes a checkpoint and exits with status 75. The
second one stops the run at once, with status 143. It counts if it is at least a second later: `timeout` and some
schedulers send a signal both to a process and to its group.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from purerl_cli.output import raise_interruption

__all__ = ["stop_signals"]

_MIN_SECONDS_BETWEEN = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """A function that returns whether the process was asked to stop, inside the block.

    Signals that the parent process ignores stay ignored, and handlers of other code stay in place.
    """
    requests: list[float] = []

    def handle(number: int, frame: object) -> None:
        if requests and time.monotonic() - requests[0] < _MIN_SECONDS_BETWEEN:
            return
        requests.append(time.monotonic())
        if len(requests) > 1:
            raise_interruption(signal.SIGTERM, frame)
        if not sys.stderr.isatty():  # the live view shows the next steps instead
            text = f"{signal.Signals(number).name}: the run stops after this step; a second signal stops it at once\n"
            os.write(2, text.encode())  # Python's own buffers may be in use: this is a signal handler

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _SIGNALS if is_main}
    replaced = [number for number, handler in before.items() if handler in (signal.SIG_DFL, raise_interruption)]
    for number in replaced:
        signal.signal(number, handle)
    try:
        yield lambda: bool(requests)
    finally:
        for number in replaced:
            signal.signal(number, before[number])
