"""The stacks of all threads, written when a step takes too long, also if a C extension hangs."""

from __future__ import annotations

import faulthandler
import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import IO

__all__ = ["stacks_after"]

_LOG = logging.getLogger(__name__)
_BLOCKED_SECONDS = 30.0


@contextmanager
def stacks_after(seconds: float | None, path: Path, step: int) -> Iterator[None]:
    """Append the stacks of all threads to the file `path` each time the block, which is `step`, has taken `seconds`.

    The first time there is also a warning. None: never.
    """
    if seconds is None:
        yield
        return
    is_over = Event()
    with _appended_to(path, f"step {step}, each {seconds:g} seconds:\n") as file:
        thread = Thread(target=_watch, args=(seconds, file, step, is_over), name="purerl stacks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            faulthandler.cancel_dump_traceback_later()


def _watch(seconds: float, file: IO[str], step: int, is_over: Event) -> None:
    """Write the stacks every `seconds` until `is_over`.

    This thread holds the interpreter's lock while it writes, so no other thread changes its stack meanwhile: reading a
    changing stack can crash the process. faulthandler's own thread needs no lock. It writes only if this thread could
    not run for `_BLOCKED_SECONDS`, because a C extension holds the lock.
    """
    message = "step %d has taken more than %g seconds; the stacks of all threads are in %s"
    for count in itertools.count():
        faulthandler.dump_traceback_later(seconds + _BLOCKED_SECONDS, repeat=True, file=file)
        if is_over.wait(seconds):
            return
        file.write(f"Timeout ({seconds:g} seconds):\n")
        file.flush()
        faulthandler.dump_traceback(file)
        if count == 0:
            _LOG.warning(message, step, seconds, file.name)


@contextmanager
def _appended_to(path: Path, title: str) -> Iterator[IO[str]]:
    """The file `path`, with `title` at its end; if the block writes nothing, the title is removed, or the new file."""
    with path.open("a", encoding="utf-8") as file:
        before = file.tell()
        file.write(title)
        file.flush()
        yield file
        if file.seek(0, os.SEEK_END) == before + len(title):
            file.truncate(before)
    if path.stat().st_size == 0:
        path.unlink()
