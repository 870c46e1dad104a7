"""A sandbox for untrusted programs, such as those that a model writes.

    run(command)           run a program, with files, stdin and limits; returns a `Result`
    run_python(source)     run a Python program
    Pool(...)              many runs, forked from a warm interpreter; also from asyncio
    Session(...)           a Python interpreter that keeps its variables from turn to turn
    open_sandbox(settings) a `Pool`, or a remote sandbox, as settings say
    Limits, SandboxSettings

What is protected and how: docs/explanation/sandbox.md. The names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purerl.sandbox.opening import Sandbox, open_sandbox
    from purerl.sandbox.pool import Pool
    from purerl.sandbox.program_results import Result, Status
    from purerl.sandbox.running import run, run_python
    from purerl.sandbox.session import Session
    from purerl.sandbox.settings import Limits, SandboxSettings

__all__ = [
    "Limits",
    "Pool",
    "Result",
    "Sandbox",
    "SandboxSettings",
    "Session",
    "Status",
    "open_sandbox",
    "run",
    "run_python",
]

_HOMES = {
    "Limits": "settings", "Pool": "pool", "Result": "program_results", "Sandbox": "opening",
    "SandboxSettings": "settings", "Session": "session", "Status": "program_results", "open_sandbox": "opening",
    "run": "running", "run_python": "running",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'purerl.sandbox' has no attribute {name!r}")
    return getattr(import_module(f"purerl.sandbox.{_HOMES[name]}"), name)
