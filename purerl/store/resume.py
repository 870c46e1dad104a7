"""Resuming a run: from the newest checkpoint that is whole, and whose metrics are there."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from purerl.errors import CheckpointError
from purerl.store.checkpoint import newest, saved_steps, set_aside, step_of
from purerl.store.directory import RunDirectory
from purerl.store.records import find_gap, warn_of_missing_rollouts

__all__ = ["check_can_continue", "checkpoint_to_resume", "rewind_to"]

_LOG = logging.getLogger(__name__)


def checkpoint_to_resume(directory: RunDirectory) -> Path | None:
    """The newest checkpoint that is whole, and up to which the metrics have every step; None if there is none yet.

    Warnings say which newer checkpoints cannot be used, or that a run without checkpoint starts again.

    Raises: CheckpointError if there are checkpoints, but none can be used.
    """
    steps = [record["step"] for record in directory.records()]
    path = newest(directory.checkpoints, partial(find_gap, steps))
    if path is None and any(steps):
        _LOG.warning("there is no checkpoint yet: the run starts again, and repeats its first %d steps", max(steps))
    return path


def rewind_to(path: Path | None, directory: RunDirectory) -> None:
    """Remove what was recorded after the checkpoint at `path` (None: everything), because it is done again.

    Later checkpoints are renamed. A warning says which rollouts of the steps before are missing. The steps of the run
    that this one started from have none.
    """
    step = -1 if path is None else step_of(path)
    set_aside(directory.checkpoints, after=step)
    directory.rewind(step)
    first = directory.origin["step"] + 1 if directory.origin else 0
    warn_of_missing_rollouts([r for r in directory.records() if r["step"] >= first], directory.rollouts)


def check_can_continue(directory: RunDirectory) -> None:
    """Raise CheckpointError if the finished run in `directory` has no checkpoint, or none that can be used."""
    if not saved_steps(directory.checkpoints):
        raise CheckpointError(
            f"the finished run in {str(directory.path)!r} cannot be continued",
            got=f"no checkpoint in {str(directory.checkpoints)!r}",
            need="its last checkpoint",
            do="restore it from a copy, name another directory, or discard the run with --fresh",
        )
    checkpoint_to_resume(directory)
