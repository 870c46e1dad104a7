"""A server that this rank starts as a process, and starts again if it fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from purerl.backends.serving.access import HOST, TOKEN, token_of_run
from purerl.backends.serving.api import EngineApi
from purerl.backends.serving.devices import on_devices
from purerl.backends.serving.failures import cause_in, harmless_in, is_final, is_port_in_use, remedy, same_error
from purerl.backends.serving.http import Http, UnknownTokenError
from purerl.backends.serving.instances import HEALTH_TIMEOUT, ServerLink, check_usable, is_ready, name_of
from purerl.backends.serving.log import MAX_LOGS, last_line, limit_logs, not_loaded, reason
from purerl.backends.serving.process import ServerProcess, free_port
from purerl.backends.serving.settings import ServerSettings
from purerl.errors import EngineError

__all__ = ["StartedInstance"]

_LOG = logging.getLogger(__name__)
_POLL = 0.1  # seconds
_PORTS = 3  # which are tried, if another process takes one before the server does
_LOG_POLL = 10.0  # seconds between looks at the size of the log
_END_TIMEOUT = 2.0  # seconds
_KILLED = -9


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
        self._api, self._settings, self._devices, self._connections = api, settings, devices, connections
        self._first_log, self.log = log, log
        self._link = link
        self._process: ServerProcess | None = None
        self._limiting: asyncio.Task[None] | None = None
        self._harmless = frozenset[str]()  # errors in the newest log that did not keep the server from getting ready
        self._reported = set[str]()  # texts of logs about weights that were not loaded
        self._failures = 0  # restarts since it has worked
        self.http, self.generation = Http("", token=None, connections=connections), 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    async def open(self) -> None:
        for _ in range(_PORTS):
            if await self._open():
                return
            name, log = name_of(self._api, self.http), self.log
            _LOG.warning("%s did not start: another process has taken its port; see %s", name, log)
        do = "find out which process of this host takes new ports, and start the run again"
        raise EngineError(f"{name} did not start", got=f"{_PORTS} ports that other processes have taken", do=do)

    async def _open(self) -> bool:
        """Start the server at a new port, and wait until it is ready. False if another process has taken the port."""
        port, token = free_port(), token_of_run()
        command = on_devices(self._api.command(HOST, port), self._devices)
        number = f"-{self.generation}" if self.generation else ""
        self.generation += 1
        self.log = self._first_log.with_name(f"{self._first_log.stem}{number}{self._first_log.suffix}")
        self.http = Http(f"http://{HOST}:{port}", token=token, connections=self._connections)
        self._process = ServerProcess(command.arguments, command.environment, self.log, token=token)
        self._limiting = asyncio.ensure_future(self._limit_logs())
        if not await self._is_ready(self._process):
            return await self._fail_to_start(self._process)
        await self._require_token()
        await check_usable(self._api, self)
        self._harmless = await asyncio.to_thread(harmless_in, self.log)
        return True

    async def _is_ready(self, process: ServerProcess) -> bool:
        """Whether the server gets ready; not if another process has its port, and does not know the token."""
        name, limit = name_of(self._api, self.http), self._settings.start_timeout
        try:
            return await is_ready(self, name, limit, lambda: f"; {last_line(process.log)}")
        except EngineError:
            end = time.monotonic() + limit
            while process.is_running and time.monotonic() < end:
                await asyncio.sleep(_POLL)
            return False

    def _report_not_loaded(self) -> None:
        """Warn of weights that were not loaded, as the log says, once for each layer."""
        for text in (text for text in not_loaded(self.log) if text not in self._reported):
            self._reported.add(text)
            _LOG.warning("%s may have old weights; its log says: %s", name_of(self._api, self.http), text)

    async def _limit_logs(self) -> None:
        while True:
            size = MAX_LOGS // self._settings.number
            try:
                await asyncio.to_thread(self._report_not_loaded)
                await asyncio.to_thread(limit_logs, self._first_log, self.log, size)
            except OSError as error:
                _LOG.warning("the logs of %s are not limited: %s", name_of(self._api, self.http), error)
                return
            await asyncio.sleep(_LOG_POLL)

    async def _require_token(self) -> None:
        """Raise EngineError, after the end of the server, if it answers clients without a token."""
        stranger = Http(self.http.url, token=None, connections=1)
        try:
            await stranger.get("/health", timeout=HEALTH_TIMEOUT)
        except UnknownTokenError:
            return
        finally:
            await stranger.close()
        await self.close()
        need = f"the status 401: its program must check the token in {TOKEN}"
        raise EngineError(f"{name_of(self._api, self.http)} is open", got="an answer without a token", need=need)

    async def _fail_to_start(self, process: ServerProcess) -> Literal[False]:
        """Raise EngineError, after all processes have ended, unless only the port was the problem."""
        has_ended, status = not process.is_running, await self._end()
        await self.http.close()
        late = f"not ready after {self._settings.start_timeout:g} seconds (server.start_timeout)"
        why = reason(process.log)
        if has_ended and is_port_in_use(why):
            return False
        got, name = f"exit status {status}" if has_ended else late, name_of(self._api, self.http)
        raise EngineError(f"{name} did not start", got=f"{got}\n{why}", do=f"see its log, {process.log}")

    async def cause(self) -> str | None:
        return await asyncio.to_thread(cause_in, self.log, self._harmless)

    async def restart(self, why: str, *, is_stalled: bool) -> None:
        name, log = name_of(self._api, self.http), self.log
        if self._failures >= self._settings.max_restarts:
            do = remedy(reason(log), log)
            raise EngineError(f"{name} has failed", got=why, need="a server that works", do=do)
        cause, had_ended = await self.cause(), not is_stalled and await self._has_ended()
        await self.http.close()
        status = await self._end()
        killed = f" (ended by signal {-_KILLED}, as the kernel does if memory is short)" if status == _KILLED else ""
        self._failures += 1
        _LOG.warning("%s is started again: %s%s\n%s", name, why, killed if had_ended else "", reason(log))
        try:
            await self.open()
        except EngineError as error:  # it has started before, so it may start the next time
            again = await self.cause()
            if again is not None and (is_final(again) or same_error(cause, again)):
                do = remedy(again, self.log)
                raise EngineError(f"{name} has failed, and cannot be started again", got=error, do=do) from error
            await self.restart(str(error), is_stalled=False)

    async def _has_ended(self) -> bool:
        """Whether the server ends by itself. Its connections may be cut a little earlier than its end is known."""
        deadline = time.monotonic() + _END_TIMEOUT
        while self.is_running and time.monotonic() < deadline:
            await asyncio.sleep(_POLL)
        return not self.is_running

    def succeed(self) -> None:
        self._failures = 0

    def announce(self, error: str | None = None) -> None:
        if self._link is not None:
            self._link.publish(self.generation, self.http.url, error)

    def failure(self) -> tuple[str, bool] | None:
        return None if self._link is None else self._link.failure(self.generation)

    async def close(self) -> None:
        await self.http.close()
        await self._end()

    async def _end(self) -> int | None:
        """End the process; return the exit status of its program, negative: the signal."""
        if self._limiting is not None:
            self._limiting.cancel()
            with suppress(OSError):
                await asyncio.to_thread(self._report_not_loaded)
        process, self._process = self._process, None
        return None if process is None else await asyncio.to_thread(process.end)
