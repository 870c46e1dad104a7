"""Weights to all processes of one server, and the proof that they have arrived."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

from purerl.backends.transfer.buckets import Bucket, WeightBuckets
from purerl.backends.transfer.engine.purerl_messages import GROUP, Address, Handle, Messages, files_in, key_of
from purerl.backends.transfer.engine.purerl_receiver import TransferGroup, handle_of, identity_of, local_address
from purerl.backends.transfer.staging import THROUGH_HOST, Staging
from purerl.errors import EngineError
from purerl.system.devices.kinds import BROADCAST_BETWEEN_DEVICES, HANDLES_OF_DEVICE
from purerl.system.private_files import private_folder
from purerl.system.stores import listening_store

__all__ = ["Sender", "TransferError"]

_PREFIX = "purerl-transfer-"
_POLL = 0.002  # seconds
_LOG = logging.getLogger(__name__)


class TransferError(Exception):
    """Weights did not arrive, or not as they were sent. The server must be started again.

    `is_report`: the engine has said that it does not load them.
    """

    is_report = False


class Sender:
    """Sends weights to the `receivers` processes of the server at `host`; every wait ends after `timeout` seconds.

    token     of the server
    is_local  whether the server is a process of this user on this host: no port is opened for messages then
    group     None until the first broadcast
    """

    def __init__(self, host: str, receivers: int, *, token: str, is_local: bool, timeout: float) -> None:
        self._token, self._limit = token, timeout
        self._stack = ExitStack()
        folder = str(self._stack.enter_context(private_folder(_PREFIX))) if is_local else ""
        own, port, self._open_store = local_address(host), 0, files_in(folder)
        if not is_local:
            store = listening_store(own, 0, timeout)
            port, self._open_store = store.port, lambda name: PrefixStore(name, store)
        self._address = Address(uuid4().hex, folder, own, port, 1 + receivers, 0, timeout)
        self.group: TransferGroup | None = None
        self._cancelled, self._sending = threading.Event(), threading.Lock()
        self._has_warned = False

    @property
    def address(self) -> Address:
        """The address of the next transfer, for the receivers."""
        return self._address

    def cancel(self) -> None:
        """Let `send`, in another thread, end soon with TransferError. The sender cannot be used afterwards."""
        self._cancelled.set()
        if self.group is not None:
            self.group.abort()
        if self._sending.acquire(blocking=False):  # otherwise `send` closes it
            self._sending.release()
            self._stack.close()

    def send(self, buckets: WeightBuckets) -> None:
        """Send `buckets`, while they are being filled, and compare what the receivers report.

        Raises: TransferError if they do not join, receive, and load the weights in time, or have received other bytes;
            EngineError if their devices cannot receive a broadcast.
        """
        try:
            with self._sending:
                self._send_all(buckets)
        finally:
            if self._cancelled.is_set():
                self._stack.close()

    def _send_all(self, buckets: WeightBuckets) -> None:
        address = self._address
        self._address = address._replace(number=address.number + 1)
        messages = Messages(self._open_store(str(address.number)), key_of(self._token, address), self._limit)
        self._exchange(messages, buckets)
        if address.folder:  # after a failure, receivers may still read why
            shutil.rmtree(Path(address.folder, str(address.number)), ignore_errors=True)

    def _exchange(self, messages: Messages, buckets: WeightBuckets) -> None:
        names, sent, device = list[str](), 0, buckets.device or torch.device("cpu")
        devices = self._wait_for(messages, "ready", "receiver")
        if not buckets.is_shared and (problem := _problem_of(identity_of(device), devices)) is not None:
            messages.set("bucket/0", {"end": str(problem)})
            raise problem
        handles = _Handles(messages, devices)
        try:
            for bucket in buckets.read(self._limit):
                offered = handles.of(buckets.staging, sent) if buckets.is_shared else {}
                messages.set(f"bucket/{sent}", {**bucket.header, "handles": offered, "kind": device.type})
                if not buckets.is_shared:
                    self._broadcast(bucket, buckets.staging, sent, device)
                sent += 1
                names += bucket.header["names"]
            messages.set(f"bucket/{sent}", {"end": None})
            digest = buckets.digest(self._limit)
        except (EngineError, RuntimeError, TimeoutError) as error:
            messages.set(f"bucket/{sent}", {"end": str(error)})
            raise TransferError(f"weights were not sent: {error}") from error
        for rank, report in enumerate(self._wait_for(messages, "report", "report"), start=1):
            _compare(rank, report, digest, names)
            self._warn(rank, report["unopened"])
        for key in [*(f"bucket/{k}" for k in range(sent + 1)), *handles.keys]:
            messages.delete(key)

    def _broadcast(self, bucket: Bucket, staging: Staging | None, number: int, device: torch.device) -> None:
        """Send the bytes of `bucket`, which has this `number`, from `device`, after all receivers have joined."""
        is_sent = threading.Event()
        staged = None if staging is None else staging.lend(number, is_sent.is_set)
        data = bucket.data.to(device) if staged is None else staged[: len(bucket.data)]
        self.group = self.group or TransferGroup(self._open_store(GROUP), self._address, 0, device, self._token)
        if self._cancelled.is_set():
            raise RuntimeError("the transfer was given up")
        self.group.broadcast(data)
        is_sent.set()

    def _warn(self, rank: int, problem: str | None) -> None:
        if problem is not None and not self._has_warned:
            why = "process %d of the server cannot open that of a device: %s"
            _LOG.warning(f"{THROUGH_HOST}: {why}", rank, problem)
            self._has_warned = True

    def _wait_for(self, messages: Messages, prefix: str, what: str) -> list[Any]:
        """The messages of all receivers. Raises: TransferError if one does not come in time, or is of a stranger."""
        keys = [f"{prefix}/{rank}" for rank in range(1, self._address.size)]
        end = time.monotonic() + self._limit
        while not messages.has(keys):
            if self._cancelled.is_set():
                raise TransferError("the transfer was given up")
            if time.monotonic() > end:
                raise TransferError(f"no {what} from the server within {self._limit:g} seconds")
            time.sleep(_POLL)
        try:
            received = [messages.get(key) for key in keys]
        except RuntimeError as error:
            raise TransferError(str(error)) from error
        for key in keys:
            messages.delete(key)
        return received


class _Handles:
    """The handles of staged buckets in a transfer, for the receivers on the same device.

    devices  of all receivers: their `identity_of`
    keys     where receivers say that they have read
    """

    def __init__(self, messages: Messages, devices: Sequence[str]) -> None:
        self._messages, self._devices = messages, devices
        self._made: dict[int, dict[int, Handle]] = {}  # by the address of the memory, and by rank
        self.keys: list[str] = []

    def of(self, staging: Staging | None, bucket: int) -> dict[int, Handle]:
        """By rank, the handle of `bucket`; nothing if it is not staged, or cannot be shared."""
        if staging is None:
            return {}
        own = identity_of(staging.device)
        ranks = [rank for rank, device in enumerate(self._devices, start=1) if device == own]
        keys = [f"read/{rank}/{bucket}" for rank in ranks]
        data = staging.lend(bucket, lambda: not keys or self._messages.has(keys))
        if data is None:
            return {}
        if data.data_ptr() not in self._made:
            try:
                self._made[data.data_ptr()] = {rank: handle_of(data) for rank in ranks}
            except RuntimeError as error:
                _LOG.warning(f"{THROUGH_HOST}: that of the trainer's device cannot be shared: %s", error)
                self._made[data.data_ptr()] = {}
        self.keys += keys
        return self._made[data.data_ptr()]


def _problem_of(own: str, others: Sequence[str]) -> EngineError | None:
    """The problem of a broadcast from the device `own` to the devices `others`, by their `identity_of`."""
    kind, count = own.split(maxsplit=1)[0], len({own, *others})
    if kind == "cpu" or (count > len(others) and all(device.split()[0] == kind for device in others)):
        return None
    has = f"the trainer has {own}, and the processes of the server have {', '.join(others)}"
    got = f"{BROADCAST_BETWEEN_DEVICES}: {has}"
    need = f"a device of kind {kind} for each process, which is not that of the trainer"
    do = f"set server.devices, or set server.weight_transfer to {HANDLES_OF_DEVICE} or shared_memory"
    return EngineError("server.weight_transfer", got=got, need=need, do=do)


def _compare(rank: int, report: Mapping[str, object], digest: str, names: Sequence[str]) -> None:
    """Raise TransferError if a receiver has other weights than those that were sent."""
    if report["error"] is not None:
        error = TransferError(f"process {rank} of the server did not load the weights: {report['error']}")
        error.is_report = True
        raise error
    if report["digest"] != digest:
        raise TransferError(f"process {rank} of the server got other bytes: digest {report['digest']}, sent {digest}")
    if report["names"] != list(names):
        raise TransferError(f"process {rank} of the server got {len(report['names'])} tensors of {len(names)}")
