"""Checkpoints on disk: a directory each, committed by the manifest that is written into it last (`commit.py`).

The name of a directory is the number of its step. A directory without a manifest was being written or removed when the
run died; it is removed before the next checkpoint is written. The manifest has the digest of each file. A checkpoint
whose files have changed since is damaged: it is not loaded, and it is renamed when the run resumes from an older one.
Directories with other names, and other files in a checkpoint, are left alone. If a checkpoint is a link, only the link
is ever removed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from purerl.errors import CheckpointError
from purerl.protocols import Trainer
from purerl.store.manifest import LOOP_FILE, find_damage, has_all_files, is_committed, uncommit
from purerl.system.files import remove, sync

__all__ = [
    "clean",
    "newest",
    "newest_whole",
    "path_of",
    "remove_checkpoint",
    "restore",
    "saved_steps",
    "set_aside",
    "step_of",
]

_LOG = logging.getLogger(__name__)


def clean(folder: Path, *, keep: int, protected: Collection[int] = ()) -> None:
    """Remove uncommitted checkpoints, and all that are older than the newest `keep`, except for the steps `protected`.

    No file is verified.
    """
    num_complete = 0
    for path in _newest_first(folder):
        is_old = num_complete >= keep and step_of(path) not in protected
        if is_old or not is_committed(path):
            remove_checkpoint(path)
        else:
            num_complete += has_all_files(path)


def set_aside(folder: Path, *, after: int) -> None:
    """Rename checkpoints of steps after `after`, because the run resumes before them. A warning names each of them.

    Otherwise they could be taken for checkpoints of the steps that are done again, if these have other checkpoints.
    """
    for path in filter(is_committed, _newest_first(folder)):
        if step_of(path) > after:
            unused = path.with_name(f"{path.name}.unused")
            remove(unused)
            path.rename(unused)
            sync(folder)
            _LOG.warning("the run resumes before checkpoint %s, which is renamed to %s", path, unused.name)


def newest(folder: Path, problem: Callable[[int], str | None] = lambda step: None) -> Path | None:
    """The newest whole checkpoint, all of whose files are verified; None if there is no checkpoint.

    `problem` says why the checkpoint of a step cannot be used for another reason, or None. A warning names each newer
    checkpoint that is not used. Nothing is removed: another process may be writing.

    Raises: CheckpointError if there are checkpoints, but none can be used.
    """
    problems: dict[Path, str] = {}
    for path in filter(is_committed, _newest_first(folder)):
        found = find_damage(path) or problem(step_of(path))
        if not is_committed(path):  # another process has removed it meanwhile, because there is a newer one
            return newest(folder, problem)
        if found is None:
            for other, reason in problems.items():
                _LOG.warning("checkpoint %s cannot be used: %s; %s is used instead", other, reason, path)
            return path
        problems[path] = found
    if problems:
        raise CheckpointError(
            f"no checkpoint in {str(folder)!r} can be used",
            got="; ".join(f"{path.name}: {reason}" for path, reason in problems.items()),
            need="one of them, and the metrics up to it, as they were written",
            do="restore them from a copy, or discard the run with purerl train --fresh",
        )
    return None


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint all of whose files have their sizes; None if there is none. Nothing is verified."""
    return next(filter(has_all_files, _newest_first(folder)), None)


def restore(path: Path, trainers: Mapping[str, Trainer]) -> dict[str, Any]:
    """Load the checkpoint at `path` into `trainers`; return the state of the loop. `newest` has verified its files.

    Raises: CheckpointError if it cannot be loaded, or does not fit.
    """
    try:
        state = torch.load(path / LOOP_FILE, weights_only=True)
    except (RuntimeError, EOFError, UnpicklingError) as error:
        need = "a file that this version of purerl has written"
        raise CheckpointError(f"{str(path / LOOP_FILE)!r} cannot be loaded", got=str(error), need=need) from error
    for role, trainer in trainers.items():
        trainer.load(path / role)
    return state


def saved_steps(folder: Path) -> set[int]:
    """The steps of the committed checkpoints in `folder`."""
    return set(map(step_of, filter(is_committed, _newest_first(folder))))


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of `step` in `folder`."""
    return folder / f"{step:06d}"


def step_of(path: Path) -> int:
    """The step of the checkpoint at `path`."""
    return int(path.name)


def _newest_first(folder: Path) -> list[Path]:
    """The directories of steps in `folder`, complete or not. Other names than those of `commit` are the user's own."""
    paths = [path for path in folder.glob("*") if path.name.isdecimal() and path.name == f"{step_of(path):06d}"]
    return sorted(filter(Path.is_dir, paths), key=step_of, reverse=True)


def remove_checkpoint(path: Path) -> None:
    """Remove the checkpoint at `path`, if there is one; of a link only the link.

    The manifest is removed first. A checkpoint that is removed in part is then an uncommitted one.
    """
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        uncommit(path)
        shutil.rmtree(path)
