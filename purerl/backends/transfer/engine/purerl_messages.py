"""The messages of a transfer of weights. It imports nothing but torch and the standard library.

For each transfer the two sides exchange messages over a store, under these keys:

    ready/RANK    the receiver RANK, whose device has this `identity_of`, waits for the weights
    bucket/K      from the sender: names, dtypes, shapes and bytes of bucket K, and where it is:
                  handles  by RANK: a handle of memory of the receiver's device, for receivers on the sender's device
                  path     shared memory of the host, for the others; null: the bucket is broadcast next
                  kind     of the memory that is broadcast: "cpu", or the kind of the devices
                  After the last bucket, or if the sender has failed: {"end": reason or null}
    read/RANK/K   RANK no longer reads the memory of its handle for bucket K
    report/RANK   what RANK received: its digest and the names, the error of loading them, or null, and the error of
                  opening a handle, or null: it has then read the shared memory

The store is a file in a folder of the sender that only its user can enter, or, for servers that purerl has not started,
one that the sender has opened to the network. Each message is JSON and carries an HMAC of the token of the server,
which the engine has in the environment variable PURERL_SERVER_TOKEN. What does not carry it is refused before it is
read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed import FileStore, HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents them
from torch.distributed.distributed_c10d import AllToAllOptions, PrefixStore, Store

__all__ = ["Address", "Handle", "Messages", "StoreByName", "check_members", "files_in", "key_of", "stores_at"]

StoreByName = Callable[[str], Store]
"""The store with this name: the number of a transfer, or "group"."""

Handle = list[str | int | bool | None]
"""Values that another process needs to open memory of this one; their bytes are characters below 256, for JSON."""

_POLL = 0.001  # seconds
_CODE = 32  # bytes of an HMAC


class Address(NamedTuple):
    """The address of transfer `number` of the sender `name`.

    folder      with the stores; "" if the sender has opened one at `host` and `port`
    host, port  of the sender, in the network in which the server is
    size        processes: the sender, which is rank 0, and its receivers
    timeout     of each wait, in seconds
    """

    name: str
    folder: str
    host: str
    port: int
    size: int
    number: int
    timeout: float


def files_in(folder: str) -> StoreByName:
    """Stores that are files in `folder`."""
    return lambda name: FileStore(os.path.join(folder, name), -1)  # noqa: PTH118 - a name, and nothing is opened


def stores_at(address: Address) -> StoreByName:
    """The stores of a receiver of the sender at `address`."""
    if address.folder:
        return files_in(address.folder)
    store = TCPStore(address.host, address.port, is_master=False, timeout=timedelta(seconds=address.timeout))
    return lambda name: PrefixStore(name, store)


class Messages:
    """Messages of one transfer over `store`. The code of each is an HMAC of its key and its content, with `key`."""

    def __init__(self, store: Store, key: bytes, timeout: float) -> None:
        self._store, self._key, self._timeout = store, key, timeout

    def set(self, name: str, message: object) -> None:
        """Write `message`, which JSON can express."""
        text = json.dumps(message).encode()
        self._store.set(name, self._code(name, text) + text)

    def get(self, name: str) -> Any:
        """The message `name`, once it is there. Raises: RuntimeError if it does not come, or a stranger sent it."""
        end = time.monotonic() + self._timeout
        while not self.has([name]):
            if time.monotonic() > end:
                raise RuntimeError(f"no message {name!r} within {self._timeout:g} seconds")
            time.sleep(_POLL)
        signed = bytes(self._store.get(name))
        code, text = signed[:_CODE], signed[_CODE:]
        if not hmac.compare_digest(code, self._code(name, text)):
            raise RuntimeError(
                f"the message {name!r} is of a stranger, or of a process with another token of the server"
            )
        return json.loads(text)

    def has(self, names: list[str]) -> bool:
        """Whether all messages with these names are there."""
        return self._store.check(names)

    def delete(self, name: str) -> None:
        self._store.delete_key(name)

    def close(self) -> None:
        """Give the store up, also if something still refers to this object, such as an exception.

        No message is there then. A store that is a file writes into it when it ends. If others have replaced the file
        by then, it never ends.
        """
        self._store = HashStore()

    def _code(self, name: str, text: bytes) -> bytes:
        return _hmac(self._key, f"{len(name)} {name}".encode() + text)


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hashlib.sha256)


def key_of(token: str, address: Address) -> bytes:
    """The key of transfer `number` of the sender `name`, for the codes of its messages."""
    return _hmac(token.encode(), f"{address.name} {address.number}".encode())


def check_members(group: Any, store: Store, rank: int, size: int, token: str, timeout: timedelta) -> None:
    """Raise RuntimeError if a stranger is among the `size` members of the gloo `group`, who have met in `store`.

    gloo accepts the first process that connects to its port. So each member proves to each other one that it has the
    `token`, for numbers that both have chosen now.
    """
    store.set(f"member/{rank}", secrets.token_hex())
    numbers = [bytes(store.get(f"member/{member}")) for member in range(size)]

    def proof(sender: int, other: int) -> bytes:
        return _hmac(token.encode(), b" ".join([b"%d to %d" % (sender, other), numbers[sender], numbers[other]]))

    own = torch.frombuffer(bytearray(b"".join(proof(rank, member) for member in range(size))), dtype=torch.uint8)
    expected = b"".join(proof(member, rank) for member in range(size))
    received = torch.empty_like(own)
    options = AllToAllOptions()  # with a timeout of `wait` alone, the end of the group would wait for its own
    options.timeout = timeout
    group.alltoall_base(received, own, [], [], options).wait()
    if not hmac.compare_digest(bytes(received.tolist()), expected):
        raise RuntimeError("a process without the token of the server is in the group")
