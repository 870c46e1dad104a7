"""Making a `Task` of what users give, and a `Result` of what a supervisor answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from purerl.errors import InputError
from purerl.sandbox.messages import Message, Task
from purerl.sandbox.processes import find_interpreter
from purerl.sandbox.program_results import Result
from purerl.sandbox.settings import Limits, SandboxSettings

__all__ = ["Files", "Text", "check_files", "make_task", "read_only", "to_bytes", "to_result"]

Text = str | bytes
"""A string is encoded as UTF-8; a lone surrogate becomes "?"."""
Files = Mapping[str, Text]
"""Relative path -> content."""


def to_bytes(text: Text) -> bytes:
    r"""The bytes of a text.

    >>> to_bytes("é"), to_bytes("\udc80"), to_bytes(b"x")
    (b'\xc3\xa9', b'?', b'x')
    """
    return text if isinstance(text, bytes) else text.encode(errors="replace")


def check_files(files: Files) -> None:
    """Refuse paths that do not lie below the working directory. Raises: InputError."""
    for path in files:
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts or "\0" in path:
            need = "a relative path without .., below the working directory of the program"
            raise InputError("path of a file", got=repr(path), need=need)


def read_only(settings: SandboxSettings) -> list[str]:
    """The paths that are mounted beside the directories of the system."""
    return [*find_interpreter(settings.python).read_only, *settings.read_only]


def make_task(
    settings: SandboxSettings,
    *,
    command: Sequence[str] = (),
    source: Text | None = None,
    files: Files | None = None,
    stdin: Text = b"",
    limits: Limits | None = None,
) -> Task:
    """A run of `command` or of the Python program `source`; a session if both are missing. Raises: InputError."""
    files = files or {}
    check_files(files)
    kind = "command" if command else "session" if source is None else "python"
    if isinstance(command, str) or any("\0" in argument for argument in command):
        raise InputError("command", got=repr(command), need="a list of arguments without null bytes")
    return Task(
        kind=kind,
        command=list(command),
        layers=settings.layers,
        accounting=settings.accounting,
        read_only=read_only(settings),
        bounds=(limits or settings.limits).bounds(),
        files=list(files),
        source=to_bytes(source or b""),
        stdin=to_bytes(stdin),
        contents=[to_bytes(content) for content in files.values()],
    )


def to_result(message: Message) -> Result:
    """The result in the answer of a supervisor."""
    header, (stdout, stderr) = message
    return Result(header["status"], header["exit_code"], stdout, stderr, header["seconds"], header["memory"])
