"""The memory allocator of the C library, which torch uses on a CPU."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

__all__ = ["disable_malloc_trim", "release_freed"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _GIBIBYTE = 2**31 - 1, 2**30

_WORTHWHILE = 2**27
"""Bytes of freed memory from which on it is returned. Less is reused, which takes less time."""


def disable_malloc_trim() -> None:
    """Let this process reuse the memory of freed tensors, if the C library is glibc.

    By default glibc returns large blocks to the system immediately, and the system provides the memory of the next
    tensor page by page. This takes a tenth of the time of a training step of a small model. `release_freed` returns
    what a phase of a run has left. If MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ is set in the environment,
    nothing changes.
    """
    if not _is_set_by_user():
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: 0)
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _GIBIBYTE)


def release_freed() -> None:
    """Return freed memory to the system at the end of a phase, if it is at least 128 MiB and the C library is glibc.

    The phases of a step need tensors of different sizes, which do not fit into the gaps that the others have left.
    Without this the memory of a process grows to the sum of its phases. Nothing happens if one of the variables of
    `disable_malloc_trim` is set.
    """
    library = _glibc()
    if library is not None and library.mallinfo2().fordblks >= _WORTHWHILE:
        library.malloc_trim(0)


def _is_set_by_user() -> bool:
    return bool({"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys())


class _Statistics(ctypes.Structure):
    """The result of mallinfo2, of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@cache
def _glibc() -> Any:
    """The C library; None if it is not glibc 2.33 or later, or if the user has set when it returns memory."""
    library = ctypes.CDLL(None)
    if _is_set_by_user() or not (hasattr(library, "mallinfo2") and hasattr(library, "malloc_trim")):
        return None
    library.mallinfo2.restype = _Statistics
    return library
