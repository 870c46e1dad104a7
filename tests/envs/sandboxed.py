"""A tool with settings of its own."""

from __future__ import annotations

from purerl.envs.python_tool import run_program
from purerl.sandbox import SandboxSettings

__all__ = ["python"]

_SETTINGS = SandboxSettings()


def python(code: str) -> str:
    """Run code.

    Args:
        code: the code
    """
    return run_program(code, settings=_SETTINGS)
