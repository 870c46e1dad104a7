"""A worker process that becomes another program: its guard ends it and all that it has started, as any worker."""

from __future__ import annotations

import os
import signal
import sys
from typing import NamedTuple, NoReturn

from purerl.system.workers.connection import open_connection, read_request

__all__ = ["WORK", "Program", "execute"]

WORK = "purerl.system.workers.program:execute"
"""The argument `work` of `Worker` for such a process; its first request is a `Program`."""


class Program(NamedTuple):
    """A program: its arguments, its whole environment, and the file to which its output is appended."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    output: str


def execute(connection: int, status: int) -> NoReturn:
    """Become the program that arrives on `connection`. A program that cannot be executed is an error in its output."""
    program: Program = read_request(open_connection(connection))
    output = os.open(program.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    os.execvpe(program.arguments[0], program.arguments, program.environment)  # noqa: S606 - no shell is meant
