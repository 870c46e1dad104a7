"""The file system of a sandbox: what is mounted, and where.

`build_template` makes what all runs of a supervisor have in common: a small read-only tmpfs, into which the directories
of programs and libraries of the host are mounted, read-only, at their own paths. Each run has a copy of these mounts,
and `add_private` adds what is its own: one tmpfs of limited size, which holds everything that can be written, the
working directory, /tmp and /dev/shm; and /proc with its own processes. They vanish with the sandbox.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from glob import glob
from pathlib import Path
from typing import NamedTuple

from purerl.sandbox.supervisor.syscalls import mount, pivot_root, umount

__all__ = [
    "DEVICES",
    "HOME",
    "WRITABLE",
    "Sources",
    "add_private",
    "build_template",
    "find_sources",
    "open_sources",
    "write_files",
]

HOME = "/sandbox"
"""The working directory of programs."""
WRITABLE = (HOME, "/tmp", "/dev/shm")  # noqa: S108 - in the sandbox
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_CONFIGURATION = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime",
    "/etc/java*", "/etc/php*", "/etc/perl*", "/etc/R",
)  # fmt: skip
_FILES = {
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/sandbox:/bin/sh\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
_STAGE = "/.private"
_MOUNT_POINTS = ("/tmp", "/mnt", "/usr")  # noqa: S108 - one of them exists everywhere; it is hidden for this process only

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_OPTIONS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}


class Sources(NamedTuple):
    """The parts of the host in a sandbox: the paths that are mounted, and path -> target of symbolic links."""

    mounts: tuple[str, ...]
    links: Mapping[str, str]


@cache
def find_sources(read_only: tuple[str, ...], *, with_zero: bool) -> Sources:
    """The programs, libraries and devices of this host, and `read_only`, which must exist.

    with_zero  whether there is /dev/zero, which is memory if it is mapped by several processes
    """
    devices = [path for path in DEVICES if with_zero or path != "/dev/zero"]
    optional = [path for pattern in (*_SYSTEM, *_CONFIGURATION, *devices) for path in sorted(glob(pattern))]
    links = {path: os.readlink(path) for path in optional if os.path.islink(path)}
    required = sorted(path for path in set(read_only) if not _is_below(path, _SYSTEM))
    return Sources((*(path for path in optional if path not in links), *required), links)


def open_sources(sources: Sources) -> dict[str, int]:
    """Open what will be mounted, in the mount namespace of the template, with the permissions of the owner.

    Raises: OSError.
    """
    return {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in sources.mounts}


def _is_below(path: str, parents: Iterable[str]) -> bool:
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def build_template(sources: Sources, opened: Mapping[str, int]) -> None:
    """Make a file system without anything private the root of this process. Its /proc is that of the host.

    Raises: OSError.
    """
    base = os.path.realpath(next(path for path in _MOUNT_POINTS if os.path.isdir(path)))
    mount(None, "/", None, _REC | _PRIVATE)
    mount("sandbox", base, "tmpfs", _NOSUID | _NODEV, "size=1m,nr_inodes=4096,mode=755")
    for path in ("/proc", "/dev", "/etc", "/root", "/.old", _STAGE, *WRITABLE):
        os.mkdir(base + path)
    for path, text in _FILES.items():
        _write(base + path, text.encode())
    for path, target in {**_LINKS, **sources.links}.items():
        os.symlink(target, base + path)
    for path, descriptor in opened.items():
        _bind(descriptor, base + path)
    _protect(base, [path for path in sources.mounts if path not in DEVICES])
    mount("/proc", f"{base}/proc", None, _BIND | _REC)
    os.chdir(base)
    pivot_root(".", ".old")
    os.chdir("/")
    umount("/.old")
    os.rmdir("/.old")
    mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)


def add_private(read_only: Iterable[str], *, size: int, num_files: int) -> bool:
    """Mount what belongs to one run, and enter its working directory. Returns whether it has a /proc of its own.

    read_only        those that lie below a private directory are mounted again, on top of it
    size, num_files  limits of all files that can be written together: bytes, and number

    Raises: OSError.
    """
    covered = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in read_only if _is_below(path, WRITABLE)}
    flags = _NOSUID | _NODEV
    mount("private", _STAGE, "tmpfs", flags, f"size={size},nr_inodes={num_files + 4},mode=755")
    for k, path in enumerate(WRITABLE):
        os.mkdir(f"{_STAGE}/{k}", 0o700)
        mount(f"{_STAGE}/{k}", path, None, _BIND)
    _mount_nothing(_STAGE)  # so that the directories can be found only where they belong
    for path, descriptor in covered.items():
        _bind(descriptor, path)
    os.chdir(HOME)
    for options in ("subset=pid", None):  # without what else the kernel shows in /proc, if it can be left out
        with suppress(OSError):
            mount("proc", "/proc", "proc", flags | _NOEXEC | _RDONLY, options)
            return True
    _mount_nothing("/proc")
    return False


def _mount_nothing(target: str) -> None:
    """Cover a directory by an empty one."""
    mount("nothing", target, "tmpfs", _NOSUID | _NODEV | _NOEXEC | _RDONLY, "size=4k,nr_inodes=1,mode=555")


def _bind(descriptor: int, target: str) -> None:
    """Mount an open file or directory, with what is mounted below it."""
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, b"")
    mount(f"/proc/self/fd/{descriptor}", target, None, _BIND | _REC)
    os.close(descriptor)


def _protect(base: str, paths: Iterable[str]) -> None:
    """Make the mounts at and below `paths` read-only. The flags that they have already must be repeated."""
    roots = [base + path for path in paths]
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields = line.split(b" ")
        target = os.fsdecode(re.sub(rb"\\(\d{3})", lambda match: bytes([int(match[1], 8)]), fields[4]))
        if _is_below(target, roots):
            inherited = {_OPTIONS.get(option, 0) for option in os.fsdecode(fields[5]).split(",")}
            mount(None, target, None, _REMOUNT | _BIND | sum(inherited | {_RDONLY, _NOSUID, _NODEV}))


def write_files(files: Iterable[tuple[str, bytes]]) -> None:
    """Write files into the working directory. Their paths are relative, without "..".

    Raises: OSError if they do not fit.
    """
    for path, content in files:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        _write(path, content)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        written = file.write(content)
    if written < len(content):
        raise OSError(errno.ENOSPC, f"{path}: {os.strerror(errno.ENOSPC)}")
