"""The connection of a run with one of its worker processes: a pair of sockets, which nobody else can open.

To the worker go requests, as pickles: they have functions of users, and rows of the data with values of any type. The
run makes them, the worker is its own child, and no other process has the end of the run. This module alone makes and
reads them.

From the worker come answers, as messages of `purerl.system.messages` with values of declared types: the worker runs
code of users, of tools and of models, so nothing that it sends is executed, and everything is checked.

Each of both is sent as its length in 8 bytes, little-endian, and its bytes.
"""

from __future__ import annotations

import pickle
import reprlib
import socket
from collections.abc import Iterator
from typing import Any

from purerl.errors import EngineError
from purerl.system.messages import decode, encode
from purerl.system.workers.shapes import classes_of, has_shape

__all__ = ["MAX_ANSWER", "Answers", "open_connection", "pack_answer", "pack_request", "read_request"]

MAX_ANSWER = 2**28
"""The largest answer in bytes."""
_LENGTH = 8


def pack_request(request: Any) -> bytes:
    """The bytes of a request, for `read_request` in the worker."""
    return _packed(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))


def open_connection(descriptor: int) -> socket.socket:
    """The end of the worker, of which it has got the file descriptor."""
    connection = socket.socket(fileno=descriptor)
    connection.settimeout(None)  # whatever default a library has set
    return connection


def read_request(connection: socket.socket) -> Any:
    """The next request of the run, in the worker. Raises: EOFError if the run has ended the connection; OSError."""
    data = _read(connection, int.from_bytes(_read(connection, _LENGTH), "little"))
    return pickle.loads(data)  # noqa: S301 -- the run has written it, over a socket that only the two processes have


def _read(connection: socket.socket, size: int) -> bytearray:
    data, position = bytearray(size), 0
    while position < size:
        count = connection.recv_into(memoryview(data)[position:])
        if count == 0:
            raise EOFError
        position += count
    return data


def pack_answer(answer: Any) -> bytes:
    """The bytes of an answer, for `Answers` in the run. Raises: EngineError if it is no data, or too large."""
    message = encode(answer)
    if len(message) > MAX_ANSWER:
        got, need = f"{len(message):,} bytes: {reprlib.repr(answer)}", f"at most {MAX_ANSWER:,}"
        raise EngineError("a value is too large to be sent to the run", got=got, need=need)
    return _packed(message)


def _packed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH, "little") + data


class Answers:
    """The answers in the bytes that a worker sends. `declared` is the type of an answer, as in an annotation."""

    def __init__(self, declared: Any) -> None:
        self._declared, self._classes = declared, classes_of(declared)
        self._data = bytearray()

    def read(self, data: bytes) -> Iterator[Any]:
        """The answers that are complete with `data`. Raises: EngineError for anything that is no answer."""
        self._data += data
        while len(self._data) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._data[:_LENGTH], "little")
            if end - _LENGTH > MAX_ANSWER:
                raise EngineError("an answer of a worker process", got=f"{end:,} bytes", need=f"at most {MAX_ANSWER:,}")
            if len(self._data) < end:
                return
            message = bytes(memoryview(self._data)[_LENGTH:end])
            del self._data[:end]
            answer = decode(message, self._classes)
            if not has_shape(answer, self._declared):
                names = ", ".join(sorted(kind.__name__ for kind in self._classes))
                need = f"one with the fields that it declares: {names}"
                raise EngineError("an answer of a worker process", got=reprlib.repr(answer), need=need)
            yield answer
