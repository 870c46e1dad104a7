"""Memory of the host: what torch has on a CPU instead of the caching allocator that it has on an accelerator."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _GIBIBYTE = 2**31 - 1, 2**30


def keep_memory() -> None:
    """Have this process keep the memory that tensors leave behind, where the C library is one that can be told so.

    glibc gives large blocks back at once, and the next tensor is fetched from the system again, page by page: a tenth
    of a step of a small model. A training step needs at its peak what the one before it needed, so nothing is lost.
    Set MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ for something else: glibc reads them before this is called, and
    they are left as they are.
    """
    if not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: 0)
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _GIBIBYTE)
