"""The newest buckets on a device, from which receivers read them without passing through the host."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import torch
from attrs import define, field
from torch import Tensor

__all__ = ["THROUGH_HOST", "Staging"]

_NUMBER = 2  # one is read while the next one is written
_LOG = logging.getLogger(__name__)

THROUGH_HOST = "weights pass through the memory of the host"
"""The text of a warning if memory of a device cannot be used."""


@define(eq=False)
class _Buffer:
    """Memory of a bucket. `readers` has for each one that was given the memory whether it has read the bucket."""

    data: Tensor
    bucket: int | None = None
    readers: list[Callable[[], bool]] = field(factory=list)


class Staging:
    """A few buffers of `size` bytes on `device`; each holds a bucket until all of `readers` have read it.

    Nothing waits for a reader: while all buffers are in use, buckets are not staged. A reader that fails never says
    that it has read, so its buffer remains in use. One thread calls `take`, and any number of threads call `lend`.

    Without memory for the buffers on the device, nothing is staged, and a warning says so.
    """

    def __init__(self, device: torch.device, size: int, *, readers: int) -> None:
        self.device, self._size, self._readers = device, size, readers
        self._lock = threading.Lock()
        self._buffers = [_Buffer(data) for data in _allocated(device, size)]

    def take(self, bucket: int, size: int) -> Tensor | None:
        """Memory for the `size` bytes of `bucket`, to be written; None if it is too large, or no buffer is free."""
        with self._lock:
            for buffer in self._buffers if size <= self._size else ():
                if buffer.bucket is None or self._is_read(buffer):
                    buffer.bucket, buffer.readers = bucket, []
                    return buffer.data[:size]
        return None

    def _is_read(self, buffer: _Buffer) -> bool:
        return len(buffer.readers) >= self._readers and all(is_read() for is_read in buffer.readers)

    def lend(self, bucket: int, is_read: Callable[[], bool]) -> Tensor | None:
        """The memory of `bucket`, for a reader that needs it until `is_read()`; None if it is not there."""
        with self._lock:
            for buffer in self._buffers:
                if buffer.bucket == bucket:
                    buffer.readers.append(is_read)
                    return buffer.data
        return None


def _allocated(device: torch.device, size: int) -> list[Tensor]:
    try:
        return [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(_NUMBER)]
    except torch.OutOfMemoryError as error:
        _LOG.warning(f"{THROUGH_HOST}: %s has no %d MiB for them: %s", device, _NUMBER * size // 2**20, error)
        return []
