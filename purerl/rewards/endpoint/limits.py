"""Limits of requests and of tokens per minute, which all processes of a user on a host keep together.

A limit is one number in a file: the time from which on the next amount may be spent. Spending an amount moves it by
amount * 60 / rate seconds (the generic cell rate algorithm, without bursts). So in any minute at most one amount more
than the rate is spent, and nothing waits for a process that has ended.

The files are in a private folder of the user: nobody else can read or replace them.
"""

from __future__ import annotations

import fcntl
import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from purerl.errors import RunError
from purerl.system.private_files import open_private, user_folder

__all__ = ["RateLimit", "rate_limit"]

_LONGEST = 24 * 3600.0  # seconds: a time further in the future is from a clock that was wrong


def rate_limit(name: str, per_minute: int | None) -> RateLimit | None:
    """The limit called `name` of this host and user; None if there is no limit.

    Raises: RunError if its file is not private, or cannot be locked.
    """
    if per_minute is None:
        return None
    key = f"{socket.gethostname()} {name}"  # a home directory may be that of many hosts
    limit = RateLimit(user_folder() / "limits" / hashlib.sha256(key.encode()).hexdigest(), per_minute)
    limit.check()
    return limit


class RateLimit:
    """At most `per_minute` in a minute; `file` has its state, and is private."""

    def __init__(self, file: Path, per_minute: int) -> None:
        self._file, self._seconds = file, 60.0 / per_minute

    def check(self) -> None:
        """Raise RunError if its file is not private, or cannot be locked."""
        with self._opened():
            pass

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
        with open_private(self._file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            except OSError as error:
                need, do = "a file system with file locks", "set XDG_CACHE_HOME to a directory in another one"
                raise RunError(f"{str(self._file)!r} cannot be locked", got=error, need=need, do=do) from error
            yield file

    def _read(self, file: IO[str], now: float) -> float:
        try:
            value = float(file.read())
        except ValueError:
            return now
        return value if value - now < _LONGEST else now

    def _write(self, file: IO[str], value: float) -> None:
        file.seek(0)
        file.truncate()
        file.write(repr(value))
