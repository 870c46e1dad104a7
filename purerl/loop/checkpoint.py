"""Checkpoints: a folder each, committed by the manifest that is written into it last.

A folder is called by the number of its step. One without a manifest was being written when the run died: it is removed
before the next one is written. One whose files are not all there, each of the size that the manifest says, is damaged:
it is never loaded, and stays until there are newer ones in its place. What has another name, and what else lies in a
folder, is not ours: it is left alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch
from attrs import asdict

from purerl.errors import CheckpointError
from purerl.files import sync, sync_tree, write_at_once
from purerl.loop.process import random_states, set_random_states
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
        torch.save({"state": asdict(state, recurse=False), "random": random_states()}, (saved := BytesIO()))
        (path / "loop.pt").write_bytes(saved.getvalue())
        sync_tree(path)
        write_at_once(path / _MANIFEST, json.dumps({"step": state.step, "files": _files(path)}, indent=2))
        sync(folder)
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

    What was never committed is removed, and so is all that is older than the newest `keep`.
    """
    whole = []
    for path in _numbered(folder):
        if len(whole) == keep or not (path / _MANIFEST).exists():
            shutil.rmtree(path)
        elif _is_whole(path):
            whole.append(path)
    return whole[0] if whole else None


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that was committed, if there is one. Nothing is removed: another process may be writing."""
    return next(filter(_is_whole, _numbered(folder)), None)


def restore(path: Path, trainers: Mapping[str, Trainer]) -> State:
    """Load the checkpoint at `path` into `trainers` and the process's random generators."""
    saved = torch.load(path / "loop.pt", weights_only=False)
    for role, trainer in trainers.items():
        trainer.load(path / role)
    set_random_states(saved["random"])
    return State(**saved["state"])


def _files(path: Path) -> dict[str, int]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith(_MANIFEST))
    return {str(file.relative_to(path)): file.stat().st_size for file in files}


def _numbered(folder: Path) -> list[Path]:
    """The folders of steps in `folder`, whole or not, the newest first."""
    found = [path for path in folder.glob("*") if re.fullmatch("[0-9]+", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _is_whole(path: Path) -> bool:
    """Whether the manifest is that of this step, and every file in it is there."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        sizes = {name: (path / name).stat().st_size for name in manifest["files"]}
    except (FileNotFoundError, ValueError):
        return False
    return (manifest["step"], manifest["files"]) == (int(path.name), sizes)
