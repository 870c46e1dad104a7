"""Versions of engines: which one is installed in an environment, and whether its interface is the one that is used."""

from __future__ import annotations

import logging
import subprocess

__all__ = ["is_version", "version_in", "warn_of_version"]

_LOG = logging.getLogger(__name__)
_PROGRAM = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def version_in(python: str, package: str) -> str | None:
    """The version of `package` in the environment of the interpreter `python`; None if it is not installed there."""
    command = [python, "-c", _PROGRAM, package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - by intention
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def is_version(installed: str, need: str) -> bool:
    """Whether `installed` is the version `need`, or begins with it.

    >>> is_version("0.32.1+cpu", "0.32"), is_version("0.320", "0.32")
    (True, False)
    """
    return f"{installed.partition('+')[0]}.".startswith(f"{need}.")


def warn_of_version(url: str, engine: str, installed: str, need: str) -> None:
    """Warn that the server at `url` has another version of `engine` than `need`."""
    if not is_version(installed, need):
        _LOG.warning("the server at %s is %s %s: purerl was tested with %s", url, engine, installed, need)
