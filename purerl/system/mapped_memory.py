"""Memory that is mapped from files, such as the weights of a model that was loaded and is never written.

The system reads a page of the file when it is used first. Until then, and after `release_mapped`, this process does not
have the page. It usually stays in the file cache of the system, which gives up pages if memory is needed.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["release_mapped"]

_DONTNEED = 4
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)")


class _Mapping(NamedTuple):
    """A range of addresses, and whether all of its pages are those of a file."""

    start: int
    stop: int
    is_unchanged: bool


def release_mapped(addresses: Iterable[int]) -> int:
    """Release the pages of the mappings of files that contain one of `addresses`; return the bytes of these mappings.

    The next access reads them again. A mapping in which a page was written is left as it is, because what was written
    is not in the file. On other systems than Linux nothing is released.
    """
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    addresses, released = {*addresses}, 0
    for start, stop, is_unchanged in _mappings(Path("/proc/self/smaps").read_text()):
        is_meant = is_unchanged and any(start <= address < stop for address in addresses)
        if is_meant and madvise(start, stop - start, _DONTNEED) == 0:
            released += stop - start
    return released


def _mappings(smaps: str) -> Iterator[_Mapping]:
    """The mappings in the text of the file, in the order of their addresses.

    >>> lines = "7f00-7f10 rw-p 0 fe:00 12 /m", "Anonymous: 0 kB", "Swap: 0 kB", "7f10-7f20 rw-p 0 0:0 0", "Swap: 0 kB"
    >>> [mapping.is_unchanged for mapping in _mappings(chr(10).join(lines))]
    [True, False]
    """
    head, written = None, 0
    for line in [*smaps.splitlines(), "0-0 ---p 0 0:0 0"]:
        if match := _HEAD.match(line):
            if head is not None:
                yield _Mapping(int(head[1], 16), int(head[2], 16), int(head[3]) != 0 and written == 0)
            head, written = match, 0
        elif line.startswith(("Anonymous:", "Swap:")):
            written += int(line.split()[1])
