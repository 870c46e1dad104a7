"""The file lock of a run directory, which the process that works on the run holds."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from purerl.errors import RunDirectoryError

__all__ = ["is_lock_of", "lock_directory"]

_NAME = "lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODE = 0o660  # a user who may open it can lock it, and so keep the run from starting: not everybody


def lock_directory(path: Path) -> IO[str]:
    """The file lock of the directory `path`, locked. It is opened again if it was replaced in the meantime.

    Raises: RunDirectoryError if another process has locked it, if it cannot be locked, or if it is a link.
    """
    while True:
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            is_busy = isinstance(error, BlockingIOError)
            got = "another process works on it" if is_busy else f"it cannot be locked: {error}"
            do = "wait for it, or name another directory" if is_busy else "name a directory in another file system"
            raise RunDirectoryError(f"run directory {str(path)!r}", got=got, do=do) from error
        if is_lock_of(path, file):
            return file
        file.close()


def _open(path: Path) -> IO[str]:
    try:
        return os.fdopen(os.open(path / _NAME, _FLAGS, _MODE), "r+")
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        what, do = f"{str(path / _NAME)!r}", "remove it; the whole run directory may be a link"
        raise RunDirectoryError(what, got="a link", need="a file of the run, which is locked", do=do) from error


def is_lock_of(path: Path, file: IO[str]) -> bool:
    """Whether the open `file` is the file lock of the directory `path` still."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), (path / _NAME).stat())
    except OSError:
        return False
