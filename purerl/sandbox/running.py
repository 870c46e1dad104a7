"""Single runs: each starts a new interpreter, or the program that it is given."""

from __future__ import annotations

from collections.abc import Sequence

from purerl.errors import InputError
from purerl.sandbox.messages import Message, Task
from purerl.sandbox.processes import FLAGS, FLAGS_WITHOUT_PACKAGES, Process, ask
from purerl.sandbox.program_results import Result
from purerl.sandbox.settings import Limits, SandboxSettings
from purerl.sandbox.tasks import Files, Text, make_task, to_result

__all__ = ["ANSWER_SECONDS", "answer", "execute", "run", "run_python"]

ANSWER_SECONDS = 60.0
"""Seconds that a supervisor may take beyond the time of a program."""

_DEFAULT = SandboxSettings()


def run(
    command: Sequence[str],
    *,
    files: Files | None = None,
    stdin: Text = b"",
    limits: Limits | None = None,
    settings: SandboxSettings = _DEFAULT,
) -> Result:
    """Run a program in a sandbox, until it ends or exceeds a limit.

    command  the program and its arguments; it is looked up in the directories of the system and of Python
    files    files in its working directory, by their relative paths
    stdin    what it reads from stdin, which is empty otherwise
    limits   if not given, `settings.limits`

    Nothing that it has started outlives it. What it does is a `Result`, also if it fails.

    Raises: SandboxError if a sandbox cannot be built here, or the program cannot be started; InputError.
    """
    if not command:
        raise InputError("command", got="nothing", need="a program")
    if settings.remote is not None:
        from purerl.sandbox.remote import Remote

        with Remote(settings) as remote:
            return remote.run(command, files=files, stdin=stdin, limits=limits)
    return execute(make_task(settings, command=command, files=files, stdin=stdin, limits=limits), settings)


def run_python(
    source: Text,
    *,
    files: Files | None = None,
    stdin: Text = b"",
    limits: Limits | None = None,
    settings: SandboxSettings = _DEFAULT,
) -> Result:
    r"""Run a Python program in a sandbox, as `run` does. `Pool.run_python` is several times as fast.

    The program is the file `program.py` in its working directory. It can use the packages of `settings.python`.

    >>> run_python("print(6 * 7)").stdout
    b'42\n'
    """
    if settings.remote is not None:
        from purerl.sandbox.remote import Remote

        with Remote(settings) as remote:
            return remote.run_python(source, files=files, stdin=stdin, limits=limits)
    return execute(make_task(settings, source=source, files=files, stdin=stdin, limits=limits), settings)


def execute(task: Task, settings: SandboxSettings) -> Result:
    """Run `task` with a supervisor of its own. Raises: SandboxError."""
    return to_result(answer(task, settings))


def answer(task: Task, settings: SandboxSettings) -> Message:
    """The answer of a supervisor to `task`. Raises: SandboxError."""
    flags = FLAGS_WITHOUT_PACKAGES if task.kind == "command" else FLAGS
    process = Process(settings, "start_supervisor", flags=flags)
    try:
        return ask(process.connection, task.to_message(), task.bounds.seconds + ANSWER_SECONDS, process.last_words)
    finally:
        process.close()
