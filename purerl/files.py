"""Files and directories that appear completely or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from purerl.errors import RunDirectoryError

__all__ = ["REFUSALS", "atomic_directory", "explain_refusals", "sync", "sync_tree", "write_atomically"]

REFUSALS = frozenset(
    getattr(errno, name) for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENOSPC", "ENOTDIR", "EPERM", "EROFS")
)
"""Error numbers of a file system that cannot be written or read."""

_NO_DIRECTORY = frozenset(getattr(errno, name) for name in ("EEXIST", "EISDIR", "ELOOP", "ENAMETOOLONG", "ENOENT"))
"""Error numbers of a path that cannot be a directory. Inside an existing directory they are bugs of purerl."""


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path`. A reader sees the old or the new file, also if this process is killed."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which replaces `path` at the end of the block."""
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    sync_tree(partial)
    shutil.rmtree(path, ignore_errors=True)
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def explain_refusals(path: Path) -> Iterator[None]:
    """Raise RunDirectoryError if the file system refuses something in or at the directory `path`."""
    try:
        yield
    except OSError as error:
        above = error.filename is not None and path.is_relative_to(str(error.filename))
        inside = error.filename is None or str(error.filename).startswith(str(path))
        if not (error.errno in REFUSALS and (inside or above)) and not (error.errno in _NO_DIRECTORY and above):
            raise
        raise RunDirectoryError(
            f"run directory {str(path)!r} cannot be written",
            got=str(error),
            need="a directory with free space, and permission to write there",
            do="free space, fix the permissions, or name another directory; a run that had started will resume",
        ) from error


def sync_tree(path: Path) -> None:
    """Flush the directory `path`, and all files and directories in it, to the disk."""
    for entry in (*path.rglob("*"), path):
        if entry.is_file() or entry.is_dir():
            sync(entry)


def sync(path: Path) -> None:
    """Flush the file `path` to the disk; of a directory, the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
