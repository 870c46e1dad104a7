"""Landlock: what a program may do with files, beside their permissions and the mounts.

Everything can be read and executed that is mounted. Only the private directories can be written, and the harmless
devices. From version 6 on, signals and abstract unix sockets end at the border of the sandbox, too.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable

from purerl.sandbox.supervisor.syscalls import syscall

__all__ = ["restrict", "version"]

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # version -> how many rights it knows
_TRUNCATE = 1 << 14
_SCOPES = 0b11  # abstract unix sockets, signals


def version() -> int:
    """The version of landlock's interface; 0 if the kernel has none, or it is not enabled."""
    try:
        return syscall(_CREATE, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict(writable: Iterable[str], devices: Iterable[str]) -> None:
    """Let this process, and all that it starts, write only below the directories `writable`, and to `devices`.

    The process must have PR_SET_NO_NEW_PRIVS. Raises: OSError.
    """
    known = version()
    if known == 0:
        raise OSError(errno.EOPNOTSUPP, "the kernel has no landlock, or it is not enabled")
    rights = (1 << max(number for at, number in _RIGHTS.items() if at <= known)) - 1
    attributes = struct.pack("=QQQ", rights, 0, _SCOPES if known >= 6 else 0)
    ruleset = syscall(_CREATE, attributes, 24 if known >= 6 else 8, 0)
    _add(ruleset, "/", _READ)
    for path in writable:
        _add(ruleset, path, rights)
    for path in devices:
        _add(ruleset, path, rights & (_READ_FILE | _WRITE_FILE | _TRUNCATE))
    syscall(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _add(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    os.close(descriptor)
