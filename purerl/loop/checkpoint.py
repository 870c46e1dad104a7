"""Checkpoints: a folder each, committed by the manifest that is written into it last.

A folder without a manifest, or whose files are not those that the manifest lists, is a checkpoint that was being
written when the run died. It is never loaded, and removed before the next one is written.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torch
from attrs import asdict

from purerl.errors import CheckpointError
from purerl.loop.files import sync_folder, write_at_once
from purerl.loop.run import State
from purerl.protocols import Trainer

__all__ = ["commit", "committed", "newest", "restore"]

_MANIFEST = "manifest.json"


def commit(folder: Path, state: State, trainers: Mapping[str, Trainer], *, keep: int) -> Path:
    """Save everything that the run needs to go on bit for bit; then remove all but the newest `keep` checkpoints.

    Raises: CheckpointError where it cannot be written. It is then removed; those before it are as they were.
    """
    path = folder / f"{state.step:06d}"
    try:
        shutil.rmtree(path, ignore_errors=True)
        for role, trainer in trainers.items():
            (path / role).mkdir(parents=True)
            trainer.save(path / role)
        torch.save({"state": asdict(state, recurse=False), "random": _random_state()}, (saved := BytesIO()))
        (path / "loop.pt").write_bytes(saved.getvalue())
        sync_folder(path)
        write_at_once(path / _MANIFEST, json.dumps({"step": state.step, "files": _files(path)}, indent=2))
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        before = committed(folder, keep=keep)
        goes_on = f"from {str(before)!r}, which is kept" if before else "from its beginning: there is no checkpoint yet"
        raise CheckpointError(
            f"checkpoint {str(path)!r} cannot be written",
            got=str(error),
            need="room on the disk, and permission to write there",
            do=f"make room or mend the permissions; the same command goes on {goes_on}",
        ) from error
    committed(folder, keep=keep)
    return path


def committed(folder: Path, *, keep: int) -> Path | None:
    """The newest checkpoint that was committed, if there is one.

    What was never committed is removed, and so are all but the newest `keep`.
    """
    whole = []
    for path in sorted(folder.glob("*"), reverse=True):
        if len(whole) < keep and _is_whole(path):
            whole.append(path)
        else:
            shutil.rmtree(path)
    return whole[0] if whole else None


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that was committed, if there is one. Nothing is removed: another process may be writing."""
    return next((path for path in sorted(folder.glob("*"), reverse=True) if _is_whole(path)), None)


def restore(path: Path, trainers: Mapping[str, Trainer]) -> State:
    """Load the checkpoint at `path` into `trainers` and the process's random generators."""
    saved = torch.load(path / "loop.pt", weights_only=False)
    for role, trainer in trainers.items():
        trainer.load(path / role)
    python, vectors, tensors = saved["random"]
    random.setstate(python)
    numpy.random.set_state(vectors)
    torch.set_rng_state(tensors)
    return State(**saved["state"])


def _random_state() -> tuple[Any, ...]:
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state()


def _files(path: Path) -> dict[str, int]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith(_MANIFEST))
    return {str(file.relative_to(path)): file.stat().st_size for file in files}


def _is_whole(path: Path) -> bool:
    manifest = path / _MANIFEST
    return manifest.exists() and json.loads(manifest.read_text())["files"] == _files(path)
