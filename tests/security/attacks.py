"""Attacks on listening sockets, files and processes. An attack that succeeds is a finding."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - names of hosts need it, and another user may not read it
import http.client
import itertools
import os
import pickle
import re
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from attrs import field, frozen
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

from tests.security.surface import Listener

__all__ = ["Attack", "Joining", "Report", "can_read", "join_as_rank", "payload", "speaks_http2"]

_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}
_TIMEOUT = 2.0  # seconds until a listener that says nothing is left alone
_SHORT = 0.1  # until one has answered to garbage
_CONNECTIONS = 16
_OF_TORCH = re.compile(r"torch\.rendezvous|torchelastic|^init/|//cpu//|store_based_barrier")
_MESSAGE = re.compile(r"(?P<head>.*/)?(?P<call>\d+)/(?P<rank>\d+)")
_SETTINGS = b"\x04"  # the kind of the first frame of HTTP/2
_VALIDATE, _PING, _MAGIC_NUMBER, _NONCE = 0, 13, 0x3C85F7CE, 12345  # of the protocol of TCPStore
_PATHS = (
    *("/", "/health", "/v1/models", "/v1/completions", "/metrics", "/metadata", "/openapi.json", "/docs"),
    *("/generate", "/load", "/abort", "/sleep", "/wake", "/collective_rpc", "/pause", "/resume", "/server_info"),
    *("/update_weights_from_disk", "/update_weights_from_tensor", "/init_weights_update_group", "/get_weights"),
    *("/api/jobs/", "/api/version", "/logs", "/nodes", "/get_or_create_runtime_env", "//load", "/LOAD", "/load/"),
)
_BODY = b'{"version": "of a stranger", "id": "0", "part": "weights", "tokens": [1], "max_tokens": 1}'
_TLS_HELLO = (
    bytes.fromhex("160301002f0100002b0303") + b"\x01" * 32 + bytes.fromhex("00000413011302 0100".replace(" ", ""))
)
_GARBAGE = (b"\xff" * 64, _TLS_HELLO, b"GET\r\n\r\n", pickle.dumps([1] * 8), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


@frozen
class Report:
    """The results of an `Attack`.

    findings  attacks that have succeeded
    reached   sockets that have accepted a connection
    readable  files and folders that can be read
    values    what stores of torch contain, by key
    attempts  number of attacks
    errors    of the attacks themselves
    """

    findings: frozenset[str] = frozenset()
    reached: frozenset[Listener] = frozenset()
    readable: frozenset[Path] = frozenset()
    values: Mapping[str, bytes] = field(factory=dict)
    attempts: int = 0
    errors: tuple[str, ...] = ()


@frozen
class Attack:
    """Everything that a stranger can try.

    listeners  sockets of the run
    host       the address at which the stranger reaches this host; None: as the sockets say
    paths      files and folders of the run
    pids       processes of the run
    marker     a file that a payload makes, if the run executes it
    tampers    replace what is in stores of torch
    as_rank    connect to listeners as a rank would with gloo. The first one is taken for the rank, so a run fails
               if its ranks are not connected yet; test_joining.py is about that
    watched    folders in which everybody may make files: what the run makes in them is attacked at once
    more       other attacks on a listener: for each address, findings
    """

    listeners: tuple[Listener, ...]
    host: str | None
    marker: Path
    paths: tuple[Path, ...] = ()
    pids: tuple[int, ...] = ()
    tampers: bool = True
    as_rank: bool = True
    watched: tuple[Path, ...] = ()
    more: tuple[Callable[[str, int], list[str]], ...] = field(default=())

    def run(self) -> Report:
        """Do all attacks."""
        for folder in self.watched:
            _watch(folder)
        reached = [listener for listener in self.listeners if self._connects(listener)]
        tasks, errors, values = [*self._tasks(reached)], [], {}
        with ThreadPoolExecutor(32) as pool:
            stores = pool.map(
                lambda listener: _values_of_store(*self._address(listener), self.marker if self.tampers else None),
                reached,
            )
            findings = [*itertools.chain(*pool.map(lambda task: _checked(task, errors), tasks))]
            for store in stores:
                values |= store
        readable = filter(can_read, self.paths)
        found = frozenset([*findings, *_ON_WATCH])
        return Report(found, frozenset(reached), frozenset(readable), values, len(tasks), tuple(errors))

    def _connects(self, listener: Listener) -> bool:
        if listener.kind == "unix":
            return _connects_unix(listener.address)
        if listener.kind == "udp":
            return False
        try:
            socket.create_connection(self._address(listener), timeout=_TIMEOUT).close()
        except OSError:
            return False
        return True

    def _tasks(self, reached: Iterable[Listener]) -> Iterator[Callable[[], Iterable[str]]]:
        attacks = (_use_http, _send_garbage, *(join_as_rank,) * self.as_rank, *self.more)
        for listener in reached:
            if listener.kind == "tcp":
                for attack in attacks:
                    yield partial(attack, *self._address(listener))
            else:
                yield lambda name=listener.address: [f"the socket {name} accepts a connection"]
        for listener in self.listeners:
            if listener.kind == "udp":
                yield partial(_send_datagrams, *self._address(listener))
        yield from (partial(_use_file, path) for path in self.paths)
        yield from (partial(_look_into, pid) for pid in self.pids)

    def _address(self, listener: Listener) -> tuple[str, int]:
        if self.host is not None:
            return self.host, listener.port
        return _REACHED_AT.get(listener.address, listener.address), listener.port


def _is_store(host: str, port: int) -> bool:
    """Whether a listener speaks the protocol of TCPStore. Torch's own client would wait forever for an answer."""
    if (host, port) in _NO_STORES:
        return False
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT) as connection:
            connection.sendall(struct.pack("=BIBI", _VALIDATE, _MAGIC_NUMBER, _PING, _NONCE))
            if connection.recv(4) == struct.pack("=I", _NONCE):
                return True
    except OSError:
        pass
    _NO_STORES.add((host, port))
    return False


def _values_of_store(host: str, port: int, marker: Path | None) -> dict[str, bytes]:
    """Read the values in a store of torch, and replace them if there is a `marker`."""
    if not _is_store(host, port):
        return {}
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_TIMEOUT), wait_for_workers=False)
        values = {key: bytes(store.get(key)) for key in store.list_keys()}
    except RuntimeError:  # the run has removed a key or the store
        return {}
    for key, value in values.items():
        if marker is not None and not _OF_TORCH.search(key):
            _replace(store, key, value, marker)
    return values


@frozen
class Joining:
    """Connections to a listener as a rank would make them, and nothing else."""

    listener: Listener

    def run(self) -> Report:
        """Connect, and stay connected."""
        return Report(frozenset(join_as_rank(self.listener.address, self.listener.port)))


_NO_STORES: set[tuple[str, int]] = set()
_NO_HTTP: set[tuple[str, int]] = set()
_WATCHED: list[Path] = []
_ON_WATCH: set[str] = set()
_HELD: list[socket.socket] = []


def _checked(task: Callable[[], Iterable[str]], errors: list[str]) -> list[str]:
    try:
        return [*task()]
    except Exception:  # noqa: BLE001 - the test fails with it
        errors.append(traceback.format_exc())
        return []


class _Payload:
    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"id > {self._marker}; chmod a+r {self._marker}",)


def payload(marker: Path) -> bytes:
    """A pickle that makes the file `marker` when it is loaded."""
    return pickle.dumps(_Payload(marker))


def _replace(store: Any, key: str, value: bytes, marker: Path) -> None:
    """Put a payload where purerl reads a message: for the ranks, after the name of the call, which is in `value`."""
    name, separator, _ = value.partition(b"\0")
    message = name + separator + payload(marker)
    match = _MESSAGE.fullmatch(key)
    keys = [f"{match['head'] or ''}{match['call']}/{rank}" for rank in range(2)] if match else [key]
    for each in keys:
        with suppress(RuntimeError):
            store.set(each, message)


def _use_http(host: str, port: int) -> list[str]:
    """Ask for every path, without a token and with wrong ones."""
    findings: list[str] = []
    if (host, port) in _NO_HTTP:
        return findings
    if not _status(host, port, "OPTIONS", "/", {}):
        _NO_HTTP.add((host, port))
        return findings
    for path, method, headers in itertools.product(_PATHS, ("GET", "POST", "PUT"), _WRONG_TOKENS):
        status = _status(host, port, method, path, headers)
        if status is None:  # it answers no longer
            break
        if 0 < status < 400 or status == 422:  # 422: the request was read
            findings.append(f"HTTP {status}: {method} {path} {headers}")
    return findings


_WRONG_TOKENS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer " + "0" * 64, "X-API-Key": "0" * 64},
)


def _status(host: str, port: int, method: str, path: str, headers: dict[str, str]) -> int | None:
    """The status of the answer; 0 if the connection is closed instead, None if there is none in time."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    try:
        body = None if method == "GET" else _BODY
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        return connection.getresponse().status
    except TimeoutError:
        return None
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _send_garbage(host: str, port: int) -> list[str]:
    for data in _GARBAGE:
        with suppress(OSError), socket.create_connection((host, port), timeout=_SHORT) as connection:
            connection.sendall(data)
            connection.recv(64)
    return []


def join_as_rank(host: str, port: int) -> list[str]:
    """Connect as ranks do with gloo: the first 8 bytes are the number of the connection. Nothing may be sent then."""
    for number in range(_CONNECTIONS):
        with suppress(OSError):
            connection = socket.create_connection((host, port), timeout=_SHORT)
            connection.sendall(struct.pack("=q", number) + b"\0" * 56)
            connection.setblocking(False)
            _HELD.append(connection)
    findings = []
    for connection in [*_HELD]:
        with suppress(BlockingIOError, ConnectionError):
            if (data := connection.recv(2**16)) and not _is_greeting(data):
                findings.append(f"{len(data)} bytes for a rank were sent to a stranger")
    return findings


def _is_greeting(data: bytes) -> bool:
    """Whether these are the first bytes of a server of HTTP/1 or HTTP/2, which are the same for everybody."""
    return data.startswith(b"HTTP/") or data[3:4] == _SETTINGS


def speaks_http2(host: str, port: int) -> bool:
    """Whether a listener speaks HTTP/2, as gRPC does."""
    with suppress(OSError), socket.create_connection((host, port), timeout=_TIMEOUT) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS + bytes(5))
        return connection.recv(9)[3:4] == _SETTINGS
    return False


def _send_datagrams(host: str, port: int) -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        for data in _GARBAGE:
            with suppress(OSError):
                connection.sendto(data, (host, port))
    return []


def _connects_unix(name: str) -> bool:
    """Whether a socket of the file system, or an abstract one, accepts a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(name.replace("@", "\0", 1) if name.startswith("@") else name)
        except OSError:
            return False
    return True


def _watch(folder: Path) -> None:
    """From now on, attack each folder and file in `folder` as soon as it exists."""
    if folder in _WATCHED:
        return
    _WATCHED.append(folder)

    def watch() -> None:
        while True:
            for path in [*_below(folder)]:
                _ON_WATCH.update(_use_file(path))
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()


def _below(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in folder.iterdir():
            yield path
            if not path.is_symlink():
                yield from _below(path)


def _use_file(path: Path) -> list[str]:
    """Write into a file or folder, and replace it. Nothing is changed if it is possible."""
    flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    findings = []
    try:
        is_folder = path.is_dir()
    except OSError:  # it is in a folder that is closed
        return findings
    if is_folder:
        with suppress(OSError):
            new = path / f"of-a-stranger-{threading.get_ident()}"
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            new.unlink()
            findings.append(f"the folder {path} can be written")
        return findings
    for mode, what in ((os.O_WRONLY, "written"), (os.O_RDWR, "read and written")):
        with suppress(OSError):
            os.close(os.open(path, flags | mode))
            findings.append(f"the file {path} can be {what}")
    return findings


def can_read(path: Path) -> bool:
    """Whether this process may list a folder, or read a file that is not empty."""
    try:
        if path.is_dir():
            next(path.iterdir(), None)
            return True
        if path.is_fifo():  # opening it would wait
            return os.access(path, os.R_OK)
        with path.open("rb", buffering=0) as file:
            return bool(file.read(1))
    except OSError:
        return False


def _look_into(pid: int) -> list[str]:
    """Read the memory and the variables of a process."""
    files = (Path(f"/proc/{pid}/{name}") for name in ("environ", "mem", "maps", "fd", "cwd/.", "root/."))
    return [f"{path} can be read" for path in files if can_read(path)]
