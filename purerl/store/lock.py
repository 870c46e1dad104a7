"""The file lock of a run directory, which the process that works on the run holds."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import IO

from purerl.errors import RunDirectoryError

__all__ = ["check_lock_file", "is_lock_of", "lock_directory"]

_NAME = "lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe"}
_MODE = 0o660  # a user who may open it can lock it, and so keep the run from starting: not everybody


def lock_directory(path: Path) -> IO[str]:
    """The file lock of the directory `path`, locked. It is opened again if it was replaced in the meantime.

    Raises: RunDirectoryError if another process has locked it, if it cannot be locked, and as `check_lock_file`.
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


def check_lock_file(path: Path) -> None:
    """Raise RunDirectoryError if there is something else in the place of the file lock of the directory `path`."""
    try:
        mode = (path / _NAME).lstat().st_mode
    except OSError:  # there is none
        return
    if not stat.S_ISREG(mode):
        raise _no_file(path, mode)


def _open(path: Path) -> IO[str]:
    check_lock_file(path)
    try:
        descriptor = os.open(path / _NAME, _FLAGS, _MODE)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        raise _no_file(path, stat.S_IFLNK) from error
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):  # it was replaced in the meantime
        os.close(descriptor)
        raise _no_file(path, mode)
    return os.fdopen(descriptor, "r+")


def _no_file(path: Path, mode: int) -> RunDirectoryError:
    what, do = f"{str(path / _NAME)!r}", "remove it; the whole run directory may be a link"
    got = _KINDS.get(stat.S_IFMT(mode), "no regular file")
    return RunDirectoryError(what, got=got, need="a file of the run, which is locked", do=do)


def is_lock_of(path: Path, file: IO[str]) -> bool:
    """Whether the open `file` is the file lock of the directory `path` still."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), (path / _NAME).stat())
    except OSError:
        return False
