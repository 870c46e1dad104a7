"""Files and directories that appear completely or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from purerl.errors import PurerlError, RunDirectoryError

__all__ = [
    "REFUSALS",
    "as_os_error",
    "atomic_directory",
    "create",
    "follow_umask",
    "remove",
    "sync",
    "sync_tree",
    "translate_os_errors",
    "write_atomically",
]

REFUSALS = frozenset(
    getattr(errno, name) for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENOSPC", "ENOTDIR", "EPERM", "EROFS")
)
"""Error numbers of a file system that cannot be written or read."""

_NO_DIRECTORY = frozenset(getattr(errno, name) for name in ("EEXIST", "EISDIR", "ELOOP", "ENAMETOOLONG", "ENOENT"))
"""Error numbers of a path that cannot be a directory. Inside an existing directory they are bugs of purerl."""

_REPLACED = frozenset(getattr(errno, name) for name in ("EEXIST", "EISDIR", "ELOOP", "ENOTEMPTY"))
"""Error numbers of a file of the run in whose place there is something else, such as a directory."""


_ARCHIVE = "inline_container.cc"
"""The source file that torch names if it cannot write an archive."""


def create(path: Path) -> BinaryIO:
    """The new file `path`, to be written; a file or a link at `path` is removed before.

    A link is not followed, also one that another user makes meanwhile: in a shared directory, `path` may be a name that
    can be guessed.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path`. A reader sees the old or the new file, also if this process is killed."""
    partial = path.with_name(path.name + ".partial")
    with create(partial) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which replaces `path` at the end of the block. The directory above it must exist."""
    partial = path.with_name(path.name + ".partial")
    remove(partial)
    partial.mkdir()
    yield partial
    follow_umask(partial)
    sync_tree(partial)
    remove(path)
    os.replace(partial, path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove the file, the directory or the link at `path`, if it exists. What a link points to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def follow_umask(path: Path) -> None:
    """Give files in the new directory `path` that only their owner can read the permissions of any new file.

    Libraries such as safetensors write into a temporary file, whose permissions do not depend on the umask.
    """
    with (probe := path / ".permissions").open("w") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    probe.unlink()
    for entry in path.rglob("*"):
        is_own = entry.is_file() and not entry.is_symlink()
        if is_own and stat.S_IMODE(entry.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR:
            entry.chmod(mode)


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Raise RunDirectoryError if the file system refuses something in or at the directory `path`.

    Also if the directory has been deleted, or if there is something else in the place of one of its files.
    """
    try:
        yield
    except Exception as error:
        found = as_os_error(error)
        if found is None or (explained := _explain(path, found)) is None:
            raise
        raise explained from error


def as_os_error(error: Exception) -> OSError | None:
    """The error of the operating system that `error` is, or from which a library has made it; None if it is another.

    safetensors and tokenizers raise exceptions of their own, with a number in the text. torch closes its archive, which
    fails too if the disk is full, or it writes the archive without an error of the system.
    """
    if isinstance(error, OSError):
        return error
    if isinstance(error, PurerlError):
        return None
    if found := re.search(r"\(os error (\d+)\)", str(error)):
        number = int(found[1])
        return OSError(number, os.strerror(number))
    if _ARCHIVE in str(error):
        return OSError(errno.EIO, str(error).partition("\n")[0])
    return error.__context__ if isinstance(error.__context__, OSError) else None


def _explain(path: Path, error: OSError) -> RunDirectoryError | None:
    above = error.filename is not None and path.is_relative_to(str(error.filename))
    inside = error.filename is None or str(error.filename).startswith(str(path))
    if (error.errno in REFUSALS and (inside or above)) or (error.errno in _NO_DIRECTORY and above):
        return RunDirectoryError(
            f"run directory {str(path)!r} cannot be written",
            got=str(error),
            need="a directory with free space, and permission to write there",
            do="free space, fix the permissions, or name another directory; a run that had started will resume",
        )
    if error.filename is None or not inside:
        return None
    if error.errno == errno.ENOENT and not path.is_dir():
        got, do = "it was deleted or moved during the run", "move it back, and start the run again to resume it"
        return RunDirectoryError(f"run directory {str(path)!r}", got=got, do=do)
    if error.errno in _REPLACED:
        need = "the files and directories that the run wrote"
        do = "restore them, name another directory, or discard the run with --fresh"
        return RunDirectoryError(f"run directory {str(path)!r} is damaged", got=str(error), need=need, do=do)
    return None


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
