"""A copy of weights in the memory of the host, in buckets that can be read while the next ones are being written."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purerl.backends.transfer.engine.purerl_receiver import ALIGNMENT
from purerl.errors import EngineError
from purerl.protocols import Weights

__all__ = ["Bucket", "WeightBuckets"]

_SIZE = 128 * 2**20  # bytes of a bucket, if no tensor is larger


class Bucket(NamedTuple):
    """Tensors, one after the other in `data` (uint8), each at a multiple of `ALIGNMENT` bytes."""

    header: dict[str, Any]
    data: Tensor


class WeightBuckets:
    """The weights of `version`. One thread calls `fill`, and any number of threads call `read`.

    `fill` waits until `attach` has been called `readers` times: who does it has dropped the weights of other versions,
    so that there is one copy.
    """

    def __init__(self, version: int, *, readers: int = 0, size: int = _SIZE) -> None:
        self.version, self._missing, self._size = version, readers, size
        self._buckets: list[Bucket] = []
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
            self._changed.wait_for(lambda: self._missing <= 0, timeout)
        try:
            missing = sum(_padded(math.prod(shape) * dtype.itemsize) for shape, dtype in weights.metadata.values())
            writer = _Writer(min(self._size, missing))
            for name, value in weights:
                if not writer.fits(value):
                    self._add(writer.bucket())
                    writer = _Writer(max(_padded(value.nbytes), min(self._size, missing)))
                writer.add(name, value)
                missing -= _padded(value.nbytes)
            self._add(writer.bucket())
        except BaseException as error:
            self._error = f"{type(error).__name__}: {error}"
            raise
        finally:
            with self._changed:
                self._is_complete = True
                self._changed.notify_all()

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
    """A bucket that is being written; `capacity` in bytes."""

    def __init__(self, capacity: int) -> None:
        self._data = torch.empty(capacity, dtype=torch.uint8)
        self._header: dict[str, list[Any]] = {"names": [], "dtypes": [], "shapes": []}
        self._used = 0

    def fits(self, value: Tensor) -> bool:
        return self._used + _padded(value.nbytes) <= len(self._data)

    def add(self, name: str, value: Tensor) -> None:
        own = self._data[self._used : self._used + value.nbytes]
        own.view(value.dtype).view(value.shape).copy_(value.detach())
        self._data[self._used + value.nbytes : self._used + _padded(value.nbytes)] = 0
        self._used += _padded(value.nbytes)
        for key, entry in (
            ("names", name),
            ("dtypes", str(value.dtype).removeprefix("torch.")),
            ("shapes", [*value.shape]),
        ):
            self._header[key].append(entry)

    def bucket(self) -> Bucket:
        return Bucket({**self._header, "bytes": self._used}, self._data[: self._used])


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
