"""Files that appear whole, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from purerl.errors import RunDirectoryError

__all__ = ["REFUSED", "folder_at_once", "refusals_told", "sync", "sync_tree", "write_at_once"]

REFUSED = frozenset(
    getattr(errno, name) for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENOSPC", "ENOTDIR", "EPERM", "EROFS")
)
"""Numbers of the errors by which a disk refuses to be written, or to be read."""

_NO_PLACE = frozenset(getattr(errno, name) for name in ("EEXIST", "EISDIR", "ELOOP", "ENAMETOOLONG", "ENOENT"))
"""Numbers of those by which it refuses a directory: within one that is there they are mistakes of ours."""


def write_at_once(path: Path, text: str) -> None:
    """Write `text` to `path`: whoever reads it sees the file before or the file after, whatever is killed when."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def folder_at_once(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path`, in place of what is there, when the block ends."""
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    sync_tree(partial)
    shutil.rmtree(path, ignore_errors=True)
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def refusals_told(path: Path) -> Iterator[None]:
    """Where the disk refuses something in or at the directory `path`, raise RunDirectoryError that says what."""
    try:
        yield
    except OSError as error:
        above = error.filename is not None and path.is_relative_to(str(error.filename))
        there = error.filename is None or str(error.filename).startswith(str(path))
        if not (error.errno in REFUSED and (there or above)) and not (error.errno in _NO_PLACE and above):
            raise
        raise RunDirectoryError(
            f"run directory {str(path)!r} cannot be written",
            got=str(error),
            need="a directory with room in it, and permission to write there",
            do="make room, mend the permissions, or name another directory; a run that had begun goes on",
        ) from error


def sync_tree(path: Path) -> None:
    """Have the folder `path` on the disk, with every file and folder in it."""
    for entry in (*path.rglob("*"), path):
        if entry.is_file() or entry.is_dir():
            sync(entry)


def sync(path: Path) -> None:
    """Have the file `path` on the disk, or if it is a folder, the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
