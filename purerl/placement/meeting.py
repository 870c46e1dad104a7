"""The rendezvous of the ranks of a run, which strangers cannot join.

Ranks that `purerl train` has started find a folder of mode 0700, which it has made, and open no port. Others meet in a
store of torch.distributed, which everybody can reach who reaches its port: torchrun has opened it, or rank 0 opens it
for srun. There they prove to each other that they have the secret of the run directory, agree on a key for this start
of the run, and move to a folder of rank 0 if all of them are on one host. Otherwise they stay in the store, and sign
what they write there.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import ipaddress
import itertools
import os
import socket
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from purerl.errors import ConfigError
from purerl.placement.world import World
from purerl.ranks import OpenStore, this_host
from purerl.system.messages import decode, encode
from purerl.system.private_files import open_private, private_folder
from purerl.system.run_secret import new_secret
from purerl.system.stores import FolderStore, SignedStore, Store, listening_store

__all__ = [
    "PRIVATE",
    "SECRET_VARIABLE",
    "Meeting",
    "meet",
    "meet_in_folder",
    "network_store",
    "prepare_folder",
    "read_secret",
]

SECRET_VARIABLE = "PURERL_RUN_SECRET"  # noqa: S105 - the name of a variable
"""The variable that has the secret of the run, where its directory cannot have a file that only its owner can read."""

PRIVATE = "private"
"""The folder of a run directory that only its owner can enter."""

_PREFIX = "purerl-ranks-"
_SECRET, _TORCH = "secret", "torch"
_HEXADECIMAL = 64  # digits of a secret
_POLL = 0.05  # seconds
_LOOPBACK = "127.0.0.1"
_given: list[bytes] = []  # the secret of `SECRET_VARIABLE`, once it has been read
_stores: dict[tuple[str, int], Any] = {}  # of the network, by address and port
_STARTS = itertools.count()  # of runs in this process, which all ranks begin in the same order


class Meeting(NamedTuple):
    """The rendezvous of the ranks of a run.

    store        of torch.distributed, for process groups
    open_store   opens the stores of their messages
    secret       of this start of the run
    is_one_host  whether all ranks are on one host
    """

    store: Any
    open_store: OpenStore
    secret: bytes
    is_one_host: bool


def prepare_folder(folder: Path) -> None:
    """Write a new secret into `folder`, which has mode 0700, for `meet_in_folder`."""
    FolderStore(folder, 0.0).set(_SECRET, new_secret())


def meet_in_folder(folder: Path, timeout: float) -> Meeting:
    """The meeting of ranks that have been given the same `folder`."""
    return _in_folder(folder, FolderStore(folder, timeout).get(_SECRET), timeout)


def meet(store: Any, rank: int, size: int, secret: bytes, timeout: float, stack: ExitStack) -> Meeting:
    """The meeting of `size` ranks with the same `secret`, who find each other in `store`. Collective.

    A folder of rank 0 is removed when `stack` is closed.

    Raises: EngineError if a rank does not prove that it has the secret; RuntimeError if one does not come in time.
    """
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

    prefix = f"purerl/{next(_STARTS)}"
    own, shared = new_secret(), _signed(PrefixStore(f"{prefix}/start", store), secret, timeout)
    shared.set(f"{rank}", encode([own, this_host()]))
    answers = [decode(value) for value in shared.multi_get([f"{other}" for other in range(size)])]
    key = hmac.digest(secret, encode(answers), hashlib.sha256)
    if len({host for _, host in answers}) > 1:
        return _in_network(PrefixStore(prefix, store), key, timeout)
    shared = _signed(PrefixStore(f"{prefix}/folder", store), key, timeout)
    if rank == 0:
        shared.set(_PREFIX, str(stack.enter_context(private_folder(_PREFIX))).encode())
    folder = Path(shared.get(_PREFIX).decode())
    shared.set(f"{rank}", encode(_is_own(folder)))  # the ranks of a host may have temporary directories of their own
    if all(decode(value) for value in shared.multi_get([f"{other}" for other in range(size)])):
        return _in_folder(folder, key, timeout)
    return _in_network(PrefixStore(prefix, store), key, timeout)._replace(is_one_host=True)


def _in_folder(folder: Path, secret: bytes, timeout: float) -> Meeting:
    from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

    def open_store(name: str) -> Store:
        path = folder / name.replace("/", "-")
        path.mkdir(mode=0o700, exist_ok=True)
        return FolderStore(path, timeout)

    store = FileStore(str(folder / _TORCH), -1)
    store.set_timeout(timedelta(seconds=timeout))
    # Its destructor opens the file again. If the folder is removed meanwhile, it waits for `timeout` seconds, holding
    # Python's lock, and then ends the process. So this store, which has no open file, is never destroyed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
    return Meeting(store, open_store, secret, is_one_host=True)


def _in_network(store: Any, key: bytes, timeout: float) -> Meeting:
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

    def open_store(name: str) -> Store:
        own = hmac.digest(key, name.encode(), hashlib.sha256)
        return _signed(PrefixStore(f"messages/{name}", store.clone()), own, timeout)

    return Meeting(PrefixStore(_TORCH, store), open_store, key, is_one_host=False)


def _signed(store: Any, key: bytes, timeout: float) -> SignedStore:
    store.set_timeout(timedelta(seconds=timeout))
    return SignedStore(store, key)


def _is_own(folder: Path) -> bool:
    with suppress(OSError):
        status = folder.lstat()
        return status.st_uid == os.getuid() and not status.st_mode & 0o077
    return False


def read_secret(directory: Path, *, is_first: bool, timeout: float) -> bytes:
    """The secret of the run in `directory`: that of `SECRET_VARIABLE`, or of a file there of mode 0600.

    Rank 0 writes the file, unless it exists; others wait for it. The variable is removed, so that no other program of
    this process gets it; its value is that of all further runs in this process.

    Raises: ConfigError if the variable has no secret, or if there is no file in time; RunError if others can read it.
    """
    if (text := os.environ.pop(SECRET_VARIABLE, None)) is not None:
        _given[:] = [_to_secret(text, f"the variable {SECRET_VARIABLE}", f"{len(text)} characters")]
    if _given:
        return _given[0]
    path, end = directory / PRIVATE / _SECRET, time.monotonic() + timeout
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        with open_private(path) as file:
            text = file.read().strip()
            if not text and is_first:
                text = new_secret().hex()
                file.write(text)
        if len(text) >= _HEXADECIMAL:
            return _to_secret(text, f"the file {str(path)!r}", f"{len(text)} characters")
        if time.monotonic() >= end:
            do = f"let all ranks use one directory that all hosts see, or give all of them {SECRET_VARIABLE}"
            need = f"the secret that rank 0 writes, within placement.timeout = {timeout:g} s"
            raise ConfigError(f"the file {str(path)!r}", got="no secret", need=need, do=do)
        time.sleep(_POLL)


def _to_secret(text: str, what: str, got: str) -> bytes:
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if 2 * len(secret) < _HEXADECIMAL:
        need, do = f"{_HEXADECIMAL} random hexadecimal digits", "make them with: openssl rand -hex 32"
        raise ConfigError(what, got=got, need=need, do=do)
    return secret


def network_store(world: World, timeout: float) -> Any:
    """The store of `world`: that of torchrun, or one that rank 0 opens, on loopback if all ranks are on one host.

    Between hosts it is that of all runs of this process. Otherwise a rank that is faster than rank 0 would wait for the
    next run in the store of the one before, which ends.
    """
    if (place := (world.address, world.port)) not in _stores:
        store = _connect(world, timeout)
        if world.is_on_one_host:
            return store
        _stores[place] = store
    return _stores[place]


def _connect(world: World, timeout: float) -> Any:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    address = world.address if has_agent or not world.is_on_one_host else _LOOPBACK
    connect = partial(TCPStore, address, timeout=timedelta(seconds=timeout), wait_for_workers=False)
    if has_agent or world.rank > 0:
        return connect(world.port, is_master=False)
    return listening_store(_own_address(address), world.port, timeout)


def _own_address(name: str) -> str:
    """The address of this host that others reach by `name`; "" if that is not known: its own name may be loopback."""
    with suppress(OSError):
        address = socket.gethostbyname(name)
        if name == _LOOPBACK or not ipaddress.ip_address(address).is_loopback:
            return address
    return ""
