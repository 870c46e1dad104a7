"""Files and folders that only the user of this process can read and write, in places that other users share.

State of this host, such as the limits of endpoints, has names that anybody can compute. It is in a folder of the user,
whose owner and permissions are checked whenever a file in it is opened. Links are not followed.

Temporary folders have random names. A file in each is locked while its process lives, so the next process of the same
user on the same host can remove those of processes that were killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from purerl.errors import RunError

__all__ = ["kept_folder", "open_private", "private_folder", "read_private", "user_folder"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe in its place must not block
_NEW_FILE = _FILE | os.O_CREAT | os.O_EXCL
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_REPLACED = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
"""Error numbers of opening a link, or something else that is not what it should be."""

_LOCK = ".purerl-lock"  # it contains the name of the host
_RANDOM = "[a-z0-9_]{8}"  # what tempfile.mkdtemp appends
_NEW = 60.0  # seconds in which a folder may not be locked yet


def user_folder() -> Path:
    """The folder of this user for state of purerl, which is created if it does not exist.

    It is below ``XDG_CACHE_HOME`` or ``~/.cache``; if neither can be written, below ``XDG_RUNTIME_DIR``, and otherwise
    in the directory for temporary files. The runtime directory comes later because it is removed when the user logs
    out, which a run may outlive, and because processes that a scheduler starts do not have it.

    Raises: RunError if it is not private: it belongs to another user, others have permissions, or it is a link.
    """
    paths = [base / "purerl" for base in _bases() if base.is_absolute() and _is_trusted(base)]
    if not _anybody_may_replace(temporary := Path(tempfile.gettempdir())):
        paths.append(temporary / f"purerl-{os.getuid()}")
    for path in paths:
        with suppress(OSError):
            os.close(_open_folder(path))
            if os.access(path, os.W_OK | os.X_OK):
                return path
    got = f"no cache directory, and {str(temporary)!r}: it cannot be written, or everybody may rename files there"
    raise RunError("no directory for private files", got=got, need="a directory of this user", do=_OTHER_FOLDER)


_OTHER_FOLDER = "set XDG_CACHE_HOME to a directory of this user, in which nobody else may write"


def _bases() -> Iterator[Path]:
    """Directories in which a user may have a folder, the best one first."""
    homes = [os.environ.get("HOME", "")]
    with suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    yield Path(os.environ.get("XDG_CACHE_HOME", ""))
    yield from (Path(home, ".cache") for home in homes if home and Path(home).is_dir())
    yield Path(os.environ.get("XDG_RUNTIME_DIR", ""))


def _is_trusted(base: Path) -> bool:
    """Whether `base`, or what exists of the path to it, belongs to this user or to root: sudo may keep another HOME."""
    for path in (base, *base.parents):
        with suppress(FileNotFoundError):
            try:
                return path.stat().st_uid in (0, os.getuid())
            except (PermissionError, NotADirectoryError):
                return False
    return False


def _anybody_may_replace(folder: Path) -> bool:
    """Whether every user may rename what other users have in `folder`: it has no sticky bit, unlike /tmp."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def open_private(path: Path) -> IO[str]:
    """The file `path`, to be read and written, which no other user can open. A new one is empty.

    The directory above it is created too.

    Raises: RunError if the file or its directory is not private: it belongs to another user, others have permissions,
    it has a second name, or it is a link. OSError if it cannot be opened.
    """
    folder = _open_folder(path.parent)
    try:
        while True:
            for flags in (_FILE, _NEW_FILE):
                with suppress(FileNotFoundError, FileExistsError):  # another process creates or removes it meanwhile
                    descriptor = _open(path, flags, "file", stat.S_ISREG, folder)
                    return os.fdopen(descriptor, "r+", encoding="utf-8")
    finally:
        os.close(folder)


def read_private(path: Path) -> str:
    """The text of the file `path`, which no other user can open. It may be in any directory.

    Raises: RunError as `open_private`; OSError if there is none, or if it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with os.fdopen(_open(path, flags, "file", stat.S_ISREG), encoding="utf-8") as file:
        return file.read()


def _open_folder(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return _open(path, _FOLDER, "directory", stat.S_ISDIR)


def _open(path: Path, flags: int, kind: str, is_kind: Callable[[int], bool], folder: int | None = None) -> int:
    """A descriptor of `path`, which has been checked; only its last component is used if `folder` is given."""
    try:
        descriptor = os.open(path if folder is None else path.name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in _REPLACED:
            raise
        raise _refusal(path, kind, f"a link, or no {kind}") from error
    status = os.fstat(descriptor)
    if (got := _not_private(status, kind, is_kind)) is not None:
        os.close(descriptor)
        raise _refusal(path, kind, got)
    return descriptor


def _not_private(status: os.stat_result, kind: str, is_kind: Callable[[int], bool]) -> str | None:
    """The reason that a file or directory with this `status` is not private; None if it is."""
    if not is_kind(status.st_mode):
        return f"no {kind}"
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS:
        return f"permissions {stat.S_IMODE(status.st_mode):o}"
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        return "a file with several names (hard links)"
    return None


def _refusal(path: Path, kind: str, got: str) -> RunError:
    need = f"a {kind} of user {os.getuid()} that no other user can open, and no link to it"
    return RunError(f"{str(path)!r} is not private", got=got, need=need, do=f"remove it, or {_OTHER_FOLDER}")


@contextmanager
def private_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new directory of mode 0700, whose name is `prefix` and random characters; it is removed after the block.

    It is in `parent`; None: in the directory for temporary files, or in `user_folder` if other users could replace
    entries of that one. Before, those of this user whose processes were killed are removed there. A process that
    was forked in the block keeps the directory too; a program that was started does not.

    Raises: OSError if it cannot be created.
    """
    path, folder, lock = _new_folder(prefix, _temporary_files() if parent is None else parent)
    try:
        yield path
    finally:
        os.close(lock)
        _remove(path, folder)
        os.close(folder)


def kept_folder(prefix: str) -> Path:
    """A new directory as that of `private_folder`, such as for logs: it stays when this process has ended.

    The next one of this user that calls this function with `prefix` removes it.
    """
    path, folder, _ = _new_folder(prefix, _temporary_files())  # the lock is held until this process ends
    os.close(folder)
    return path


def _new_folder(prefix: str, parent: Path) -> tuple[Path, int, int]:
    """A new directory, a descriptor of it, and one of its lock."""
    _remove_unused(parent, prefix)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder = _open(path, _FOLDER, "directory", stat.S_ISDIR)
    lock = os.open(_LOCK, _NEW_FILE, 0o600, dir_fd=folder)
    with suppress(OSError):  # a file system without locks: nobody else removes it
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, _this_host())
    return path, folder, lock


def _temporary_files() -> Path:
    folder = Path(tempfile.gettempdir())
    return user_folder() if _anybody_may_replace(folder) else folder


def _remove_unused(parent: Path, prefix: str) -> None:
    """Remove directories in `parent` that `private_folder` has made for a process of this user that has ended."""
    with suppress(OSError):
        for path in parent.iterdir():
            if re.fullmatch(re.escape(prefix) + _RANDOM, path.name):
                with suppress(OSError):
                    _remove_if_unused(path)


def _remove_if_unused(path: Path) -> None:
    folder = os.open(path, _FOLDER)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.getuid() or time.time() - status.st_mtime < _NEW:
            return
        with suppress(FileNotFoundError), os.fdopen(os.open(_LOCK, _FILE, dir_fd=folder), "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.read() in (_this_host(), b""):  # locks of some network file systems are seen on one host only
                _remove(path, folder)
            return
        path.rmdir()  # the process was killed before it wrote the lock
    finally:
        os.close(folder)


def _remove(path: Path, folder: int) -> None:
    """Remove the directory `path`, which is open as `folder`, with its content, whatever `path` is now; the lock last.

    A link in it is removed, and what it points to stays.
    """
    with suppress(OSError):
        names = os.listdir(folder)
        for name in sorted(names, key=_LOCK.__eq__):
            with suppress(OSError):
                if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
        path.rmdir()


def _this_host() -> bytes:
    return socket.gethostname().encode()
