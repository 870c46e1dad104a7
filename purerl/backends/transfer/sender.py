"""Weights to all processes of one server, and the proof that they have arrived."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it
from torch.distributed.distributed_c10d import Work

from purerl.backends.transfer.buckets import WeightBuckets
from purerl.backends.transfer.engine.purerl_receiver import Address, Digest, TransferGroup, local_address
from purerl.errors import EngineError

__all__ = ["Sender", "TransferError"]

_POLL = 0.002  # seconds


class TransferError(Exception):
    """Weights did not arrive, or not as they were sent. The server must be started again."""


class Sender:
    """Sends weights to the `receivers` processes of the server at `host`; every wait ends after `timeout` seconds.

    group  None until the first broadcast
    """

    def __init__(self, host: str, receivers: int, *, timeout: float) -> None:
        own, self._limit = local_address(host), timeout
        self._store = TCPStore(own, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout))
        self._address = Address(uuid4().hex, own, self._store.port, 1 + receivers, 0, timeout)
        self.group: TransferGroup | None = None
        self._cancelled = threading.Event()

    @property
    def address(self) -> Address:
        """Where the receivers find the next transfer."""
        return self._address

    def cancel(self) -> None:
        """Let `send`, in another thread, end soon with TransferError. The sender cannot be used afterwards."""
        self._cancelled.set()

    def send(self, buckets: WeightBuckets) -> None:
        """Send `buckets`, while they are being filled, and compare what the receivers report.

        Raises: TransferError if they do not join, receive, and load the weights in time, or have received other bytes.
        """
        number, digest, names, sent = self._address.number, Digest(), list[str](), 0
        self._address = self._address._replace(number=number + 1)
        self._wait_for(f"{number}/ready", "receiver")
        try:
            for bucket in buckets.read(self._limit):
                self._set(f"{number}/bucket/{sent}", bucket.header)
                sent += 1
                work = None if bucket.header["path"] else self._broadcast(bucket.data)
                digest.add(bucket.data)
                names += bucket.header["names"]
                if work is not None:
                    work.wait()
        except (EngineError, RuntimeError) as error:
            self._set(f"{number}/bucket/{sent}", {"end": str(error)})
            raise TransferError(f"weights were not sent: {error}") from error
        self._set(f"{number}/bucket/{sent}", {"end": None})
        for rank, message in enumerate(self._wait_for(f"{number}/report", "report"), start=1):
            _compare(rank, json.loads(message), digest.hex(), names)
        for key in [f"{number}/bucket/{k}" for k in range(sent + 1)]:
            self._store.delete_key(key)

    def _broadcast(self, data: Tensor) -> Work:
        """Begin to send `data`, after all receivers have joined the group."""
        self.group = self.group or TransferGroup(self._store, self._address, 0)
        return self.group.broadcast(data)

    def _set(self, key: str, message: object) -> None:
        self._store.set(key, json.dumps(message))

    def _wait_for(self, prefix: str, what: str) -> list[bytes]:
        """The messages of all receivers."""
        keys = [f"{prefix}/{rank}" for rank in range(1, self._address.size)]
        end = time.monotonic() + self._limit
        while not self._store.check(keys):
            if self._cancelled.is_set():
                raise TransferError("the transfer was given up")
            if time.monotonic() > end:
                raise TransferError(f"no {what} from the server within {self._limit:g} seconds")
            time.sleep(_POLL)
        messages = [self._store.get(key) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return messages


def _compare(rank: int, report: dict[str, object], digest: str, names: Sequence[str]) -> None:
    """Raise TransferError if a receiver has other weights than those that were sent."""
    if report["error"] is not None:
        raise TransferError(f"process {rank} of the server did not load the weights: {report['error']}")
    if report["digest"] != digest:
        raise TransferError(f"process {rank} of the server got other bytes: digest {report['digest']}, sent {digest}")
    if report["names"] != list(names):
        raise TransferError(f"process {rank} of the server got {len(report['names'])} tensors of {len(names)}")
