"""A copy of weights in the memory of the host, in buckets that can be read while the next ones are being written."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from purerl.backends.transfer.engine.purerl_receiver import padded
from purerl.backends.transfer.memory import Memory
from purerl.errors import EngineError
from purerl.protocols import Weights

__all__ = ["Bucket", "WeightBuckets"]

_SIZE = 128 * 2**20  # bytes of a bucket, if no tensor is larger


class Bucket(NamedTuple):
    """Tensors, one after the other in `data` (uint8), each with as many bytes as `padded` says.

    `header` has their names, dtypes and shapes, the number of bytes, and the path of the memory if it is shared.
    """

    header: dict[str, Any]
    data: Tensor


class WeightBuckets:
    """The weights of `version`. One thread calls `fill`, and any number of threads call `read`.

    `fill` waits until `attach` has been called `readers` times: who does it no longer reads `old`, the weights of
    another version, whose memory is then used again.

    is_shared  the buckets are in memory that other processes of this host can read
    """

    def __init__(
        self,
        version: int,
        *,
        is_shared: bool = False,
        readers: int = 0,
        old: WeightBuckets | None = None,
        size: int = _SIZE,
    ) -> None:
        self.version, self._is_shared, self._missing, self._old, self._size = version, is_shared, readers, old, size
        self._buckets: list[Bucket] = []
        self.memory: list[Memory] = []  # of the buckets, in their order
        self._is_complete = False
        self._error: str | None = None
        self._changed = threading.Condition()

    def attach(self) -> None:
        """Say that a reader is ready."""
        with self._changed:
            self._missing -= 1
            self._changed.notify_all()

    def fill(self, weights: Weights, *, timeout: float) -> None:
        """Copy all of `weights`, after waiting `timeout` seconds at most for all readers.

        Collective, as the iteration of `weights`. What it raises, readers get as EngineError.
        """
        with self._changed:
            is_free = self._changed.wait_for(lambda: self._missing <= 0, timeout)
        free, self._old = (self._old.memory if self._old is not None and is_free else []), None
        try:
            missing = sum(padded(math.prod(shape) * dtype.itemsize) for shape, dtype in weights.metadata.values())
            writer = self._writer(min(self._size, missing), free)
            for name, value in weights:
                if not writer.fits(value):
                    self._add(writer.bucket())
                    writer = self._writer(max(padded(value.nbytes), min(self._size, missing)), free)
                writer.add(name, value)
                missing -= padded(value.nbytes)
            self._add(writer.bucket())
        except BaseException as error:
            self._error = f"{type(error).__name__}: {error}"
            raise
        finally:
            with self._changed:
                self._is_complete = True
                self._changed.notify_all()

    def _writer(self, capacity: int, free: list[Memory]) -> _Writer:
        """A new bucket; it takes the first of `free`, if that is large enough."""
        is_enough = bool(free) and len(free[0]) >= capacity
        memory = free.pop(0) if is_enough else Memory(capacity, is_shared=self._is_shared)
        self.memory.append(memory)
        return _Writer(memory, capacity)

    def _add(self, bucket: Bucket) -> None:
        with self._changed:
            if bucket.header["names"]:
                self._buckets.append(bucket)
            self._changed.notify_all()

    def read(self, timeout: float) -> Iterator[Bucket]:
        """All buckets; waits `timeout` seconds for each that is not there yet. Raises EngineError."""
        for number in itertools.count():
            with self._changed:
                if not self._changed.wait_for(partial(self._has, number), timeout):
                    raise EngineError("weights of the trainer", got=f"no more after {timeout:g} seconds")
                if self._error is not None:
                    raise EngineError("weights of the trainer", got=self._error)
                if len(self._buckets) == number:
                    return
                bucket = self._buckets[number]
            yield bucket

    def _has(self, number: int) -> bool:
        """Whether bucket `number` is there, or will not come."""
        return len(self._buckets) > number or self._is_complete


class _Writer:
    """A bucket that is being written into `memory`, of which it uses at most `capacity` bytes."""

    def __init__(self, memory: Memory, capacity: int) -> None:
        self._memory, self._data = memory, memory.data[:capacity]
        self._header: dict[str, list[Any]] = {"names": [], "dtypes": [], "shapes": []}
        self._used = 0

    def fits(self, value: Tensor) -> bool:
        return self._used + padded(value.nbytes) <= len(self._data)

    def add(self, name: str, value: Tensor) -> None:
        end = self._used + value.nbytes
        self._data[self._used : end].view(value.dtype).view(value.shape).copy_(value.detach())
        self._used += padded(value.nbytes)
        self._data[end : self._used] = 0
        self._header["names"].append(name)
        self._header["dtypes"].append(str(value.dtype).removeprefix("torch."))
        self._header["shapes"].append([*value.shape])

    def bucket(self) -> Bucket:
        header = {**self._header, "bytes": self._used, "path": self._memory.path}
        return Bucket(header, self._data[: self._used])
