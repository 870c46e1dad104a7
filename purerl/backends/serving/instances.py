"""Where a server is: a process that this rank starts, one that another rank starts, or an address that is given.

Each class has the attributes and methods of `Instance`. All methods run in one event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

from purerl.backends.serving.access import HOST, TOKEN, token_of_run, token_of_url
from purerl.backends.serving.api import EngineApi
from purerl.backends.serving.devices import on_devices
from purerl.backends.serving.http import Http, RefusedError, UnknownTokenError, UnreachableError
from purerl.backends.serving.log import last_line, reason
from purerl.backends.serving.process import ServerProcess, free_port
from purerl.backends.serving.settings import ServerSettings
from purerl.errors import EngineError

__all__ = ["GivenInstance", "Instance", "RemoteInstance", "ServerLink", "StartedInstance", "is_healthy", "name_of"]

_LOG = logging.getLogger(__name__)
_POLL = 0.1  # seconds between questions whether the server is ready
_HEALTH_TIMEOUT = 20.0  # seconds
_SECONDS_BETWEEN_MESSAGES = 60.0


class Instance(Protocol):
    """A server that is started and restarted, or waited for.

    http        how it is reached; another one after `restart`
    generation  how often it has been started, as far as this rank knows
    """

    http: Http
    generation: int

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

    def succeed(self) -> None:
        """It works: restarts are counted anew."""
        ...

    def announce(self, error: str | None = None) -> None:
        """It is ready for the requests of other ranks; with an `error`, it will never be."""
        ...

    def failure(self) -> tuple[str, bool] | None:
        """Why another rank says that it has failed, and whether it is stalled."""
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
        """What another rank has reported of this generation."""
        key = f"failed/{self._number}/{generation}"
        if not self._store.check([key]):
            return None
        why, is_stalled = json.loads(self._store.get(key))
        self._store.delete_key(key)
        return why, is_stalled


class StartedInstance:
    """A process of this rank, with the output in `log`; `devices` are the variables that select its devices."""

    def __init__(
        self,
        api: EngineApi,
        settings: ServerSettings,
        *,
        devices: Mapping[str, str],
        log: Path,
        connections: int,
        link: ServerLink | None = None,
    ) -> None:
        self._api, self._settings, self._devices, self._log, self._connections = (
            api,
            settings,
            devices,
            log,
            connections,
        )
        self._link = link
        self._newest_log = log
        self._process: ServerProcess | None = None
        self._failures = 0  # restarts since it has worked
        self.http, self.generation = Http("", token=None, connections=connections), 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    async def open(self) -> None:
        port, token = free_port(), token_of_run()
        command = on_devices(self._api.command(HOST, port), self._devices)
        number = f"-{self.generation}" if self.generation else ""
        self.generation += 1
        self._newest_log = self._log.with_name(f"{self._log.stem}{number}{self._log.suffix}")
        self.http = Http(f"http://{HOST}:{port}", token=token, connections=self._connections)
        self._process = ServerProcess(command.arguments, command.environment, self._newest_log, token=token)
        limit, process = self._settings.start_timeout, self._process
        if not await _is_ready(self, name_of(self._api, self.http), limit, lambda: f"; {last_line(process.log)}"):
            await self._fail_to_start(process)
        await self._require_token()
        await _check(self._api, self)

    async def _require_token(self) -> None:
        """Raise EngineError, after the end of the server, if it answers clients without a token."""
        stranger = Http(self.http.url, token=None, connections=1)
        try:
            await stranger.get("/health", timeout=_HEALTH_TIMEOUT)
        except UnknownTokenError:
            return
        finally:
            await stranger.close()
        await self.close()
        need = f"the status 401: its program must check the token in {TOKEN}"
        raise EngineError(f"{name_of(self._api, self.http)} is open", got="an answer without a token", need=need)

    async def _fail_to_start(self, process: ServerProcess) -> NoReturn:
        """Raise EngineError, after all processes have ended."""
        has_ended, self._process = not process.is_running, None
        status = await asyncio.to_thread(process.end)
        late = f"not ready after {self._settings.start_timeout:g} seconds (server.start_timeout)"
        got = f"exit status {status}" if has_ended else late
        name = name_of(self._api, self.http)
        raise EngineError(
            f"{name} did not start", got=f"{got}\n{reason(process.log)}", do=f"see its log, {process.log}"
        )

    async def restart(self, why: str, *, is_stalled: bool) -> None:
        name, log = name_of(self._api, self.http), self._newest_log
        if self._failures >= self._settings.max_restarts:
            do = f"see its log, {log}; the run can be resumed from its last checkpoint"
            raise EngineError(f"{name} has failed", got=why, need="a server that works", do=do)
        await self.close()
        self._failures += 1
        _LOG.warning("%s is started again: %s\n%s", name, why, reason(log))
        try:
            await self.open()
        except EngineError as error:  # it has started before, so it may start the next time
            await self.restart(str(error), is_stalled=False)

    def succeed(self) -> None:
        self._failures = 0

    def announce(self, error: str | None = None) -> None:
        if self._link is not None:
            self._link.publish(self.generation, self.http.url, error)

    def failure(self) -> tuple[str, bool] | None:
        return None if self._link is None else self._link.failure(self.generation)

    async def close(self) -> None:
        await self.http.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.end)
            self._process = None


class GivenInstance:
    """A server at `url`, which purerl has not started."""

    is_running = True

    def __init__(self, api: EngineApi, settings: ServerSettings, *, url: str, connections: int) -> None:
        self._api, self._settings = api, settings
        self.http, self.generation = Http(url, token=token_of_url(url), connections=connections), 0

    async def open(self) -> None:
        limit = self._settings.start_timeout
        name = name_of(self._api, self.http)
        if not await _is_ready(self, name, limit, lambda: ""):
            need, do = f"an answer within {limit:g} seconds", "start the server, or correct server.urls"
            raise EngineError(f"{name} does not answer", need=need, do=do)
        await _check(self._api, self)
        self.generation += 1

    async def restart(self, why: str, *, is_stalled: bool) -> None:
        need = "a server that works, with the model of the run; purerl has not started it"
        do = "start it again; the run can be resumed from its last checkpoint"
        if self._settings.transfer != "directory":
            do += "; if the server cannot receive weights, set server.weight_transfer=directory"
        raise EngineError(f"{name_of(self._api, self.http)} has failed", got=why, need=need, do=do)

    def succeed(self) -> None:
        """Nothing is counted."""

    def announce(self, error: str | None = None) -> None:
        """The other ranks have the address."""

    def failure(self) -> tuple[str, bool] | None:
        return None

    async def close(self) -> None:
        await self.http.close()


class RemoteInstance:
    """A server that another rank starts, and starts again; `link` says where it is."""

    is_running = True

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

    def succeed(self) -> None:
        """The rank that starts it counts."""

    def announce(self, error: str | None = None) -> None:
        """The rank that starts it does."""

    def failure(self) -> tuple[str, bool] | None:
        return None

    async def close(self) -> None:
        await self.http.close()


def name_of(api: EngineApi, http: Http) -> str:
    """A server in a message."""
    return f"the {api.name} server at {http.url}"


async def is_healthy(http: Http) -> bool:
    """Whether the server answers. Raises EngineError if it refuses the token."""
    try:
        await http.get("/health", timeout=_HEALTH_TIMEOUT)
    except UnknownTokenError as error:
        need = f"the token with which it was started, in the environment variable {TOKEN} of the run, or in a file"
        do = f"set {TOKEN} or {TOKEN}_FILE for the run"
        raise EngineError(f"the server at {http.url} does not know the token", got=error, need=need, do=do) from error
    except (UnreachableError, RefusedError):
        return False
    return True


async def _is_ready(instance: Instance, name: str, limit: float, details: Callable[[], str]) -> bool:
    """Whether the server answers within `limit` seconds, and while its process runs. Meanwhile warnings say so."""
    start = message = time.monotonic()
    while not await is_healthy(instance.http):
        now = time.monotonic()
        if not instance.is_running or now - start > limit:
            return False
        if now - message >= _SECONDS_BETWEEN_MESSAGES:
            message = now
            _LOG.warning("%s is not ready after %.0f of at most %g seconds%s", name, now - start, limit, details())
        await asyncio.sleep(_POLL)
    return True


async def _check(api: EngineApi, instance: Instance) -> None:
    """Raise EngineError, after the end of the server, if it is another one than is needed."""
    problem = await api.check(instance.http, timeout=_HEALTH_TIMEOUT)
    if problem:
        await instance.close()
        raise EngineError(f"{name_of(api, instance.http)} cannot be used", got=problem)
