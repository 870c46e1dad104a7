"""Collection in a new clone: one worker compiles the modules and rewrites the assertions of tests, the others wait.

Workers that begin at the same time would each do this for all files: 25 seconds of a core, twice the rest of the
collection.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["is_compiled", "one_after_another"]

_SESSION = "PYTEST_XDIST_TESTRUNUID"
"""Environment variable of workers: the name of their session."""
_NEW = 0.1


def is_compiled(tests: Iterable[Path]) -> bool:
    """Whether pytest has rewritten `tests`, except for a tenth of them."""
    paths = [*tests]
    return sum(not _is_rewritten(path) for path in paths) <= _NEW * len(paths)


def _is_rewritten(path: Path) -> bool:
    name = f"{path.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    try:
        return (path.parent / "__pycache__" / name).stat().st_mtime >= path.stat().st_mtime
    except FileNotFoundError:
        return False


@contextmanager
def one_after_another(tests: Iterable[Path]) -> Iterator[None]:
    """If `tests` are not compiled, the first worker of a session that enters this block is alone in it.

    The others wait until it has left, and then enter together.
    """
    session = os.environ.get(_SESSION)
    if session is None or sys.dont_write_bytecode or is_compiled(tests):
        yield
        return
    path = Path(tempfile.gettempdir(), f"purerl-collection-{session}")
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    path.unlink(missing_ok=True)
