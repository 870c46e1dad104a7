"""The receiver of weights in a process of an engine. It imports nothing but torch and the standard library.

For each transfer n, counted from 0, the two sides exchange messages over the sender's store, under these keys:

    n/ready/RANK    the receiver RANK waits for the weights
    n/bucket/K      from the sender: names, dtypes, shapes and bytes of bucket K, and the path of the shared memory in
                    which it is, or null if it is broadcast next; after the last bucket, or if the sender has failed:
                    {"end": reason or null}
    n/report/RANK   what RANK received: its digest and the names, and the error of loading them, or null
"""

from __future__ import annotations

import itertools
import json
import socket
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it
from torch.distributed.distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, Work

__all__ = [
    "Address",
    "Digest",
    "Receiver",
    "TransferGroup",
    "VLLMWorker",
    "load_into_sglang",
    "local_address",
    "padded",
    "unpack",
]

Load = Callable[[Iterator[tuple[str, Tensor]]], object]

_ALIGNMENT = 16  # bytes
_CHUNK = 2**16  # words of a digest that are computed at a time: they fit in the cache


class Address(NamedTuple):
    """Where transfer `number` of the sender `name` takes place.

    size     processes: the sender, which is rank 0, and its receivers
    timeout  of each wait, in seconds
    """

    name: str
    host: str
    port: int
    size: int
    number: int
    timeout: float


class Digest:
    """Two sums over the 64-bit words w_i of a sequence of bytes, modulo 2^64: of w_i, and of (i + 1) w_i.

    A changed word changes the first sum, and words that change places change the second.
    """

    def __init__(self) -> None:
        self._sum = self._weighted = torch.tensor(0)
        self._words = 0
        self._index = torch.arange(1, _CHUNK + 1)

    def add(self, data: Tensor) -> None:
        """Continue with `data`, of dtype uint8, with a multiple of 8 bytes."""
        for part in data.view(torch.int64).split(_CHUNK):
            total = part.sum()
            self._sum = self._sum + total
            self._weighted = self._weighted + (part * self._index[: len(part)]).sum() + self._words * total
            self._words += len(part)

    def hex(self) -> str:
        """The sums in hexadecimal, and the number of words."""
        return "".join(f"{int(each) % 2**64:016x}" for each in (self._sum, self._weighted)) + f"-{self._words}"


def local_address(host: str) -> str:
    """The address of this computer in the network in which `host` is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((host, 9))
        return probe.getsockname()[0]


class TransferGroup:
    """A sender, which is rank 0, and its receivers. Waits until all have joined: RuntimeError after the timeout."""

    def __init__(self, store: Store, address: Address, rank: int) -> None:
        gloo: Any = ProcessGroupGloo  # its options, and the choice of the network, have no public names
        options = gloo._Options()  # noqa: SLF001
        options._timeout = timedelta(seconds=address.timeout)  # noqa: SLF001
        options._devices = [gloo.create_device(hostname=local_address(address.host))]  # noqa: SLF001
        self._group = gloo(PrefixStore("group", store), rank, address.size, options)

    def broadcast(self, data: Tensor) -> Work:
        """Begin to send `data`, or to receive into it."""
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        return self._group.broadcast([data], options)


def padded(size: int) -> int:
    """How many bytes of a bucket a tensor of `size` bytes takes: at least one multiple of 16."""
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
    """The receiver `rank` of the sender at `address`."""

    def __init__(self, address: Address, rank: int) -> None:
        timeout = timedelta(seconds=address.timeout)
        self._store = TCPStore(address.host, address.port, is_master=False, timeout=timeout)
        self._rank, self._address = rank, address
        self._group: TransferGroup | None = None  # joined when the first bucket is broadcast
        self._thread = ThreadPoolExecutor(1, "purerl receiver")

    def receive(self, number: int, load: Load) -> None:
        """Give all weights of transfer `number` to `load`, and report. Raises what `load` raises, after all have come.

        The weights that `load` does not take are received too, so the sender does not wait for them.
        """
        self._store.set(f"{number}/ready/{self._rank}", "")
        digest, names = Digest(), list[str]()
        stream = itertools.chain.from_iterable(self._buckets(number, digest, names))  # which `load` cannot close
        errors = [error for use in (load, _exhaust) if (error := _error_of(use, stream)) is not None]
        text = f"{type(errors[0]).__name__}: {errors[0]}" if errors else None
        report = {"digest": digest.hex(), "names": names, "error": text}
        self._store.set(f"{number}/report/{self._rank}", json.dumps(report))
        if errors:
            raise errors[0]

    def _buckets(self, number: int, digest: Digest, names: list[str]) -> Iterator[Iterator[tuple[str, Tensor]]]:
        """The tensors of each bucket. While they are loaded, the next bucket is received."""
        following = self._thread.submit(self._bucket, number, 0)
        for bucket in itertools.count(1):
            header, data = following.result()
            if data is None:
                if header["end"] is not None:
                    raise RuntimeError(f"the trainer did not send all weights: {header['end']}")
                return
            following = self._thread.submit(self._bucket, number, bucket)
            digest.add(data)
            names += header["names"]
            yield unpack(data, header)

    def _bucket(self, number: int, bucket: int) -> tuple[dict[str, Any], Tensor | None]:
        """What the sender says of a bucket, and its bytes; None after the last bucket."""
        header = json.loads(self._store.get(f"{number}/bucket/{bucket}"))
        return header, None if "end" in header else self.data(header["bytes"], header["path"])

    def data(self, size: int, path: str | None) -> Tensor:
        """A copy of the first `size` bytes of the shared memory `path`; without a path, `size` bytes by broadcast."""
        if path is not None:
            return torch.from_file(path, size=size, dtype=torch.uint8).clone()
        self._group = self._group or TransferGroup(self._store, self._address, self._rank)
        data = torch.empty(size, dtype=torch.uint8)
        self._group.broadcast(data).wait()
        return data


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


def _receive(address: Address, rank: int, load: Load) -> None:
    if address.name not in _RECEIVERS:
        _RECEIVERS.clear()
        _RECEIVERS[address.name] = Receiver(address, rank)
    _RECEIVERS[address.name].receive(address.number, load)


class VLLMWorker:
    """Methods that are added to vLLM's workers (``--worker-extension-cls``), to be called by ``/collective_rpc``."""

    rank: int
    reload_weights: Callable[..., None]

    def purerl_receive(self, **address: Any) -> None:
        """Receive and load the weights of one transfer; the arguments are those of `Address`."""
        _receive(Address(**address), 1 + self.rank, lambda stream: self.reload_weights(weights_iterator=stream))


def load_into_sglang(model: Any, named_tensors: list[tuple[str, Tensor]]) -> None:
    """Load weights in SGLang (``--custom-weight-loader``). The only name in `named_tensors` is an address, as JSON."""
    [(address, _)] = named_tensors
    _receive(Address(**json.loads(address)), 1 + torch.distributed.get_rank(), model.load_weights)
