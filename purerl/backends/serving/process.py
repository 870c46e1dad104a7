"""A server as a process: it ends with this process, and takes everything that it has started along."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from purerl.backends.serving.access import HOST, private_environment
from purerl.system.workers.processes import Worker
from purerl.system.workers.program import WORK, Program

__all__ = ["ServerProcess", "free_port"]


class ServerProcess:
    """The program `command`, whose output goes to the new file `log`; `environment` is added to that of this process.

    It gets its `token`, and a temporary folder of its own. It is a worker with a guard, `purerl.system.workers.guard`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, token: str) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(" ".join(command) + "\n", encoding="utf-8")
        self.log = log
        self._stack = ExitStack()
        private = self._stack.enter_context(private_environment(environment, token))
        program = Program(tuple(command), {**os.environ, **private}, str(log.absolute()))
        self._worker = Worker(WORK, program, max_memory=None)

    @property
    def pid(self) -> int:
        """The number of the guard, which is the last of the processes to end."""
        return self._worker.pid

    @property
    def is_running(self) -> bool:
        """Whether the program runs, as far as its guard knows."""
        return not select.select([self._worker.sentinel], [], [], 0)[0]

    def end(self) -> int | None:
        """End all processes, and return the exit status of the program; negative: the signal."""
        with self._stack:
            return self._worker.end().exit_code


def free_port() -> int:
    """A port of this host that nothing listens on, chosen by the system."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]
