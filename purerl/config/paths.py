"""Paths of files and models in a run directory, before its place is known."""

from __future__ import annotations

__all__ = ["RUN", "is_created_by_run"]

RUN = "{run}"
"""The run directory, in a path of a configuration."""


def is_created_by_run(path: str) -> bool:
    """Whether the file or model at `path` is in the run directory, so that it may not exist before the run.

    >>> is_created_by_run("{run}/prepared/model"), is_created_by_run("gpt2")
    (True, False)
    """
    return RUN in path
