"""A Python interpreter in a sandbox that keeps its variables from turn to turn, with budgets."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from purerl.errors import ConfigError, SandboxError
from purerl.sandbox.messages import Message
from purerl.sandbox.processes import FLAGS, Process, ask, find_interpreter
from purerl.sandbox.results import Result
from purerl.sandbox.running import ANSWER_SECONDS
from purerl.sandbox.settings import Limits, SandboxSettings
from purerl.sandbox.tasks import Files, Text, make_task, to_bytes, to_result

__all__ = ["Session"]

_DEFAULT = SandboxSettings()


class Session:
    r"""A Python interpreter in a sandbox, with the variables of the turns before.

    >>> with Session() as session:
    ...     session.run("x = 6").status, session.run("x * 7").stdout
    ('ok', b'42\n')

    files          in its working directory, by relative paths
    limits         in place of `settings.limits`; timeout, cpu_time and max_output are those of one turn
    total_timeout  duration of all turns together, in seconds
    total_output   bytes that all turns may write together

    The interpreter starts with the first turn. A turn that exceeds its time or its output is interrupted by
    KeyboardInterrupt. If this does not end it within a second, or if it exceeds another limit, the session is over:
    `is_alive` is false. Between two turns all its processes are stopped.

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
    ):
        if settings.remote is not None:
            do = "set no remote, or use a tool that keeps no variables"
            raise ConfigError("remote", got=settings.remote, need="a sandbox on this computer", do=do)
        self._settings, self._limits = settings, limits or settings.limits
        self._task = make_task(settings, files=files, limits=limits)
        self._seconds, self._output = total_timeout, total_output
        self._lock, self._process, self.is_alive = threading.Lock(), None, True
        self._starter: ThreadPoolExecutor | None = None

    def run(self, code: Text) -> Result:
        """Run code, and print the value of its last line if that is an expression.

        The exit code is 1 after an exception, and what the code gives to `sys.exit`, which does not end the session.
        The status of a turn for which no time is left is "timeout", and for which no output is left, "output".

        Raises: SandboxError if the sandbox cannot be built, or the session is over.
        """
        with self._lock:
            if not self.is_alive:
                raise SandboxError("the session is over", do="start another one")
            try:
                return self._turn(to_bytes(code))
            except BaseException:
                self.close()
                raise

    async def run_async(self, code: Text) -> Result:
        """`run`, for an event loop."""
        return await asyncio.to_thread(self.run, code)

    def _turn(self, code: bytes) -> Result:
        bounds = self._task.bounds
        seconds, output = min(bounds.seconds, self._seconds), min(bounds.output, self._output)
        if seconds <= 0:
            return Result("timeout", None, b"", b"", 0.0, 0)
        if self._process is None:
            self._process = self._start()
        limits = {"seconds": seconds, "cpu_seconds": min(bounds.cpu_seconds, seconds), "output": output}
        process = self._process
        answer = ask(process.connection, Message(limits, [code]), seconds + ANSWER_SECONDS, process.last_words)
        result = to_result(answer)
        self._seconds -= result.seconds
        self._output -= len(result.stdout) + len(result.stderr)
        if not answer.header["is_alive"]:
            self.close()
        return result

    def _start(self) -> Process:
        # The kernel ends the process with the thread that has started it, so this thread lives as long as the session.
        self._starter = ThreadPoolExecutor(1, "purerl sandbox session")
        path = find_interpreter(self._settings.python).path
        process = self._starter.submit(Process, path, "start_supervisor", flags=FLAGS).result()
        self._finalizer = weakref.finalize(self, _end, process, self._starter)
        ask(process.connection, self._task.to_message(), ANSWER_SECONDS, process.last_words)
        return process

    def close(self) -> None:
        """End the session."""
        self.is_alive = False
        if self._starter is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(process: Process, starter: ThreadPoolExecutor) -> None:
    process.close()
    starter.shutdown()
