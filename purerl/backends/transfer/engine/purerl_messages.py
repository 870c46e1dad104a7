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

The store is a folder in one of the sender that only its user can enter, or, for servers that purerl has not started,
one that the sender has opened to the network. Each message is JSON and carries an HMAC of the token of the server,
which the engine has in the environment variable PURERL_SERVER_TOKEN. What does not carry it is refused before it is
read.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import FileStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents them
from torch.distributed.distributed_c10d import AllToAllOptions, PrefixStore, Store

__all__ = [
    "GROUP",
    "Address",
    "FolderOfMessages",
    "Handle",
    "Messages",
    "StoreByName",
    "check_members",
    "files_in",
    "key_of",
    "stores_at",
]

GROUP = "group"

StoreByName = Callable[[str], Any]
"""The store with this name: the number of a transfer, or `GROUP`."""

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


class FolderOfMessages:
    """A store of messages, each of which is a file in the folder at `path`.

    torch's FileStore opens its file again when it ends, and may then read for ever what another process has written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self, key: str, value: bytes) -> None:
        """Write `value`, which others see as a whole. Raises: RuntimeError if the folder has been removed."""
        file, new = self._file(key), self._path / secrets.token_hex()
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            new.write_bytes(value)
            new.replace(file)
        except FileNotFoundError as error:
            raise RuntimeError("the transfer has ended") from error

    def get(self, key: str) -> bytes:
        return self._file(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        return all(self._file(key).exists() for key in keys)

    def delete_key(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._path / key.replace("/", "-")


def files_in(folder: str) -> StoreByName:
    """Stores that are in `folder`: "group" is one that torch needs, and the others are for messages."""

    def opened(name: str) -> Any:
        if name != GROUP:
            return FolderOfMessages(Path(folder, name))
        store = FileStore(str(Path(folder, name)), -1)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # it never ends: see `FolderOfMessages`
        return store

    return opened


def stores_at(address: Address) -> StoreByName:
    """The stores of a receiver of the sender at `address`."""
    if address.folder:
        return files_in(address.folder)
    store = TCPStore(address.host, address.port, is_master=False, timeout=timedelta(seconds=address.timeout))
    return lambda name: PrefixStore(name, store)


class Messages:
    """Messages of one transfer over `store`. The code of each is an HMAC of its key and its content, with `key`."""

    def __init__(self, store: Any, key: bytes, timeout: float) -> None:
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
