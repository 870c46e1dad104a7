"""Messages between two processes of one sandbox, over pipes, and exceptions as text."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

__all__ = ["Channel", "describe", "write_all"]

_LENGTH = struct.Struct("!Q")
_MAX_CHARACTERS = 300


class Channel(NamedTuple):
    """One side of a pair of pipes: descriptors to read from, and to write to."""

    source: int
    target: int

    def send(self, message: bytes) -> None:
        """Raises: OSError if the other side has ended."""
        write_all(self.target, _LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes | None:
        """The next message; None if the other side has ended."""
        length = self._read(_LENGTH.size)
        return self._read(_LENGTH.unpack(length)[0]) if length else None

    def _read(self, size: int) -> bytes | None:
        parts = []
        while size > 0:
            part = os.read(self.source, min(size, 2**20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    """Write `data`, in as many parts as it takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def describe(error: BaseException) -> str:
    """The class and the beginning of the text of an exception, which may be one that has no text.

    >>> describe(ValueError("negative"))
    'ValueError: negative'
    """
    try:
        return f"{type(error).__name__}: {error}"[:_MAX_CHARACTERS]
    except Exception:  # noqa: BLE001 -- such as a RecursionError of an object with many levels
        return type(error).__name__
