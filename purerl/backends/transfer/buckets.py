"""A copy of weights in the memory of the host, in buckets that can be read while the next ones are being written.

The newest buckets can be on a device too: see `purerl.backends.transfer.staging`.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purerl.backends.transfer.engine.purerl_receiver import Digest, padded, synchronize
from purerl.backends.transfer.memory import Memory
from purerl.backends.transfer.staging import Staging
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
    """The weights of `version`. One thread calls `fill`, and any number of threads call the other methods.

    `fill` waits until `attach` has been called `readers` times: who does it no longer reads `old`, the weights of
    another version, whose memory is then used again.

    is_shared  the buckets are in memory that other processes of this host can read
    device     buckets are gathered on this device, as far as `staging` has memory, and copied to the host as a whole;
               None: each tensor is copied to the host
    staging    the buckets that are on the device; None before `fill`, and after `end_staging`
    """

    def __init__(
        self,
        version: int,
        *,
        is_shared: bool = False,
        device: torch.device | None = None,
        readers: int = 0,
        old: WeightBuckets | None = None,
        size: int = _SIZE,
    ) -> None:
        self.version, self.device, self.is_shared = version, device, is_shared
        self._readers = self._missing = readers
        self._old, self._size = old, size
        self._buckets: list[Bucket] = []
        self.memory: list[Memory] = []  # of the buckets, in their order
        self.staging: Staging | None = None
        self._digest: Future[str] = Future()
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
        with ThreadPoolExecutor(1, "purerl digest") as thread:
            self._digest = thread.submit(self._compute_digest)
            try:
                self._copy(weights, free)
            except BaseException as error:
                self._error = f"{type(error).__name__}: {error}"
                raise
            finally:
                with self._changed:
                    self._is_complete = True
                    self._changed.notify_all()

    def _copy(self, weights: Weights, free: list[Memory]) -> None:
        missing = sum(padded(math.prod(shape) * dtype.itemsize) for shape, dtype in weights.metadata.values())
        if self.device is not None:
            self.staging = Staging(self.device, min(self._size, missing), readers=self._readers)
        writer = None
        for name, value in weights:
            if writer is None or not writer.fits(value):
                self._add(writer)
                writer = self._writer(max(padded(value.nbytes), min(self._size, missing)), free)
            writer.add(name, value)
            missing -= padded(value.nbytes)
        self._add(writer)

    def _writer(self, capacity: int, free: list[Memory]) -> _Writer:
        """A new bucket; it takes the first of `free`, if that is large enough."""
        is_enough = bool(free) and len(free[0]) >= capacity
        memory = free.pop(0) if is_enough else Memory(capacity, is_shared=self.is_shared)
        self.memory.append(memory)
        staged = None if self.staging is None else self.staging.take(len(self._buckets), capacity)
        return _Writer(memory, capacity, staged)

    def _add(self, writer: _Writer | None) -> None:
        """Let the bucket of `writer` be read, if there is one."""
        if writer is not None:
            bucket = writer.bucket()
            with self._changed:
                self._buckets.append(bucket)
                self._changed.notify_all()

    def read(self, timeout: float | None) -> Iterator[Bucket]:
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

    def digest(self, timeout: float) -> str:
        """The `Digest` of all buckets, in the memory of the host, after they have been read. Raises TimeoutError."""
        return self._digest.result(timeout)

    def _compute_digest(self) -> str:
        digest = Digest()
        for bucket in self.read(None):
            digest.add(bucket.data)
        return digest.hex()

    def end_staging(self) -> None:
        """Free the memory of the device, as soon as no process reads it."""
        self.staging = None


class _Writer:
    """A bucket that is being written into `memory`, of which it uses at most `capacity` bytes.

    With `staged`, memory of a device, it is written there, and then copied as a whole.
    """

    def __init__(self, memory: Memory, capacity: int, staged: Tensor | None) -> None:
        self._memory, self._data, self._staged = memory, memory.data[:capacity], staged
        self._header: dict[str, list[Any]] = {"names": [], "dtypes": [], "shapes": []}
        self._used = 0

    def fits(self, value: Tensor) -> bool:
        return self._used + padded(value.nbytes) <= len(self._data)

    def add(self, name: str, value: Tensor) -> None:
        data = self._data if self._staged is None else self._staged
        end = self._used + value.nbytes
        data[self._used : end].view(value.dtype).view(value.shape).copy_(value.detach())
        self._used += padded(value.nbytes)
        data[end : self._used] = 0
        self._header["names"].append(name)
        self._header["dtypes"].append(str(value.dtype).removeprefix("torch."))
        self._header["shapes"].append([*value.shape])

    def bucket(self) -> Bucket:
        data = self._data[: self._used]
        if self._staged is not None:
            data.copy_(self._staged[: self._used])
            synchronize(self._staged.device)
        return Bucket({**self._header, "bytes": self._used, "path": self._memory.path}, data)
