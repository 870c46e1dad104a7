"""Lines about a command while it does something that takes longer than two seconds.

    with phase("reading data") as progress:
        for done, file in enumerate(files):
            ...
            progress(done, len(files), "files")

prints nothing if the block is short. Otherwise, from a thread of its own,

    purerl: reading data ...                            after two seconds
    purerl: reading data: 3 of 40 files, 32 s           every 30 seconds
    purerl: reading data: done in 45.1 s                at its end

`phase(name, measure=function)` asks the function for the progress when a line is due, from the thread that prints.

Nothing is printed outside of `shown`, in which the command line and `purerl.train` run. So any function may have
phases, and none has to pass them on. Of the ranks of a run, the first one prints.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["Phase", "first_line", "phase", "shown"]

_SECONDS_UNTIL_SHOWN = 2.0
_SECONDS_UNTIL_FIRST_LINE = 1.0  # of a command, which has taken time to start before
_SECONDS_BETWEEN_LINES = 30.0

_SECONDS_BETWEEN_IMPORTS = 10.0

_begun = threading.Event()
"""Set when the first phase of a command begins."""
_shows: list[Callable[[str], None]] = []
"""The functions that print lines, of the blocks of `shown`; the last one is used."""


class Phase:
    """A phase with a name, and the lines about it. Called with its progress: a number, the total, and their unit.

    measure      returns the progress in words, or "" if there is none; it is asked if the phase is not called
    until_shown  seconds until the first line
    clock        seconds from any fixed origin
    """

    def __init__(
        self,
        name: str,
        *,
        measure: Callable[[], str] = str,
        until_shown: float = _SECONDS_UNTIL_SHOWN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._clock, self._progress, self._is_shown = name, clock, "", False
        self._measure = measure
        self._start = clock()
        self._next = self._start + until_shown

    def __call__(self, done: int, total: int, unit: str) -> None:
        self._progress = f"{done:,} of {total:,} {unit}"

    @property
    def pause(self) -> float:
        """Seconds until the next line is due."""
        return max(0.0, self._next - self._clock())

    def line(self) -> str | None:
        """The line that is due now; None: there is none."""
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + _SECONDS_BETWEEN_LINES
        first, self._is_shown = not self._is_shown, True
        progress = self._progress or self._measure()
        if first and not progress:
            return f"{self._name} ..."
        return f"{self._name}: {progress + ', ' if progress else ''}{_format(now - self._start)}"

    def last_line(self) -> str | None:
        """The line at the end of the phase; None if it had no other one."""
        return f"{self._name}: done in {_format(self._clock() - self._start)}" if self._is_shown else None


def _format(seconds: float) -> str:
    """Format a duration.

    >>> _format(2.34), _format(75)
    ('2.3 s', '1 min 15 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


@contextmanager
def phase(
    name: str, *, measure: Callable[[], str] = str, clock: Callable[[], float] = time.monotonic
) -> Iterator[Phase]:
    """Print a line about the block if it takes longer than two seconds, and one at its end. See this module.

    A block that raises an exception has no line at its end. Phases may be inside of others.
    """
    current = Phase(name, measure=measure, clock=clock)
    if not _shows:
        yield current
        return
    show = _shows[-1]
    _begun.set()
    with _printed(current, show):
        yield current
    line = current.last_line()
    if line is not None:
        show(line)


@contextmanager
def _printed(current: Phase, show: Callable[[str], None]) -> Iterator[None]:
    """Print the lines of a phase as they are due, from a thread that ends with the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(current.pause):
            line = current.line()
            if line is not None:
                show(line)

    thread = threading.Thread(target=run, name="purerl phase", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def shown(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Print the lines of phases in the block: on stderr, in a notebook on stdout, or with `show`."""
    _shows.append(show or _print)
    try:
        yield
    finally:
        _shows.pop()


@contextmanager
def first_line(command: str, *, seconds: float = _SECONDS_UNTIL_FIRST_LINE) -> Iterator[None]:
    """Print that `command` has started, unless the block ends within `seconds`.

    Then it imports packages, which is reported every ten seconds until its first phase begins.
    """
    ended, show, start = threading.Event(), _shows[-1], time.monotonic()

    def run() -> None:
        if ended.wait(seconds):
            return
        show(f"{command} has started")
        while not (ended.wait(_SECONDS_BETWEEN_IMPORTS) or _begun.is_set()):
            show(f"{command}: importing packages, {_format(time.monotonic() - start)}")

    _begun.clear()
    threading.Thread(target=run, name="purerl first line", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _print(line: str) -> None:
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0":  # other ranks do the same at the same time
        return
    stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr
    with suppress(OSError, ValueError):  # closed
        print(f"purerl: {line}", file=stream, flush=True)
