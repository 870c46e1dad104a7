"""Many runs from a warm interpreter, several at the same time.

A pool has one process that has imported what programs need, the zygote. From it, a supervisor is forked for each of the
runs that are possible at the same time, with a spawner, from which the sandboxes are forked. So a run costs no start
of an interpreter, and still has its own namespaces, files and limits. The zygote is started with an empty environment.
Neither it nor the spawners ever see what a run gets.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import LifoQueue
from typing import Self
from weakref import WeakSet

from attrs import evolve

from purerl.errors import ConfigError, InputError, SandboxError
from purerl.sandbox.messages import Task
from purerl.sandbox.processes import FLAGS, Process, ask, hang_up
from purerl.sandbox.program_results import Result
from purerl.sandbox.running import ANSWER_SECONDS
from purerl.sandbox.session import Session, Supervisor
from purerl.sandbox.settings import Limits, SandboxSettings
from purerl.sandbox.tasks import Files, Text, make_task, read_only, to_result

__all__ = ["Pool"]

_START_SECONDS = 120.0
_RUNS_PER_CORE = 2  # while one waits for the kernel, another one computes
_DEFAULT = SandboxSettings()


class Pool:
    r"""Runs programs in sandboxes that are forked from a warm interpreter.

    >>> with Pool(limits=Limits(timeout=5), preload=("json",)) as pool:
    ...     pool.run_python("import json; print(json.loads(input())['a'])", stdin='{"a": 1}').stdout
    b'1\n'

    limits, preload  in place of those in `settings`

    Its methods can be called from several threads, and `run_async` and `run_python_async` from an event loop. More than
    `settings.max_concurrent_runs` runs wait for each other; their time begins when they start.

    Raises: SandboxError if it cannot be started or a module cannot be preloaded; ConfigError for a remote sandbox.
    """

    def __init__(
        self,
        settings: SandboxSettings = _DEFAULT,
        *,
        limits: Limits | None = None,
        preload: Sequence[str] | None = None,
    ):
        limits, preload = limits or settings.limits, settings.preload if preload is None else tuple(preload)
        self._settings = evolve(settings, limits=limits, preload=preload)
        if settings.remote is not None:
            raise ConfigError("remote", got=settings.remote, need="a sandbox on this computer", do="use open_sandbox")
        self._pid = os.getpid()
        number = settings.max_concurrent_runs or _RUNS_PER_CORE * (os.cpu_count() or 1)
        self._lock, self._zygote, self._is_closed = threading.Lock(), None, False
        self._supervisors: LifoQueue[socket.socket | None] = LifoQueue()  # None: not started yet
        self._connections: WeakSet[socket.socket] = WeakSet()
        self._session_supervisors: list[socket.socket] = []  # of supervisors whose session is over
        for _ in range(number):
            self._supervisors.put(None)
        # The kernel ends the zygote with the thread that has started it, so this thread lives as long as the pool.
        self._starter = ThreadPoolExecutor(1, "purerl sandbox zygote")
        self._runs = ThreadPoolExecutor(number, "purerl sandbox")
        try:
            self._zygote = self._starter.submit(self._start_zygote).result()
        except BaseException:
            self.close()
            raise

    def run(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """Run a program, see `purerl.sandbox.run`."""
        return self._run(self._command(command, files, stdin, limits))

    def run_python(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """Run a Python program, see `purerl.sandbox.run_python`."""
        return self._run(make_task(self._settings, source=source, files=files, stdin=stdin, limits=limits))

    async def run_async(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """`run`, for an event loop. A run whose task is canceled is ended."""
        return await self._run_async(self._command(command, files, stdin, limits))

    async def run_python_async(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result:
        """`run_python`, for an event loop. A run whose task is canceled is ended."""
        return await self._run_async(make_task(self._settings, source=source, files=files, stdin=stdin, limits=limits))

    def session(
        self,
        *,
        files: Files | None = None,
        limits: Limits | None = None,
        total_timeout: float = 300.0,
        total_output: int = 2**24,
    ) -> Session:
        """A session that is forked from the warm interpreter. It does not count as a run, and ends with the pool."""
        return Session(
            self._settings,
            files=files,
            limits=limits,
            total_timeout=total_timeout,
            total_output=total_output,
            start=self._start_session,
        )

    def _start_session(self) -> Supervisor:
        """A supervisor that an earlier session has left, or a new one."""
        try:
            connection = self._session_supervisors.pop()
        except IndexError:
            connection = self._start_supervisor()
        return Supervisor(
            connection,
            self._last_words,
            partial(hang_up, connection),
            partial(self._session_supervisors.append, connection),
        )

    def _command(self, command: Sequence[str], files: Files | None, stdin: Text, limits: Limits | None) -> Task:
        if not command:
            raise InputError("command", got="nothing", need="a program")
        return make_task(self._settings, command=command, files=files, stdin=stdin, limits=limits)

    def _run(self, task: Task) -> Result:
        return self._submit(task, _Cancellation()).result()

    def _submit(self, task: Task, cancellation: _Cancellation) -> Future[Result]:
        if os.getpid() != self._pid:
            raise SandboxError("a pool of sandboxes is used in a fork of its process", do="open one in each process")
        return self._runs.submit(self._exchange, task, cancellation)

    async def _run_async(self, task: Task) -> Result:
        cancellation = _Cancellation()
        try:
            return await asyncio.wrap_future(self._submit(task, cancellation))
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    def _exchange(self, task: Task, cancellation: _Cancellation) -> Result:
        """Let a supervisor that is free run `task`. After a failure another one takes its place."""
        connection = self._supervisors.get()  # there are as many as threads
        try:
            connection = connection or self._start_supervisor()
            cancellation.watch(connection)
            seconds = task.bounds.seconds + ANSWER_SECONDS
            result = to_result(ask(connection, task.to_message(), seconds, self._last_words))
        except BaseException:
            cancellation.forget()
            if connection is not None:
                connection.close()
            self._supervisors.put(None)
            raise
        cancellation.forget()
        self._supervisors.put(connection)
        return result

    def _start_supervisor(self) -> socket.socket:
        """Let the zygote fork a supervisor. A zygote that has ended is started again."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            for _ in range(2):
                if self._is_closed or self._zygote is None:
                    break
                with suppress(OSError):
                    socket.send_fds(self._zygote.connection, [b"r"], [theirs.fileno()])
                    self._connections.add(ours)
                    return ours
                self._zygote.close()
                self._zygote = self._starter.submit(self._start_zygote).result()
        ours.close()
        raise SandboxError("a pool of sandboxes is closed, or its zygote ends whenever it is started")

    def _start_zygote(self) -> Process:
        arguments = (list(self._settings.preload), read_only(self._settings))
        zygote = Process(self._settings, "start_zygote", *arguments, flags=FLAGS)
        try:
            ask(zygote.connection, None, _START_SECONDS, zygote.last_words)
        except BaseException:
            zygote.close()
            raise
        return zygote

    def _last_words(self) -> str:
        zygote = self._zygote
        return zygote.last_words() if zygote else ""

    def close(self) -> None:
        """End the pool, and the runs that are in progress."""
        with self._lock:
            self._is_closed = True
            zygote, self._zygote = self._zygote, None
        for connection in [*self._connections]:  # so supervisors end what they run, and then themselves
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if zygote is not None:
            zygote.close()
        self._runs.shutdown(cancel_futures=True)
        self._starter.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Cancellation:
    """Ends a run from another thread."""

    def __init__(self) -> None:
        self._lock, self._is_canceled = threading.Lock(), False
        self._connection: socket.socket | None = None

    def watch(self, connection: socket.socket) -> None:
        """The run is about to use `connection`."""
        with self._lock:
            if self._is_canceled:
                raise SandboxError("the run was canceled")
            self._connection = connection

    def forget(self) -> None:
        """The run has ended."""
        with self._lock:
            self._connection = None

    def cancel(self) -> None:
        """End the run, now or before it starts. A thread that waits for it gets an error."""
        with self._lock:
            self._is_canceled = True
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
