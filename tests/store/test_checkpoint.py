"""Writing, finding and removing checkpoints. Damaged ones: test_damage.py."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.errors import CheckpointError
from purerl.store.checkpoint import clean, newest, restore
from purerl.store.commit import commit


class Number:
    """The part of a trainer that a checkpoint needs. Its only weight is a number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def save(self, path: Path) -> None:
        (path / "value").write_text(str(self.value))

    def load(self, path: Path) -> None:
        self.value = float((path / "value").read_text())


def _commit(folder: Path, step: int, value: float = 1.0, *, keep: int = 2) -> Path:
    state: dict[str, Any] = {"step": step, "transform": (torch.tensor(0.5), {"mean": [1, 2.0]})}
    return commit(folder, step, state, {"policy": Number(value)}, keep=keep)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_restore_loads_trainers_and_returns_the_state(tmp_path: Path) -> None:
    path, trainer = _commit(tmp_path, 4, value=7.0), Number(0.0)
    state = restore(path, {"policy": trainer})
    assert state == {"step": 4, "transform": (torch.tensor(0.5), {"mean": [1, 2.0]})}
    assert trainer.value == 7.0


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _commit(tmp_path, step)
    assert _names(tmp_path) == {"000002", "000003"}
    assert newest(tmp_path) == tmp_path / "000003"


def test_checkpoint_without_a_manifest_is_not_loaded_and_removed(tmp_path: Path) -> None:
    first, last = _commit(tmp_path, 1), _commit(tmp_path, 2)
    (last / "manifest.json").unlink()
    assert newest(tmp_path) == first
    assert last.exists(), "another process may be writing it"
    clean(tmp_path, keep=2)
    assert _names(tmp_path) == {"000001"}


def test_unknown_files_and_directories_are_ignored_and_not_removed(tmp_path: Path) -> None:
    path = _commit(tmp_path, 1)
    (path / "notes.txt").write_text("the good one")
    (path / "policy" / ".nfs01").touch()
    (tmp_path / "zz.txt").touch()
    (tmp_path / "9").touch()
    for name in ("000001 copy", "best", "000009"):
        shutil.copytree(path, tmp_path / name)
    unknown = _names(tmp_path) - {path.name}
    for step in (2, 3):
        clean(tmp_path, keep=2)
        assert newest(tmp_path) == tmp_path / f"{step - 1:06d}"
        _commit(tmp_path, step)
    assert _names(tmp_path) == unknown | {"000002", "000003"}


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 1_000_001):
        assert _commit(tmp_path, step) == newest(tmp_path)
    assert _names(tmp_path) == {"1000000", "1000001"}


def test_checkpoint_is_on_the_disk_before_older_ones_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit(tmp_path, 1)
    synced, at_removal = _synced(monkeypatch), []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: at_removal.append((path, synced.copy())))
    path = _commit(tmp_path, 2, keep=1)
    removed, before = at_removal[-1]
    assert removed == tmp_path / "000001"
    assert before[-1] == tmp_path, "the name of the directory is synced last"
    *_, manifest, names, _ = before
    assert (manifest.stem, names) == ("manifest.json", path), "the manifest follows all files that it lists"
    assert {path / "loop.pt", path / "policy", path / "policy" / "value", path} <= set(before[:-3])


def _synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that have been flushed to the disk, in this order."""
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return synced


def test_missing_directory_has_no_checkpoint(tmp_path: Path) -> None:
    clean(tmp_path / "checkpoints", keep=2)
    assert newest(tmp_path / "checkpoints") is None


def test_manifest_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    path = _commit(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    files = {name: (path / name).read_bytes() for name in ("loop.pt", "policy/value")}
    digests = {name: {"size": len(b), "digest": f"sha256:{sha256(b).hexdigest()}"} for name, b in files.items()}
    assert manifest == {"format": 2, "step": 1, "ranks": {"0": digests}}


@pytest.mark.parametrize("earlier", [True, False])
def test_checkpoint_that_cannot_be_written_is_removed_and_earlier_ones_stay(tmp_path: Path, earlier: bool) -> None:
    class Full(Number):
        def save(self, path: Path) -> None:
            raise OSError(28, "No space left on device")

    path = _commit(tmp_path, 1) if earlier else None
    resumes = f"from {str(path)!r}, which is kept" if path else "from the start, because there is no checkpoint"
    with pytest.raises(CheckpointError) as caught:
        commit(tmp_path, 2, {}, {"policy": Full(0.0)}, keep=1)
    assert str(caught.value) == (
        f"checkpoint '{tmp_path}/000002' cannot be written\n"
        "  got:  [Errno 28] No space left on device\n"
        "  need: space on the disk, and permission to write there\n"
        f"  do:   free space or fix the permissions; the same command resumes {resumes}"
    )
    assert newest(tmp_path) == path
    assert _names(tmp_path) == ({"000001"} if earlier else set())
