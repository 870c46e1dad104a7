"""The memory allocator of the C library, which torch uses on a CPU."""

from __future__ import annotations

import ctypes
import os

__all__ = ["disable_malloc_trim"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _GIBIBYTE = 2**31 - 1, 2**30


def disable_malloc_trim() -> None:
    """Let this process reuse the memory of freed tensors, if the C library is glibc.

    By default glibc returns large blocks to the system immediately, and the system provides the memory of the next
    tensor page by page. This takes a tenth of the time of a training step of a small model. Peak memory stays the same,
    because all steps need about the same amount. If MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ is set in the
    environment, nothing changes.
    """
    if not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: 0)
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _GIBIBYTE)
