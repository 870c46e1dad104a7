"""The receiver of weights in a process of an engine. It imports nothing but torch and the standard library.

The messages that it exchanges with the sender are in `purerl_messages`.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import BroadcastOptions, ProcessGroupGloo, Store

if __package__:  # in purerl
    from purerl.backends.transfer.engine.purerl_messages import (
        GROUP,
        Address,
        Handle,
        Messages,
        check_members,
        key_of,
        stores_at,
    )
else:  # in an engine, which finds the files of this directory
    from purerl_messages import GROUP, Address, Handle, Messages, check_members, key_of, stores_at  # pyright: ignore[reportMissingImports]

__all__ = [
    "Digest",
    "Receiver",
    "TransferGroup",
    "handle_of",
    "identity_of",
    "load_into_sglang",
    "local_address",
    "opened",
    "padded",
    "receive",
    "synchronize",
    "unpack",
]

Load = Callable[[Iterator[tuple[str, Tensor]]], object]

_ALIGNMENT = 16  # bytes
_CHUNK, _LARGE_CHUNK = 2**16, 2**22
"""Words of a digest that are computed at a time, on a CPU, in whose cache they fit, and on other devices."""

_POLL = 0.05  # seconds
_CPU = torch.device("cpu")
_TOKEN = "PURERL_SERVER_TOKEN"  # noqa: S105 - the name of a variable


class Digest:
    """Two sums over the 64-bit words w_i of a sequence of bytes, modulo 2^64: of w_i, and of (i + 1) w_i.

    A changed word changes the first sum, and words that change places change the second. They are computed where the
    bytes are, and are the same on each device.
    """

    def __init__(self) -> None:
        self._sum = self._weighted = torch.tensor(0)
        self._words = 0
        self._indices: dict[torch.device, Tensor] = {}

    def add(self, data: Tensor) -> None:
        """Continue with `data`, of dtype uint8, with a multiple of 8 bytes."""
        index = self._index(data.device)
        for part in data.view(torch.int64).split(len(index)):
            total = part.sum()
            self._sum = self._sum + total
            self._weighted = self._weighted + (part * index[: len(part)]).sum() + self._words * total
            self._words += len(part)

    def _index(self, device: torch.device) -> Tensor:
        if device not in self._indices:
            size = _CHUNK if device.type == "cpu" else _LARGE_CHUNK
            self._indices[device] = torch.arange(1, size + 1, device=device)
        return self._indices[device]

    def hex(self) -> str:
        """The sums in hexadecimal, and the number of words."""
        return "".join(f"{int(each) % 2**64:016x}" for each in (self._sum, self._weighted)) + f"-{self._words}"


def identity_of(device: torch.device) -> str:
    """The kind of `device`, and what no other device of any host has: its UUID, or the name of this host."""
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    uuid = None if properties is None else getattr(properties(device), "uuid", None)
    return f"{device.type} {uuid or socket.gethostname()}"


def synchronize(device: torch.device) -> None:
    """Wait for everything that was started on `device`."""
    torch.get_device_module(device).synchronize(device)


_SHARE = {"cuda": "_share_cuda_", "cpu": "_share_filename_cpu_"}
_OPEN = {"cuda": "_new_shared_cuda", "cpu": "_new_shared_filename_cpu"}
"""Methods of torch.UntypedStorage, which torch.multiprocessing calls, by the kind of device."""


def handle_of(data: Tensor) -> Handle:
    """A handle of the memory of `data`, to be opened once. torch frees the memory after it has been closed."""
    values = getattr(data.untyped_storage(), _SHARE[data.device.type])()
    return [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]


def opened(handle: Handle, device: torch.device) -> Tensor:
    """The memory of `handle`, on `device` of this process. Raises RuntimeError if it cannot be opened."""
    values = [value.encode("latin-1") if isinstance(value, str) else value for value in handle]
    if device.type != "cpu":
        values[0] = device.index  # the other process may have another number for it
    storage = getattr(torch.UntypedStorage, _OPEN[device.type])(*values)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def local_address(host: str) -> str:
    """The address of this computer in the network in which `host` is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((host, 9))
        return probe.getsockname()[0]


class TransferGroup:
    """A sender, which is rank 0, and its receivers: of hosts if `device` is the CPU, otherwise of devices."""

    def __init__(self, store: Store, address: Address, rank: int, device: torch.device, token: str) -> None:
        self._store, self._address, self._rank, self._device, self._token = store, address, rank, device, token
        self._group: Any = None  # whose backend has joined
        self._is_aborted = Event()

    def broadcast(self, data: Tensor) -> None:
        """Send `data`, or receive into it, after all have joined the group. RuntimeError after the timeout or `abort`.

        It runs in a thread of its own, because joining a group of devices cannot be interrupted.
        """
        errors: list[BaseException] = []
        thread = Thread(target=self._broadcast, args=(data, errors), daemon=True)
        end = time.monotonic() + self._address.timeout
        thread.start()
        while thread.is_alive():
            thread.join(_POLL)
            if self._is_aborted.is_set() or time.monotonic() > end:
                self.abort()
                raise RuntimeError(f"a broadcast was given up, after at most {self._address.timeout:g} seconds")
        if errors:
            self.abort()
            raise RuntimeError(f"a broadcast has failed: {errors[0]}") from errors[0]

    def _broadcast(self, data: Tensor, errors: list[BaseException]) -> None:
        options, timeout = BroadcastOptions(), timedelta(seconds=self._address.timeout)
        options.rootRank = options.rootTensor = 0
        try:
            synchronize(self._device)  # an earlier use of this memory may not have ended
            with _own_stream(self._device):  # which waits for the broadcast, and no other
                self._group = self._group or self._join(timeout)
                if not self._is_aborted.is_set():
                    self._group.broadcast([data], options).wait(timeout)
                    synchronize(self._device)
        except BaseException as error:  # noqa: BLE001 - raised by `broadcast`
            errors.append(error)

    def _join(self, timeout: timedelta) -> Any:
        create = _gloo if self._device.type == "cpu" else _nccl
        return create(self._store, self._address, self._rank, timeout, self._token)

    def abort(self) -> None:
        """End a broadcast, also in the kernels of a device. The group cannot be used afterwards."""
        if not self._is_aborted.is_set():
            self._is_aborted.set()
            if self._group is not None:
                Thread(target=self._group.abort, daemon=True).start()  # it waits for these kernels


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    module = torch.get_device_module(device)
    return nullcontext() if device.type == "cpu" else module.stream(module.Stream(device))


def _gloo(store: Store, address: Address, rank: int, timeout: timedelta, token: str) -> Any:
    gloo: Any = ProcessGroupGloo  # its options, and the choice of the network, have no public names
    options = gloo._Options()  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=local_address(address.host))]  # noqa: SLF001
    group = gloo(store, rank, address.size, options)
    if not hasattr(gloo, "CHECKS_MEMBERS"):  # as in an engine, by `purerl_server`
        check_members(group, store, rank, address.size, token, timeout)
    return group


def _nccl(store: Store, address: Address, rank: int, timeout: timedelta, token: str) -> Any:
    del token  # a process needs what the store has to join it
    nccl = getattr(c10d, "ProcessGroupNCCL", None)
    if nccl is None:
        raise RuntimeError("this torch has no NCCL")
    options = nccl.Options()
    options._timeout = 2 * timeout  # noqa: SLF001 - `TransferGroup.broadcast` gives up before
    # torch reads this variable here. By default, the end of another process of the group ends this one too.
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    old = os.environ.get(name)
    os.environ[name] = "0"
    try:
        return nccl(store, rank, address.size, options)
    finally:
        del os.environ[name]
        os.environ.update({} if old is None else {name: old})


def padded(size: int) -> int:
    """The bytes of a bucket that a tensor of `size` bytes takes: at least one multiple of 16."""
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT


def unpack(data: Tensor, header: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) for each tensor in a bucket; the tensors share its memory."""
    start = 0
    for name, dtype_name, shape in zip(header["names"], header["dtypes"], header["shapes"], strict=True):
        dtype = getattr(torch, dtype_name)
        size = torch.Size(shape).numel() * dtype.itemsize
        yield name, data[start : start + size].view(dtype).view(shape)
        start += padded(size)


class Receiver:
    """The receiver `rank` of the sender at `address`, whose engine loads weights on `device`.

    token  of the server; by default that in the environment

    Raises: RuntimeError without a token.
    """

    def __init__(self, address: Address, rank: int, device: torch.device = _CPU, *, token: str | None = None) -> None:
        self._token = token or os.environ.get(_TOKEN, "")
        if not self._token:
            raise RuntimeError(f"the engine has no {_TOKEN} in its environment: it would load weights of strangers")
        self._stores = stores_at(address)
        self._rank, self._address, self._device = rank, address, device
        self._group: TransferGroup | None = None  # joined when the first bucket is broadcast
        self._opened: dict[str, Tensor] = {}  # memory of the sender, by its handle: each is opened once
        self._problem: str | None = None  # of opening it
        self._thread = ThreadPoolExecutor(1, "purerl receiver")

    def receive(self, number: int, load: Load) -> None:
        """Give all weights of transfer `number` to `load`, and report. Raises what `load` raises, after all have come.

        The weights that `load` does not take are received too, so the sender does not wait for them.
        """
        self._problem = None
        address = self._address._replace(number=number)
        self._messages = Messages(self._stores(str(number)), key_of(self._token, address), address.timeout)
        self._messages.set(f"ready/{self._rank}", identity_of(self._device))
        digest, names = Digest(), list[str]()
        stream = itertools.chain.from_iterable(self._buckets(digest, names))  # which `load` cannot close
        errors = [error for use in (load, _exhaust) if (error := _error_of(use, stream)) is not None]
        self._opened.clear()
        text = f"{type(errors[0]).__name__}: {errors[0]}" if errors else None
        report = {"digest": digest.hex(), "names": names, "error": text, "unopened": self._problem}
        self._messages.set(f"report/{self._rank}", report)
        if errors:
            raise errors[0]

    def _buckets(self, digest: Digest, names: list[str]) -> Iterator[Iterator[tuple[str, Tensor]]]:
        """The tensors of each bucket. While they are loaded, the next bucket is received."""
        following = self._thread.submit(self._bucket, 0)
        for bucket in itertools.count(1):
            header, data = following.result()
            if data is None:
                if header["end"] is not None:
                    raise RuntimeError(f"the trainer did not send all weights: {header['end']}")
                return
            following = self._thread.submit(self._bucket, bucket)
            digest.add(data)
            names += header["names"]
            yield unpack(data, header)

    def _bucket(self, bucket: int) -> tuple[dict[str, Any], Tensor | None]:
        """The sender's description of a bucket, and its bytes; None after the last bucket."""
        header = self._messages.get(f"bucket/{bucket}")
        if "end" in header:
            return header, None
        handle = header["handles"].get(str(self._rank))
        if handle is None:
            return header, self.data(header)
        try:
            data = self._read(handle, header["bytes"])
        finally:
            self._messages.set(f"read/{self._rank}/{bucket}", None)
        return header, self.data(header) if data is None else data

    def _read(self, handle: Handle, size: int) -> Tensor | None:
        """A copy of the first `size` bytes of the memory of `handle`; None if that is not possible."""
        try:
            key = json.dumps(handle)
            self._opened[key] = self._opened[key] if key in self._opened else opened(handle, self._device)
            synchronize(self._device)  # an earlier use of the memory of the copy may not have ended
            data = self._opened[key][:size].clone()
            synchronize(self._device)
        except RuntimeError as error:
            self._problem = str(error)
            return None
        return data

    def data(self, header: dict[str, Any]) -> Tensor:
        """The bytes of a bucket without a handle: a copy of shared memory, or by broadcast."""
        size, path = header["bytes"], header["path"]
        if path is not None:
            return torch.from_file(path, size=size, dtype=torch.uint8).clone()
        device = _CPU if header["kind"] == "cpu" else self._device
        group = self._stores(GROUP)
        self._group = self._group or TransferGroup(group, self._address, self._rank, device, self._token)
        data = torch.empty(size, dtype=torch.uint8, device=device)
        self._group.broadcast(data)
        return data

    def close(self) -> None:
        """Leave the group of the sender."""
        if self._group is not None:
            self._group.abort()


def _exhaust(stream: Iterator[object]) -> None:
    deque(stream, maxlen=0)


def _error_of(use: Load, stream: Iterator[tuple[str, Tensor]]) -> Exception | None:
    try:
        use(stream)
    except Exception as error:  # noqa: BLE001 - it is reported
        return error
    return None


_RECEIVERS: dict[str, Receiver] = {}
"""The receiver of this process, by the name of its sender: only that of the last sender."""


def receive(address: Address, rank: int, device: torch.device, load: Load) -> None:
    """Receive the weights of one transfer as receiver `rank`, and give them to `load`."""
    if address.name not in _RECEIVERS:
        for old in _RECEIVERS.values():
            old.close()
        _RECEIVERS.clear()
        _RECEIVERS[address.name] = Receiver(address, rank, device)
    _RECEIVERS[address.name].receive(address.number, load)


def load_into_sglang(model: Any, named_tensors: list[tuple[str, Tensor]]) -> None:
    """Load weights in SGLang (``--custom-weight-loader``). The only name in `named_tensors` is an address, as JSON."""
    [(address, _)] = named_tensors
    device = next(model.parameters()).device
    receive(Address(**json.loads(address)), 1 + torch.distributed.get_rank(), device, model.load_weights)
