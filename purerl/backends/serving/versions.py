"""Engines in other environments: whether one is installed, its version, and whether its interface is the one used."""

from __future__ import annotations

import logging
import subprocess

__all__ = ["can_import", "is_version", "version_in", "warn_of_version"]

_LOG = logging.getLogger(__name__)
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
_FIND = "import sys; from importlib.util import find_spec; print(find_spec(sys.argv[1]) is not None)"
_TIMEOUT = 60.0  # seconds


def version_in(python: str, package: str) -> str | None:
    """The version of `package` in the environment of the interpreter `python`; None if it is not installed there."""
    return _printed(python, _VERSION, package)


def can_import(python: str, package: str) -> bool:
    """Whether the interpreter `python` finds the module `package`, which it does not import."""
    return _printed(python, _FIND, package) == "True"


def _printed(python: str, program: str, argument: str) -> str | None:
    """The output of `program`; None if it fails."""
    command = [python, "-c", program, argument]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)  # noqa: S603 - by intention
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
