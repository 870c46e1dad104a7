"""The stacks of all threads, written when a step takes too long. This also works if a C extension hangs."""

from __future__ import annotations

import faulthandler
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO

__all__ = ["stacks_after"]

_LOG = logging.getLogger(__name__)


@contextmanager
def stacks_after(seconds: float | None, path: Path, step: int) -> Iterator[None]:
    """Append the stacks of all threads to the file `path` each time the block, which is `step`, has taken `seconds`.

    The first time there is also a warning. None: never.
    """
    if seconds is None:
        yield
        return
    message = "step %d has taken more than %g seconds; the stacks of all threads are in %s"
    warning = Timer(seconds, _LOG.warning, (message, step, seconds, path))
    warning.daemon = True
    with _appended_to(path, f"step {step}, each {seconds:g} seconds:\n") as file:
        faulthandler.dump_traceback_later(seconds, repeat=True, file=file)
        warning.start()
        try:
            yield
        finally:
            warning.cancel()
            faulthandler.cancel_dump_traceback_later()


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
