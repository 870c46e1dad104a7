"""Stores of messages between the processes of a run, which a stranger can neither read nor write.

On one host the processes share a folder that belongs to one user (`FolderStore`). Between hosts they share a store of
torch.distributed, which everybody can write who reaches its port. There each value carries a code that only the
processes of the run can compute (`SignedStore`), and what does not carry it is refused before it is read.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from purerl.errors import EngineError

__all__ = ["FolderStore", "SignedStore", "Store", "listening_store", "without_frames"]

_POLL = 0.002  # seconds
_BACKLOG = 2048
_NEW = itertools.count()
_ERROR = 2  # the level of errors in the log of torch's C++ code
_blocks: list[int] = []  # the level before each block of `without_frames` that has not ended
_level_lock = threading.Lock()


class Store(Protocol):
    """Values by key, which all processes see. Several threads may use it.

    timeout  seconds that `get` waits

    Every method raises RuntimeError if the store does not exist any more.
    """

    timeout: float

    def set(self, key: str, value: bytes) -> None:
        """Let `value` be that of `key`."""
        ...

    def get(self, key: str) -> bytes:
        """The value of `key`, once there is one. Raises RuntimeError if there is none in time."""
        ...

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of `keys`, as `get`."""
        ...

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of `keys` have values."""
        ...

    def delete_key(self, key: str) -> None:
        """Remove `key` if it has a value."""
        ...


class FolderStore:
    """The folder at `path`, which only its owner may enter: a key is a file in it."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._path, self.timeout = path, timeout

    def set(self, key: str, value: bytes) -> None:
        file = self._file(key)
        new = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}-{next(_NEW)}.new")
        try:
            new.write_bytes(value)
            new.replace(file)  # other processes see the whole value, or none
        except OSError as error:
            raise self._lost(error) from error

    def get(self, key: str) -> bytes:
        end, file = time.monotonic() + self.timeout, self._file(key)
        while True:
            try:
                return file.read_bytes()
            except FileNotFoundError as error:
                if not self._path.is_dir():
                    raise self._lost(error) from error
            except OSError as error:
                raise self._lost(error) from error
            if time.monotonic() >= end:
                raise RuntimeError(f"no value of {key!r} within {self.timeout:g} seconds")
            time.sleep(_POLL)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        if all(self._file(key).exists() for key in keys):
            return True
        if not self._path.is_dir():
            raise self._lost(FileNotFoundError(f"no folder {str(self._path)!r}"))
        return False

    def delete_key(self, key: str) -> None:
        with suppress(OSError):
            self._file(key).unlink()

    def _file(self, key: str) -> Path:
        return self._path / f"key-{quote(key, safe='')}"

    def _lost(self, error: OSError) -> RuntimeError:
        return RuntimeError(f"the folder {str(self._path)!r} cannot be used: {error}")


class SignedStore:
    """A `store` of torch.distributed whose values carry an HMAC (SHA-256) of their key and themselves.

    key  secret of the processes that use it. It must be a new one for each run: values of an earlier one would be right
    """

    def __init__(self, store: Any, key: bytes) -> None:
        self._store, self._key = store, key
        self.timeout = store.timeout.total_seconds()

    def set(self, key: str, value: bytes) -> None:
        with without_frames():
            self._store.set(key, self._code(key, value) + value)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with without_frames():
            values = self._store.multi_get([*keys])
        return [self._checked(key, bytes(value)) for key, value in zip(keys, values, strict=True)]

    def check(self, keys: Sequence[str]) -> bool:
        with without_frames():
            return self._store.check([*keys])

    def delete_key(self, key: str) -> None:
        with without_frames():
            self._store.delete_key(key)

    def _code(self, key: str, value: bytes) -> bytes:
        name = key.encode()
        return hmac.digest(self._key, len(name).to_bytes(8, "little") + name + value, hashlib.sha256)

    def _checked(self, key: str, signed: bytes) -> bytes:
        code, value = signed[: hashlib.sha256().digest_size], signed[hashlib.sha256().digest_size :]
        if not hmac.compare_digest(code, self._code(key, value)):
            raise EngineError(
                "a message that no process of this run has sent",
                got=f"{len(signed)} bytes at {key!r} without the code that the secret of the run gives",
                need="messages of the processes of this run only",
                do="let nobody else reach the ports of the run (docs/how-to/scaling.md); "
                "all processes need the same secret",
            )
        return value


@contextmanager
def without_frames() -> Iterator[None]:
    """In this block a lost connection of torch.distributed is an error without the frames of its C++ code.

    torch would also log them. Its C++ code, of all threads, logs only errors in the block, and no warnings.
    """
    level = _log_level()
    with _level_lock:
        _blocks.append(level.value)
        level.value = max(level.value, _ERROR)
    try:
        yield
    except RuntimeError as error:
        if (message := str(error).partition("\nException raised from ")[0]) != str(error):
            error.args = (message,)
        raise
    finally:
        with _level_lock:
            before = _blocks.pop()
            if not _blocks:
                level.value = before


@cache
def _log_level() -> ctypes.c_int:
    """The level from which on the C++ code of torch logs, in its memory; something else if it is not found there."""
    import torch

    with suppress(OSError, ValueError):
        [library] = (Path(torch.__file__).parent / "lib").glob("libc10.*")
        return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    return ctypes.c_int()


def listening_store(address: str, port: int, timeout: float) -> Any:
    """A store of torch.distributed that listens at `address` only; "" is every address. Port 0 is any free one.

    torch's own would listen at every address, whatever its name is.
    """
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family, backlog=_BACKLOG) as server:
        own, limit = server.getsockname()[1], timedelta(seconds=timeout)
        host, descriptor = address or socket.gethostname(), server.detach()
    return TCPStore(host, own, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=descriptor)
