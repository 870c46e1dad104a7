"""A run on a disk that is full, until space is freed.

The disk is a file system in memory (tmpfs), mounted in a mount namespace of the process of the run. That needs root, or
user namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from multiprocessing.connection import Connection
from pathlib import Path

from purerl.config.schema import RunConfig
from tests.loop.killed import PROCESSES

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
_PRIVATE = 0x40000 | 0x4000  # MS_PRIVATE, MS_REC
_SIZE = 256 * 2**20
_PAGE = 4096


def train_on_full_disk(config: RunConfig, directory: Path, free: int) -> str | None:
    """Train on a disk with `free` bytes until it is full, free space, train again, and copy the run to `directory`.

    Returns the error of the first attempt, or None if the disk was not full. Raises OSError if nothing can be mounted.
    """
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_train, args=(config, directory, free, sender))
    process.start()
    sender.close()
    try:
        error = receiver.recv()
    except EOFError:
        error = AssertionError("the process has ended")
    process.join()
    if isinstance(error, BaseException):
        raise error
    assert process.exitcode == 0
    return error


def _train(config: RunConfig, directory: Path, free: int, sender: Connection) -> None:
    from purerl.errors import PurerlError
    from purerl.loop.train import train

    try:
        disk = directory.with_name(f"{directory.name} disk")
        disk.mkdir()
        _mount(disk)
    except OSError as error:
        return sender.send(error)
    ballast, message = disk / "ballast", None
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free // _PAGE * _PAGE - free)
    try:
        train(config, directory=disk / "run")
    except (PurerlError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise
        message = str(error)
    ballast.unlink()
    train(config, directory=disk / "run")
    shutil.copytree(disk / "run", directory)
    return sender.send(message)


def _mount(path: Path) -> None:
    """Mount a file system of `_SIZE` bytes at `path`, which only this process sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() == 0:
        _call(libc.unshare, _NEW_MOUNTS)
    else:
        user, group = os.getuid(), os.getgid()
        _call(libc.unshare, _NEW_MOUNTS | _NEW_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call(libc.mount, b"none", b"/", None, _PRIVATE, None)
    _call(libc.mount, b"tmpfs", str(path).encode(), b"tmpfs", 0, f"size={_SIZE}".encode())


def _call(function: object, *arguments: object) -> None:
    assert callable(function)
    converted = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if function(*converted):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
