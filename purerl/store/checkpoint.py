"""Checkpoints: a directory each, committed by the manifest that is written into it last.

The name of a directory is the number of its step. A directory without a manifest was being written when the run died;
it is removed before the next checkpoint is written. If files of the manifest are missing or have another size, the
checkpoint is damaged: it is not loaded, and stays until there are newer ones. Directories with other names, and other
files in a checkpoint, are left alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from purerl.errors import CheckpointError
from purerl.files import sync, sync_tree, write_atomically
from purerl.protocols import Trainer

__all__ = ["commit", "complete_checkpoints", "newest", "newest_and_clean", "restore"]

_MANIFEST, _LOOP = "manifest.json", "loop.pt"


def commit(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    trainers: Mapping[str, Trainer],
    *,
    keep: int,
    protected: Collection[int] = (),
) -> Path:
    """Save the `state` of the loop after `step`, and all trainers; then remove all but the newest `keep` checkpoints.

    The checkpoints of the steps `protected` are not removed. `state` has numbers, strings, tensors, and lists, tuples
    and dicts of them.

    Raises: CheckpointError if it cannot be written. It is removed then, and earlier checkpoints are unchanged.
    """
    path = folder / f"{step:06d}"
    try:
        shutil.rmtree(path, ignore_errors=True)
        for role, trainer in trainers.items():
            (path / role).mkdir(parents=True)
            trainer.save(path / role)
        torch.save(dict(state), (saved := BytesIO()))
        (path / _LOOP).write_bytes(saved.getvalue())
        sync_tree(path)
        write_atomically(path / _MANIFEST, json.dumps({"step": step, "files": _sizes(path)}, indent=2))
        sync(folder)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        before = newest_and_clean(folder, keep=keep, protected=protected)
        resumes = f"from {str(before)!r}, which is kept" if before else "from the start, because there is no checkpoint"
        raise CheckpointError(
            f"checkpoint {str(path)!r} cannot be written",
            got=str(error),
            need="space on the disk, and permission to write there",
            do=f"free space or fix the permissions; the same command resumes {resumes}",
        ) from error
    newest_and_clean(folder, keep=keep, protected=protected)
    return path


def newest_and_clean(folder: Path, *, keep: int, protected: Collection[int] = ()) -> Path | None:
    """The newest complete checkpoint; None if there is none.

    Uncommitted checkpoints, and all that are older than the newest `keep`, are removed, except for those of the steps
    `protected`.
    """
    complete = []
    for path in _newest_first(folder):
        is_old = len(complete) >= keep and int(path.name) not in protected
        if is_old or not (path / _MANIFEST).exists():
            shutil.rmtree(path)
        elif _is_whole(path):
            complete.append(path)
    return complete[0] if complete else None


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint; None if there is none. Nothing is removed: another process may be writing."""
    return next(filter(_is_whole, _newest_first(folder)), None)


def complete_checkpoints(folder: Path) -> list[Path]:
    """All complete checkpoints, newest first."""
    return [*filter(_is_whole, _newest_first(folder))]


def restore(path: Path, trainers: Mapping[str, Trainer]) -> dict[str, Any]:
    """Load the checkpoint at `path` into `trainers`; return the state of the loop."""
    state = torch.load(path / _LOOP, weights_only=True)
    for role, trainer in trainers.items():
        trainer.load(path / role)
    return state


def _sizes(path: Path) -> dict[str, int]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith(_MANIFEST))
    return {str(file.relative_to(path)): file.stat().st_size for file in files}


def _newest_first(folder: Path) -> list[Path]:
    """The directories of steps in `folder`, complete or not."""
    paths = [path for path in folder.glob("*") if re.fullmatch("[0-9]+", path.name) and path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name), reverse=True)


def _is_whole(path: Path) -> bool:
    """Whether the manifest belongs to this step, and every file in it exists with its size."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        sizes = {name: (path / name).stat().st_size for name in manifest["files"]}
    except (FileNotFoundError, ValueError):
        return False
    return (manifest["step"], manifest["files"]) == (int(path.name), sizes)
