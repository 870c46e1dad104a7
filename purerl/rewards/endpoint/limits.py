"""Limits of requests and of tokens per minute, which all processes of a host keep together.

A limit is one number in a file: the time from which on the next amount may be spent. Spending an amount moves it by
amount * 60 / rate seconds (the generic cell rate algorithm, without bursts). So in any minute at most one amount more
than the rate is spent, and nothing waits for a process that has ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["RateLimit", "rate_limit"]

_LONGEST = 24 * 3600.0  # seconds: a time further in the future is from a clock that was wrong


def rate_limit(name: str, per_minute: int | None) -> RateLimit | None:
    """The limit called `name` of this host and user; None if there is no limit."""
    if per_minute is None:
        return None
    folder = Path(tempfile.gettempdir()) / f"purerl-limits-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return RateLimit(folder / hashlib.sha256(name.encode()).hexdigest(), per_minute)


class RateLimit:
    """At most `per_minute` in a minute; `file` has its state."""

    def __init__(self, file: Path, per_minute: int) -> None:
        self._file, self._seconds = file, 60.0 / per_minute

    def reserve(self, amount: float, *, within: float) -> float | None:
        """Seconds to wait before `amount` may be spent, which is then reserved; None if it is more than `within`."""
        with self._opened() as file:
            now = time.time()
            wait = max(0.0, self._read(file, now) - now)
            if wait > within:
                return None
            self._write(file, now + wait + amount * self._seconds)
        return wait

    def give_back(self, amount: float) -> None:
        """Of what was reserved, `amount` was not spent; a negative one was spent in addition."""
        with self._opened() as file:
            self._write(file, self._read(file, time.time()) - amount * self._seconds)

    @contextmanager
    def _opened(self) -> Iterator[IO[str]]:
        with self._file.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            file.seek(0)
            yield file

    def _read(self, file: IO[str], now: float) -> float:
        try:
            value = float(file.read())
        except ValueError:
            return now
        return value if value - now < _LONGEST else now

    def _write(self, file: IO[str], value: float) -> None:
        file.truncate(0)
        file.write(repr(value))
