"""Hosts of the code of environments: worker processes, threads, the event loop, or another machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from purerl.envs.calls import Threads, direct, make_call
from purerl.envs.episode import Episode, LocalEpisode, Source
from purerl.envs.observations import Declared
from purerl.envs.pool import EnvironmentPool
from purerl.envs.remote import RemoteHost
from purerl.envs.settings import EnvironmentSettings, name_of_source
from purerl.envs.sources import load_source
from purerl.envs.worker import HostTask
from purerl.errors import RolloutError

__all__ = ["Host", "LocalHost", "episode", "open_host"]

_DEFAULT_THREADS = 32


class Host(Protocol):
    """Creates environments. `open` and `close` are called in one event loop, and `close` once at the end."""

    async def open(self) -> Episode:
        """An environment for one episode, which the caller closes.

        Raises: EnvironmentFailure if it cannot be created; RolloutError if none can be created anymore.
        """
        ...

    async def close(self) -> None:
        """End everything, also the episodes that are still open."""
        ...


@asynccontextmanager
async def episode(host: Host) -> AsyncIterator[Episode]:
    """An environment of `host`, which is closed after the block."""
    opened = await host.open()
    try:
        yield opened
    finally:
        await opened.close()


def open_host(settings: EnvironmentSettings) -> Host:
    """The host of the environments that `settings` describe. Worker processes start at once, in the background.

    Raises: ConfigError if the code cannot be imported in this process, where it runs here.
    """
    declared = Declared(settings.has_states, settings.players, settings.images)
    if settings.url is not None:
        return RemoteHost(settings.url, timeout=settings.timeout, declared=declared)
    if settings.run_in == "process":
        task = HostTask(partial(load_source, settings), settings.timeout, declared)
        workers = {"num_workers": settings.num_workers, "max_memory": settings.max_memory}
        return EnvironmentPool(name_of_source(settings), task, **workers)
    if settings.run_in == "event_loop":
        return LocalHost(load_source(settings, partial(make_call, direct)), declared)
    threads = Threads(settings.num_workers or _DEFAULT_THREADS)
    return LocalHost(load_source(settings, partial(make_call, threads.run)), declared, threads)


class LocalHost:
    """Environments whose code runs in this process: in the event loop, or in threads.

    As many threads may be abandoned as there are; then it gives up.
    """

    def __init__(self, source: Source, declared: Declared, threads: Threads | None = None):
        self._source, self._declared, self._threads = source, declared, threads
        self._closing: set[asyncio.Future[None]] = set()

    async def open(self) -> Episode:
        if self._threads is not None and self._threads.abandoned >= self._threads.number:
            raise RolloutError(
                f"{self._source.name} blocks its threads",
                got=f"{self._threads.abandoned} calls that did not end in time; a thread cannot be ended",
                need=f"at most {self._threads.number - 1}",
                do="set environment.run_in = process, or fix the environment; the run can be resumed",
            )
        opened = LocalEpisode(self._source, self._declared)
        opening = asyncio.ensure_future(opened.open())
        try:
            await asyncio.shield(opening)  # a thread cannot be canceled, so the object that it creates is closed
        except BaseException:
            closing = asyncio.ensure_future(opened.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            raise
        return opened

    async def close(self) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._source.close()
        if self._threads is not None:
            self._threads.close()
