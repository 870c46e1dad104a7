"""The kernel's calls that Python does not have, by ctypes, without a compiled module.

The calls keep the interpreter's lock, so `clone` behaves as `os.fork` in a process with one thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

__all__ = ["capset_empty", "clone", "close_from", "mount", "pivot_root", "prctl", "syscall", "umount"]

_LIBC = ctypes.PyDLL(None, use_errno=True)
_CLONE, _PIVOT_ROOT, _CAPSET, _CLOSE_RANGE = {"x86_64": (56, 155, 126, 436), "aarch64": (220, 41, 91, 436)}.get(
    os.uname().machine, (-1, -1, -1, -1)
)
_CAPABILITY_VERSION = 0x20080522
_MNT_DETACH = 2


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """Make the call with this number. Raises: OSError."""
    return _checked(_LIBC.syscall(ctypes.c_long(number), *map(_as_argument, arguments)), f"system call {number}")


def _as_argument(value: int | bytes | None) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value


def clone(flags: int) -> int:
    """Fork this process, which has one thread, with new namespaces: 0 in the child, its process id in the parent.

    Hooks of `os.register_at_fork` are not called.
    """
    return _checked(
        _LIBC.syscall(ctypes.c_long(_CLONE), *map(ctypes.c_long, (flags | signal.SIGCHLD, 0, 0, 0, 0))), "clone"
    )


def prctl(option: int, *arguments: int) -> int:
    """Raises: OSError."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return _checked(_LIBC.prctl(ctypes.c_int(option), *map(ctypes.c_ulong, padded)), f"prctl {option}")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Raises: OSError."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(result, f"mount {source or ''} on {target}")


def umount(target: str) -> None:
    """Detach what is mounted at `target`. Raises: OSError."""
    _checked(_LIBC.umount2(os.fsencode(target), _MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Raises: OSError."""
    _checked(_LIBC.syscall(ctypes.c_long(_PIVOT_ROOT), os.fsencode(new), os.fsencode(old)), "pivot_root")


def capset_empty() -> None:
    """Give up all capabilities. Raises: OSError."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _checked(_LIBC.syscall(ctypes.c_long(_CAPSET), header, bytes(24)), "capset")


def close_from(first: int) -> None:
    """Close every file descriptor from `first` on."""
    if _LIBC.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_long(first), ctypes.c_long(2**32 - 1), ctypes.c_long(0)) < 0:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
