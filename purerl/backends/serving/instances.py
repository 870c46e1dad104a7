"""Servers that this rank has not started: those of another rank, and those at an address that is given.

`purerl.backends.serving.started` has those that this rank starts. Each class has the attributes and methods of
`Instance`. All methods run in one event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from purerl.backends.serving.access import TOKEN, api_key, token_of_run, token_of_url
from purerl.backends.serving.api import EngineApi
from purerl.backends.serving.http import Http, RefusedError, UnknownTokenError, UnreachableError
from purerl.backends.serving.lease import Owner, ServerLease, check_free
from purerl.backends.serving.settings import ServerSettings
from purerl.errors import EngineError

__all__ = [
    "HEALTH_TIMEOUT",
    "GivenInstance",
    "Instance",
    "RemoteInstance",
    "ServerLink",
    "check_usable",
    "is_healthy",
    "is_ready",
    "name_of",
]

_LOG = logging.getLogger(__name__)
_POLL = 0.1  # seconds between questions whether the server is ready
HEALTH_TIMEOUT = 20.0  # seconds
_CHECK_TIMEOUT = 120.0  # seconds; some engines ask programs of the host before they describe themselves
_SECONDS_BETWEEN_MESSAGES = 60.0


class Instance(Protocol):
    """A server that is started and restarted, or waited for.

    http        how it is reached; another one after `restart`
    generation  how often it has been started, as far as this rank knows
    """

    http: Http
    generation: int

    @property
    def log(self) -> Path | None:
        """The log of its newest start, if this rank has started it."""
        ...

    @property
    def is_running(self) -> bool:
        """False if its process has ended, as far as this rank knows."""
        ...

    async def open(self) -> None:
        """Start it, or connect to it, and wait until it is ready. Raises EngineError."""
        ...

    async def restart(self, why: str, *, is_stalled: bool) -> None:
        """Start it again after it has failed, or wait until it is. `is_stalled`: it answers, but works no more.

        Raises: EngineError if that is not possible, or has happened too often.
        """
        ...

    async def cause(self) -> str | None:
        """The error in its log that made it fail; None if there is none that explains itself."""
        ...

    def succeed(self) -> None:
        """It works: restarts are counted anew."""
        ...

    def announce(self, error: str | None = None) -> None:
        """It is ready for the requests of other ranks; with an `error`, it will never be."""
        ...

    def failure(self) -> tuple[str, bool] | None:
        """The failure that another rank has reported, and whether it is stalled."""
        ...

    async def close(self) -> None:
        """End its process, if this rank has started it."""
        ...


class ServerLink:
    """Messages of the ranks of a host about the server `number`, over a store of the ranks.

    The rank that has started it says where it is, and another rank may say that it has failed. One thread calls all
    methods.
    """

    def __init__(self, store: Any, number: int) -> None:
        self._store, self._number = store, number

    def publish(self, generation: int, url: str, error: str | None) -> None:
        self._store.set(f"server/{self._number}", json.dumps([generation, url, error]).encode())

    def current(self) -> tuple[int, str]:
        """The generation and the address that were published last. Raises EngineError if it has failed for good."""
        generation, url, error = json.loads(self._store.get(f"server/{self._number}"))
        if error is not None:
            raise EngineError("a server that another rank has started has failed", got=error)
        return generation, url

    def report(self, generation: int, why: str, *, is_stalled: bool) -> None:
        self._store.set(f"failed/{self._number}/{generation}", json.dumps([why, is_stalled]).encode())

    def failure(self, generation: int) -> tuple[str, bool] | None:
        """The report of another rank on this generation."""
        key = f"failed/{self._number}/{generation}"
        if not self._store.check([key]):
            return None
        why, is_stalled = json.loads(self._store.get(key))
        self._store.delete_key(key)
        return why, is_stalled


class _Elsewhere:
    """The part of `Instance` about a process, of a server that this rank has not started."""

    is_running = True
    log = None

    async def cause(self) -> str | None:
        return None

    def succeed(self) -> None:
        """Nothing is counted here."""

    def announce(self, error: str | None = None) -> None:
        """The other ranks know where it is."""

    def failure(self) -> tuple[str, bool] | None:
        return None


class GivenInstance(_Elsewhere):
    """A server at `url`, which purerl has not started; `owner` is the run that uses it, and has its lease.

    takes_lease  False on ranks other than the one that changes the weights
    """

    def __init__(
        self,
        api: EngineApi,
        settings: ServerSettings,
        owner: Owner,
        *,
        url: str,
        connections: int,
        takes_lease: bool = True,
    ) -> None:
        self._api, self._settings, self._owner, self._takes_lease = api, settings, owner, takes_lease
        key = api_key(settings.api_key_variable)
        self.http, self.generation = Http(url, token=token_of_url(url), key=key, connections=connections), 0
        must_have = settings.transfer != "directory"
        self._lease = ServerLease(self.http, name_of(api, self.http), owner, must_have=must_have)

    async def open(self) -> None:
        limit = self._settings.start_timeout
        name = name_of(self._api, self.http)
        if not await is_ready(self, name, limit, lambda: ""):
            need, do = f"an answer within {limit:g} seconds", "start the server, or correct server.urls"
            raise EngineError(f"{name} does not answer", need=need, do=do)
        if self._takes_lease:
            await self._lease.take()
            await check_usable(self._api, self)
        else:
            self.http.lease = self._owner.id
        self.generation += 1

    async def look(self) -> None:
        """Raise EngineError if the server answers now, and another run has it, or it is another one than is needed."""
        if await is_healthy(self.http):
            await check_free(self.http, name_of(self._api, self.http), self._owner)
            await check_usable(self._api, self)

    async def restart(self, why: str, *, is_stalled: bool) -> None:
        need = "a server that works, with the model of the run; purerl has not started it"
        do = "start it again; the run can be resumed from its last checkpoint"
        if self._settings.transfer != "directory":
            do += "; if the server cannot receive weights, set server.weight_transfer=directory"
        raise EngineError(f"{name_of(self._api, self.http)} has failed", got=why, need=need, do=do)

    async def close(self) -> None:
        await self._lease.give_back()
        await self.http.close()


class RemoteInstance(_Elsewhere):
    """A server that another rank starts, and starts again; `link` says where it is."""

    def __init__(self, api: EngineApi, settings: ServerSettings, link: ServerLink, *, connections: int) -> None:
        self._api, self._settings, self._link, self._connections = api, settings, link, connections
        self.http, self.generation = Http("", token=None, connections=connections), 0

    async def open(self) -> None:
        self.generation, url = self._link.current()
        self.http = Http(url, token=token_of_run(), connections=self._connections)

    async def restart(self, why: str, *, is_stalled: bool) -> None:
        self._link.report(self.generation, why, is_stalled=is_stalled)
        limit = self._settings.longest_update
        end = time.monotonic() + limit
        while self._link.current()[0] == self.generation:
            if time.monotonic() > end:
                need = f"another start by its rank within {limit:g} seconds"
                raise EngineError(f"{name_of(self._api, self.http)} has failed", got=why, need=need)
            await asyncio.sleep(_POLL)
        await self.http.close()
        await self.open()

    async def close(self) -> None:
        await self.http.close()


def name_of(api: EngineApi, http: Http) -> str:
    """A server in a message."""
    return f"the {api.name} server at {http.url}"


async def is_healthy(http: Http) -> bool:
    """Whether the server answers. Raises EngineError if it refuses the token."""
    try:
        await http.get("/health", timeout=HEALTH_TIMEOUT)
    except UnknownTokenError as error:
        what = f"the server at {http.url} does not know the {'token' if http.key is None else 'key'}"
        need = f"the token with which it was started, in the environment variable {TOKEN} of the run, or in a file"
        do = f"set {TOKEN} or {TOKEN}_FILE for the run; for the key of a proxy, set server.api_key_variable"
        if http.key is not None:
            need = "the key of what is in front of it, or of the engine"
            do = f"correct the variable that server.api_key_variable names, or {TOKEN}, which it may check as well"
        raise EngineError(what, got=error, need=need, do=do) from error
    except (UnreachableError, RefusedError):
        return False
    return True


async def is_ready(instance: Instance, name: str, limit: float, details: Callable[[], str]) -> bool:
    """Whether the server answers within `limit` seconds, and while its process runs. Meanwhile warnings say so."""
    start = message = time.monotonic()
    while not await _is_healthy_or_ends(instance):
        now = time.monotonic()
        if not instance.is_running or now - start > limit:
            return False
        if now - message >= _SECONDS_BETWEEN_MESSAGES:
            message = now
            _LOG.warning("%s is not ready after %.0f of at most %g seconds%s", name, now - start, limit, details())
        await asyncio.sleep(_POLL)
    return True


async def _is_healthy_or_ends(instance: Instance) -> bool:
    """Whether the server answers; False at once if its process ends meanwhile."""
    asking = asyncio.ensure_future(is_healthy(instance.http))
    try:
        while not asking.done() and instance.is_running:
            await asyncio.wait({asking}, timeout=_POLL)
        return asking.done() and asking.result()
    finally:
        asking.cancel()


async def check_usable(api: EngineApi, instance: Instance) -> None:
    """Raise EngineError, after `instance` was closed, if it is another server than is needed."""
    try:
        problem = await api.check(instance.http, timeout=_CHECK_TIMEOUT)
    except (RefusedError, UnreachableError) as error:
        problem = f"no {api.name} server: {error}"
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = f"no {api.name} server, or another version: its answer cannot be read: {error!r}"
    if problem:
        await instance.close()
        raise EngineError(f"{name_of(api, instance.http)} cannot be used", got=problem)
