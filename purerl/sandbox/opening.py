"""The interface of sandboxes, and the choice of one by settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from purerl.sandbox.pool import Pool
from purerl.sandbox.program_results import Result
from purerl.sandbox.settings import Limits, SandboxSettings
from purerl.sandbox.tasks import Files, Text

__all__ = ["Sandbox", "open_sandbox"]


class Sandbox(Protocol):
    """A runner of programs: a `Pool`, or a `purerl.sandbox.remote.Remote`.

    Its methods can be called from several threads. They raise SandboxError if nothing is known about the program.
    """

    def run(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result: ...
    def run_python(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result: ...
    async def run_async(
        self, command: Sequence[str], *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result: ...
    async def run_python_async(
        self, source: Text, *, files: Files | None = None, stdin: Text = b"", limits: Limits | None = None
    ) -> Result: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """The sandbox of `settings`: on this computer, or the remote one.

    Raises: SandboxError if it cannot be started; ConfigError.
    """
    if settings.remote is None:
        return Pool(settings)
    from purerl.sandbox.remote import Remote

    return Remote(settings)
