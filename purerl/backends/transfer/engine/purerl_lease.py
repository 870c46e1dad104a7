"""The lease of a server: the one run that may change its weights, until 60 seconds after its last request.

    POST    /purerl/lease    {"id", "run", "name"}: take the lease, or renew that of the header; the answer is
                             {"seconds"}, or with the status 423 the holder: {"run", "name", "idle", "expires_in"}
    GET     /purerl/lease    the holder; {} if there is none
    DELETE  /purerl/lease    give back the lease of the header

Every request of a run has the identity of its lease in the header Purerl-Lease, and renews it. A request with the
identity of another lease than the current one is refused. One without the header may read and sample at any time, and
is refused while there is a lease if it may do anything else. After the end of the lease such a request also takes the
server from its last holder, whose weights may have been replaced.

The HTTP processes of a server share the lease in a file. Times are those of the clock of their host, which no setting
of the time changes. This file imports nothing but the standard library.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

__all__ = ["HEADER", "LEASE", "LOCKED", "PATH", "SECONDS", "Holder", "Lease", "shared_lease"]

LEASE = "PURERL_SERVER_LEASE"
"""The environment variable with the file, for all processes of a server."""

PATH = "/purerl/lease"
HEADER = "Purerl-Lease"
LOCKED = 423
SECONDS = 60.0
"""After the last request of its holder, a lease ends."""

_RENEWED = 1 / 12  # of these seconds: a lease that was renewed so lately is not renewed again by a request
_READS = frozenset(
    [
        *("/health", "/health_generate", "/ping", "/ready", "/version", "/openapi.json", "/docs", "/metrics"),
        *("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/models", "/v1/models"),
        *("/load", "/get_load", "/v1/loads", "/get_world_size"),
        *("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize"),
        *("/generate", "/inference/v1/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses"),
        *("/classify", "/encode", "/invocations", "/score", "/v1/score", "/v1/messages", "/v1/embeddings"),
    ]
)
"""Paths that change neither weights nor the requests of others."""


class Holder(NamedTuple):
    """The run that has the lease.

    id    of the lease: each one has another
    run   the same for a run that was killed, and started again in the same directory; None if it has no directory
    name  for messages
    end   when the lease ends, by the clock
    """

    id: str
    run: str | None
    name: str
    end: float


class Lease:
    """The lease in the file `path`, which exists."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock

    def answer(self, method: str, id: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status and the answer to a request for `PATH`; `id` is in its header."""
        if method == "DELETE":
            self.give_back(id)
            return 200, {}
        if method != "POST":
            return 200, self.describe(self.holder())
        if id is not None:
            return (200, {"seconds": SECONDS}) if self.admits(id, PATH) else (LOCKED, self.describe(self.holder()))
        try:
            request = json.loads(body)
            other = self.take(str(request["id"]), request["run"], str(request["name"]))
        except (KeyError, TypeError, ValueError) as error:
            return 400, {"error": f"not the request of a run: {error!r}"}
        return (LOCKED, self.describe(other)) if other is not None else (200, {"seconds": SECONDS})

    def take(self, id: str, run: str | None, name: str) -> Holder | None:
        """Take the lease. None, or the other run that has it.

        A lease of the same `run` is taken over: its directory is locked, so the process that had the lease has ended.
        """
        with open(self._path, "r+b") as file:  # noqa: PTH123 - it may be locked
            holder = self._read(file)
            if holder is not None and not self.has_ended(holder) and (run is None or holder.run != run):
                return holder
            self._write(file, Holder(id, run, name, self._clock() + SECONDS))
            return None

    def give_back(self, id: str | None) -> None:
        """End the lease, if it has this `id`."""
        with open(self._path, "r+b") as file:  # noqa: PTH123
            holder = self._read(file)
            if holder is not None and holder.id == id:
                self._write(file, None)

    def holder(self) -> Holder | None:
        """The run that has the lease now."""
        with open(self._path, "r+b") as file:  # noqa: PTH123
            holder = self._read(file)
        return None if holder is None or self.has_ended(holder) else holder

    def admits(self, id: str | None, path: str) -> bool:
        """Whether a request for `path` with this `id`, or without one, may reach the engine."""
        with open(self._path, "r+b") as file:  # noqa: PTH123
            holder = self._read(file)
            if id is not None:
                return holder is not None and holder.id == id and self._renew(file, holder)
            if holder is None or path.rstrip("/") in _READS:
                return True
            if self.has_ended(holder):
                self._write(file, None)
                return True
            return False

    def describe(self, holder: Holder | None) -> dict[str, Any]:
        """The part of `holder` that others may know: `idle` and `expires_in` are seconds."""
        if holder is None:
            return {}
        remaining = max(0.0, holder.end - self._clock())
        return {"run": holder.run, "name": holder.name, "idle": SECONDS - remaining, "expires_in": remaining}

    def has_ended(self, holder: Holder) -> bool:
        return self._clock() >= holder.end

    def _renew(self, file: Any, holder: Holder) -> bool:
        end = self._clock() + SECONDS
        if end - holder.end > _RENEWED * SECONDS:
            self._write(file, holder._replace(end=end))
        return True

    def _read(self, file: Any) -> Holder | None:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        text = file.read()
        return Holder(*json.loads(text)) if text else None

    def _write(self, file: Any, holder: Holder | None) -> None:
        file.seek(0)
        file.truncate()
        file.write(b"" if holder is None else json.dumps(holder).encode())


def shared_lease() -> Lease:
    """The lease of the server that this process belongs to. Its first process makes the file."""
    if LEASE not in os.environ:
        file, path = tempfile.mkstemp(prefix="purerl-lease-")
        os.close(file)
        os.environ[LEASE] = path
        atexit.register(_remove, path, os.getpid())
    return Lease(os.environ[LEASE])


def _remove(path: str, creator: int) -> None:
    """Remove the file `path` at the end of the process that has made it; one that it has forked leaves it."""
    if os.getpid() == creator:
        with suppress(OSError):
            os.unlink(path)
