"""Tools that run Python code which the model writes, in a sandbox (docs/explanation/sandbox.md).

    purerl.envs.python_tool:python       each call is a new interpreter: no variables remain
    purerl.envs.python_tool:Interpreter  an interpreter for each episode, which keeps variables and files

Code cannot reach files, processes and networks of the host, and has limits of time, memory, processes, files and
output. If a sandbox cannot be built on this computer, the tools raise SandboxError, whose message says what to do.

For other limits or settings, name a function of your own as the tool, which calls `run_program`, or a class that
extends `Interpreter`. `SandboxSettings(layers="none")` runs code without any protection.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Self

from attrs import evolve

from purerl.sandbox import Limits, Pool, Result, Sandbox, SandboxSettings, Session, open_sandbox

__all__ = ["Interpreter", "python", "run_program"]

_CELL = Path(__file__).with_name("python_cell.py").read_text(encoding="utf-8")
_SIGNALS = {number.value: number.name for number in signal.Signals}
_DEFAULT = SandboxSettings(limits=Limits(max_memory=1024))


def python(code: str) -> str:
    """Run a Python program, and return what it prints and the value of its last line. No variables are kept.

    Args:
        code: the program
    """
    return run_program(code)


def run_program(
    code: str,
    *,
    timeout: float = 10.0,
    max_memory: int = 1024,
    max_characters: int = 1000,
    settings: SandboxSettings = _DEFAULT,
) -> str:
    """The output of the program `code`, with the value of its last line if that is an expression, and its traceback.

    timeout         seconds after which it is ended, with all processes that it has started
    max_memory      MiB of memory of all of them together
    max_characters  of the result; the middle of a longer one is left out
    settings        of the sandbox, which stays open in this process for further calls

    Raises: SandboxError if nothing is known about the program.
    """
    limits = evolve(settings.limits, timeout=timeout, max_memory=max_memory)
    result = _sandbox(settings).run_python(_CELL, files={"code.py": code}, limits=limits)
    return _answer(result, limits, max_characters)


class Interpreter:
    """A Python interpreter in a sandbox, for one episode. Name the class as a tool: its method is what the model calls.

    settings        of the sandbox; its limits are those of one call
    total_timeout   duration of all calls of an episode together, in seconds
    max_characters  of the answer to a call; the middle of a longer one is left out

    Code that takes too long is interrupted. If that does not end it, or if another limit is exceeded, the interpreter
    starts again without its variables, and the answer says so.
    """

    def __init__(
        self, settings: SandboxSettings = _DEFAULT, *, total_timeout: float = 300.0, max_characters: int = 1000
    ):
        self._settings, self._max_characters = settings, max_characters
        self._session = _open_session(settings, total_timeout)

    def python(self, code: str) -> str:
        """Run Python code, and return what it prints and the value of its last line. Variables and files are kept.

        Args:
            code: the code
        """
        if self._session.remaining_seconds <= 0:
            return "Error: no time is left for further code"
        answer = _answer(self._session.run(code), self._settings.limits, self._max_characters)
        if self._session.is_alive:
            return answer
        self._session = _open_session(self._settings, self._session.remaining_seconds)
        return f"{answer}\nThe interpreter has started again, without variables and files."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()


_OPENING = Lock()


@cache
def _opened(settings: SandboxSettings, process: int) -> Sandbox:
    return open_sandbox(settings)


def _sandbox(settings: SandboxSettings) -> Sandbox:
    """The sandbox of this process with these settings, which is opened at the first call."""
    with _OPENING:
        return _opened(settings, os.getpid())


def _open_session(settings: SandboxSettings, seconds: float) -> Session:
    opened = _sandbox(settings) if settings.remote is None else None
    if isinstance(opened, Pool):
        return opened.session(total_timeout=seconds)
    return Session(settings, total_timeout=seconds)


def _answer(result: Result, limits: Limits, max_characters: int) -> str:
    text = (result.stdout_text + result.stderr_text).strip("\n")
    return "\n".join(filter(None, [_shortened(text, max_characters), _end(result, limits)])) or "(no output)"


def _end(result: Result, limits: Limits) -> str:
    """The reason for ending a program; empty if it has ended by itself."""
    reasons = {
        "timeout": f"did not end within {limits.timeout:g} seconds",
        "memory": f"used more than {limits.max_memory} MiB of memory",
        "processes": f"had more than {limits.max_processes} processes and threads",
        "output": f"wrote more than {limits.max_output} bytes",
        "killed": f"was ended by {_SIGNALS.get(-(result.exit_code or 0), 'a signal')}",
    }
    return f"Error: the program {reasons[result.status]}" if result.status in reasons else ""


def _shortened(text: str, length: int) -> str:
    r"""`text` without its middle if it has more than `length` characters.

    >>> _shortened("0123456789", 4)
    '01\n... 6 characters are left out ...\n89'
    """
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[len(text) - half :]}"
