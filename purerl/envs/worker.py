"""A worker process that hosts many episodes.

Its main thread runs functions that block, one after the other. Another thread runs an event loop for coroutines and
for the connection with the run. A call of the main thread that misses its deadline fails only its own episode: the run
is told that this process is *stuck*, gives it no new episodes, and ends it with its last episode. Until then another
thread runs the calls that block.

Before each call that blocks, the global random generators are seeded, so an environment that draws from them depends
only on its own seed, whatever other episodes run in the process.

If the event loop itself does not run for longer than a call may take, because a coroutine blocks or a C extension holds
the interpreter, a watchdog ends the process.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from attrs import frozen

from purerl.envs.calls import MakeCall, Threads, make_call
from purerl.envs.episode import LocalEpisode, Source, Tools
from purerl.envs.failures import EnvironmentFailure, raised
from purerl.envs.observations import Declared
from purerl.envs.protocol import Observation
from purerl.errors import EngineError
from purerl.rewards.outcomes import Failure
from purerl.seeds import seed_everything
from purerl.system.workers.connection import open_connection, pack_answer, read_request
from purerl.system.workers.status import CALL, Status

__all__ = ["Answer", "HostRequest", "HostTask", "work"]

_HEARTBEAT = 1.0  # seconds between two messages of the worker that only say that its event loop runs
_WATCHDOG_GRACE = 2.0  # seconds added to the timeout of a call until the watchdog ends the process


@frozen
class HostTask:
    """The task of a worker.

    load      returns the source of environments, given a function that makes a `Call` with some timeout
    timeout   of one call, in seconds
    """

    load: Callable[[MakeCall], Source]
    timeout: float
    declared: Declared


class HostRequest(NamedTuple):
    """A call of a method of an episode: "open", "reset", "step", "end" or "close". `number` is that of the request."""

    number: int
    episode: int
    method: str
    arguments: tuple[Any, ...] = ()


class Answer(NamedTuple):
    """The answer to the request with this number. `is_stuck`: this process should get no new episodes.

    The first answer of a worker has the number -1: it is ready, or cannot be.
    """

    number: int
    result: Observation | Failure | None
    tools: Tools = None
    is_stuck: bool = False


def work(connection: int, status: int) -> None:
    """Host episodes until the run closes its end of the connection.

    connection  file descriptor of a socket. The first request is a `HostTask`, all others are requests. The worker
                sends answers, and None every second
    status      file descriptor of the status file
    """
    run, status_file = open_connection(connection), Status(status)
    threads = Threads(0)
    task: HostTask = read_request(run)
    source, failure = None, None
    try:
        source = task.load(partial(make_call, threads.run, before=seed_everything))
    except BaseException as error:  # noqa: BLE001 -- every episode reports it
        failure = raised("environment", error).failure
    hosting = _Hosting(run, status_file, task, threads, source, failure)
    thread = threading.Thread(target=lambda: asyncio.run(hosting.serve()), name="purerl worker")
    thread.start()
    threads.serve()
    thread.join()


class _Hosting:
    def __init__(
        self,
        run: socket.socket,
        status: Status,
        task: HostTask,
        threads: Threads,
        source: Source | None,
        failure: Failure | None,
    ):
        self._run, self._status, self._task, self._threads = run, status, task, threads
        self._source, self._failure = source, failure
        self._episodes: dict[int, LocalEpisode] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        self._end = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._run.fileno(), self._receive)
        beating = asyncio.create_task(self._beat())
        self._send(Answer(-1, self._failure))
        await self._end.wait()
        beating.cancel()
        self._status.stop_watchdog(CALL)
        self._threads.close()

    async def _beat(self) -> None:
        while True:
            self._status.start_watchdog(CALL, self._task.timeout + _WATCHDOG_GRACE)
            self._send(None)
            with suppress(Exception):
                sys.stdout.flush()  # what an environment has printed is not lost when the worker is killed
            await asyncio.sleep(min(_HEARTBEAT, self._task.timeout / 4))

    def _receive(self) -> None:
        try:
            request = read_request(self._run)
        except (EOFError, ConnectionError):
            self._end.set()
            asyncio.get_running_loop().remove_reader(self._run.fileno())
            return
        task = asyncio.create_task(self._answer(request))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _send(self, message: Answer | None) -> None:
        if not select.select((), (self._run,), (), 0)[1]:
            self._status.stop_watchdog(CALL)  # the run does not read; it is not the fault of an environment
        with suppress(ConnectionError):
            self._run.sendall(self._packed(message))

    def _packed(self, message: Answer | None) -> bytes:
        """`message` for the run, with a failure in place of a result that cannot be sent."""
        try:
            return pack_answer(message)
        except EngineError as error:
            name = self._source.name if self._source else "environment"
            failure = Failure(name, "returned an invalid value", f"{error}\n")
            return pack_answer(message and Answer(message.number, failure, is_stuck=message.is_stuck))

    async def _answer(self, request: HostRequest) -> None:
        result, tools = None, None
        try:
            if self._source is None:
                raise EnvironmentFailure(self._failure or Failure("environment", "died", "not loaded\n"))
            result = await self._handle(request, self._source)
        except EnvironmentFailure as error:
            result = error.failure
        if request.episode in self._episodes:
            tools = self._episodes[request.episode].tools
        self._send(Answer(request.number, result, tools, self._threads.abandoned > 0))

    async def _handle(self, request: HostRequest, source: Source) -> Observation | None:
        if request.method == "open":
            episode = self._episodes[request.episode] = LocalEpisode(source, self._task.declared)
            await episode.open()
            return None
        if request.method == "close":
            episode = self._episodes.pop(request.episode, None)
            return await episode.close() if episode else None
        return await getattr(self._episodes[request.episode], request.method)(*request.arguments)
