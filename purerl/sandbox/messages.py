"""Messages between the owner of a sandbox and its supervisor: a header as JSON, and bytes. Nothing is pickled.

A message is the length of its header in 8 bytes, the header, and parts of bytes, whose lengths the header has.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["TURN", "TURN_ANSWER", "Bounds", "Message", "Task", "receive", "send"]

TURN, TURN_ANSWER = struct.Struct("!I8s"), struct.Struct("!8si")
"""A turn of a session is its length and its token, then its code. The answer is the token, and the exit code."""

_LENGTH = struct.Struct("!Q")
_MAX_HEADER = 2**24


class Message(NamedTuple):
    """A header, and parts of bytes."""

    header: Mapping[str, Any]
    parts: Sequence[bytes] = ()


class Bounds(NamedTuple):
    """The limits of a run in seconds, bytes and numbers, see `purerl.sandbox.settings.Limits`."""

    seconds: float
    cpu_seconds: float
    memory: int
    processes: int
    output: int
    disk: int
    files: int
    file_size: int
    open_files: int


class Task(NamedTuple):
    """The program that a supervisor runs.

    kind        "command": the program `command`; "python": Python code in this interpreter, the first part of the
                message; "session": code that follows, turn by turn
    layers      "all", "without_landlock" or "none"
    accounting  "auto", "cgroups" or "sampling"
    read_only   what is mounted beside the directories of the system
    files       the paths of files; their contents are parts of the message, after source and stdin
    """

    kind: str
    command: Sequence[str]
    layers: str
    accounting: str
    read_only: Sequence[str]
    bounds: Bounds
    files: Sequence[str]
    source: bytes = b""
    stdin: bytes = b""
    contents: Sequence[bytes] = ()

    def to_message(self) -> Message:
        """As it is sent to a supervisor, and from there into the sandbox."""
        header = {name: getattr(self, name) for name in self._fields[:7]}
        return Message({**header, "bounds": self.bounds._asdict()}, (self.source, self.stdin, *self.contents))

    @classmethod
    def from_message(cls, message: Message) -> Task:
        """The task that `to_message` has written; its header may have further entries."""
        source, stdin, *contents = message.parts
        header = {name: message.header[name] for name in cls._fields[:7]}
        bounds = Bounds(**message.header["bounds"])
        return cls(**{**header, "bounds": bounds}, source=source, stdin=stdin, contents=contents)


def send(connection: socket.socket, message: Message) -> None:
    """Send a message. Raises: OSError."""
    header = json.dumps({"header": message.header, "sizes": [len(part) for part in message.parts]}).encode()
    connection.sendall(b"".join((_LENGTH.pack(len(header)), header, *message.parts)))


def receive(connection: socket.socket) -> Message | None:
    """The next message; None if the other side has closed the connection. Raises: OSError; ValueError."""
    length = _read(connection, _LENGTH.size)
    if length is None:
        return None
    size = _LENGTH.unpack(length)[0]
    if size > _MAX_HEADER:
        raise ValueError(f"a header of {size} bytes")
    table = json.loads(_read(connection, size) or b"null")
    if table is None:
        return None
    parts = [_read(connection, size) for size in table["sizes"]]
    return None if None in parts else Message(table["header"], [part for part in parts if part is not None])


def _read(connection: socket.socket, size: int) -> bytes | None:
    buffer, position = bytearray(size), 0
    while position < size:
        count = connection.recv_into(memoryview(buffer)[position:])
        if count == 0:
            return None
        position += count
    return bytes(buffer)
