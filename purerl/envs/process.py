"""The connection of the run's event loop with a worker process that hosts environments."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

from purerl.envs.worker import Answer, HostRequest, HostTask
from purerl.errors import EngineError
from purerl.system.workers.connection import pack_request
from purerl.system.workers.processes import Death, Worker

__all__ = ["Process"]

_WORK = "purerl.envs.worker:work"
_MAX_START_TICKS = 1200
_MAX_READ = 2**16  # bytes that are received at once


class Process:
    """A worker process, and what the run knows of it.

    is_supervised  whether the event loop reads its answers
    is_ready       whether it has loaded the environment
    is_stuck       whether a call in it cannot be ended, so it gets no new episodes
    is_late        whether it was ended because it sent nothing
    episodes       the numbers of the episodes in it
    death          how it ended
    """

    def __init__(self, task: HostTask, *, max_memory: int | None, internal_files: tuple[str, ...]):
        options = {"max_memory": max_memory, "internal_files": internal_files}
        self.worker = Worker(_WORK, task, answer=Answer | None, **options)
        self.is_supervised = self.is_ready = self.is_stuck = self.is_late = False
        self.episodes: set[int] = set()
        self.num_others = 0
        self.death: Death | None = None
        self._ticks = 0
        self._waiting: dict[int, asyncio.Future[Answer | None]] = {}
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def has_died(self) -> bool:
        return self.death is not None

    async def answers(self) -> AsyncIterator[Answer | None]:
        """The answers of the process, until it ends, or sends something else."""
        copy = socket.socket(fileno=os.dup(self.worker.connection.fileno()))
        reader, self._writer = await asyncio.open_unix_connection(sock=copy)
        self._reader = reader
        loop, sentinel = asyncio.get_running_loop(), self.worker.sentinel
        loop.add_reader(sentinel, self._feed_end)  # the guard has ended, even if another process keeps the socket open
        try:
            while data := await reader.read(_MAX_READ):
                for answer in self.worker.answers.read(data):
                    self._ticks = 0
                    yield answer
        except ConnectionError:
            pass
        except EngineError as error:
            self.worker.refuse(error)
        finally:
            loop.remove_reader(sentinel)
            self._writer.close()

    def _feed_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.worker.sentinel)
        if self._reader is not None:
            self._reader.feed_eof()

    def send(self, request: HostRequest) -> None:
        """Send `request`; it is lost if the process has ended."""
        if self._writer is not None and not self._writer.is_closing():
            with suppress(ConnectionError):
                self._writer.write(pack_request(request))

    async def ask(self, request: HostRequest) -> Answer | None:
        """The answer to `request`; None if the process has ended."""
        future = self._waiting[request.number] = asyncio.get_running_loop().create_future()
        try:
            self.send(request)
            return await future
        finally:
            self._waiting.pop(request.number, None)

    def resolve(self, answer: Answer) -> None:
        future = self._waiting.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    def tick(self, *, max_ticks: int) -> None:
        """End the process if it has sent nothing since `max_ticks` calls of this function."""
        self._ticks += 1
        if self._ticks > (max_ticks if self.is_ready else _MAX_START_TICKS) and not self.is_late:
            self.is_late = True
            self.end_soon()

    def end_if_unused(self) -> None:
        """End a process that gets no new episodes, when it has no more."""
        if self.is_stuck and not self.episodes:
            self.end_soon()

    def end_soon(self) -> None:
        """Let the guard end the process and everything that it has started."""
        if self.death is None:
            self.worker.terminate()
            if self._reader is not None:
                self._reader.feed_eof()

    def has_ended(self, death: Death) -> None:
        """Note how the process ended; nobody gets an answer anymore."""
        self.death, self.num_others = death, max(0, len(self.episodes) - 1)
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
