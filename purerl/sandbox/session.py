"""A Python interpreter in a sandbox that keeps its variables from turn to turn, with budgets."""

from __future__ import annotations

import asyncio
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Self

from purerl.errors import ConfigError, SandboxError
from purerl.sandbox.messages import Message, send
from purerl.sandbox.processes import FLAGS, Process, ask
from purerl.sandbox.program_results import Result
from purerl.sandbox.running import ANSWER_SECONDS
from purerl.sandbox.settings import Limits, SandboxSettings
from purerl.sandbox.tasks import Files, Text, make_task, to_bytes, to_result

__all__ = ["Session", "Supervisor"]

_DEFAULT = SandboxSettings()


class Supervisor(NamedTuple):
    """A supervisor that serves a session: its socket, what it says when it fails, and how it is ended.

    release  takes it back for another session; None: it serves only one
    """

    connection: socket.socket
    last_words: Callable[[], str]
    close: Callable[[], None]
    release: Callable[[], None] | None = None


class Session:
    r"""A Python interpreter in a sandbox, with the variables of the turns before.

    >>> with Session() as session:
    ...     session.run("x = 6").status, session.run("x * 7").stdout
    ('ok', b'42\n')

    files          in its working directory, by relative paths
    limits         in place of `settings.limits`; timeout, cpu_time and max_output are those of one turn
    total_timeout  duration of all turns together, in seconds
    total_output   bytes that all turns may write together
    start          gives it a supervisor; that of `Pool.session` takes a tenth of the time

    The interpreter starts with the first turn. A turn that exceeds its time or its output is interrupted by
    KeyboardInterrupt. If this does not end it within three seconds, or if it exceeds another limit, the session is
    over: `is_alive` is false. Between two turns all its processes are stopped.

    Raises: ConfigError for remote sandboxes, which have no sessions.
    """

    def __init__(
        self,
        settings: SandboxSettings = _DEFAULT,
        *,
        files: Files | None = None,
        limits: Limits | None = None,
        total_timeout: float = 300.0,
        total_output: int = 2**24,
        start: Callable[[], Supervisor] | None = None,
    ):
        if settings.remote is not None:
            do = "set no remote, or use a tool that keeps no variables"
            raise ConfigError("remote", got=settings.remote, need="a sandbox on this computer", do=do)
        self._task = make_task(settings, files=files, limits=limits)
        self._start = start or (lambda: _start_process(settings))
        self._lock, self._supervisor, self.is_alive = threading.Lock(), None, True
        self.remaining_seconds, self.remaining_output = total_timeout, total_output

    def run(self, code: Text) -> Result:
        """Run code, and print the value of its last line if that is an expression.

        The exit code is 1 after an exception, and what the code gives to `sys.exit`, which does not end the session.
        The status of a turn for which no time is left is "timeout".

        Raises: SandboxError if the sandbox cannot be built, or the session is over.
        """
        with self._lock:
            if not self.is_alive:
                raise SandboxError("the session is over", do="start another one")
            try:
                return self._turn(to_bytes(code))
            except BaseException:
                self._end(is_idle=False, is_serving=False)
                raise

    async def run_async(self, code: Text) -> Result:
        """`run`, for an event loop. A turn whose task is canceled runs to its end."""
        return await asyncio.to_thread(self.run, code)

    def _turn(self, code: bytes) -> Result:
        bounds = self._task.bounds
        seconds, output = min(bounds.seconds, self.remaining_seconds), min(bounds.output, self.remaining_output)
        if seconds <= 0:
            return Result("timeout", None, b"", b"", 0.0, 0)
        supervisor = self._supervisor or self._open()
        limits = {"seconds": seconds, "cpu_seconds": min(bounds.cpu_seconds, seconds), "output": output}
        answer = ask(supervisor.connection, Message(limits, [code]), seconds + ANSWER_SECONDS, supervisor.last_words)
        result = to_result(answer)
        self.remaining_seconds -= result.seconds
        self.remaining_output -= len(result.stdout) + len(result.stderr)
        if not answer.header["is_alive"]:
            self._end(is_idle=True, is_serving=False)
        return result

    def _open(self) -> Supervisor:
        supervisor = self._supervisor = self._start()
        self._finalizer = weakref.finalize(self, supervisor.close)
        ask(supervisor.connection, self._task.to_message(), ANSWER_SECONDS, supervisor.last_words)
        return supervisor

    def close(self) -> None:
        """End the session, also while a turn runs in another thread."""
        is_idle = self._lock.acquire(blocking=False)
        try:
            self._end(is_idle=is_idle, is_serving=self.is_alive)
        finally:
            if is_idle:
                self._lock.release()

    def _end(self, *, is_idle: bool, is_serving: bool) -> None:
        """End the session, and give the supervisor back if it waits: for the next turn, if it `is_serving`."""
        self.is_alive = False
        supervisor = self._supervisor
        if supervisor is None or not self._finalizer.alive:
            return
        if supervisor.release is None or not is_idle:
            self._finalizer()
            return
        self._finalizer.detach()
        if is_serving:
            with suppress(OSError):
                send(supervisor.connection, Message({"is_over": True}))
        supervisor.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_process(settings: SandboxSettings) -> Supervisor:
    # The kernel ends a process with the thread that has started it, so this thread lives as long as the session.
    starter = ThreadPoolExecutor(1, "purerl sandbox session")
    process = starter.submit(Process, settings, "start_supervisor", flags=FLAGS).result()

    def close() -> None:
        process.close()
        starter.shutdown()

    return Supervisor(process.connection, process.last_words, close)
