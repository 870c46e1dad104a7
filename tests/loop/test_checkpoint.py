"""A checkpoint is what its manifest says, or it is nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy
import pytest
import torch

from purerl.errors import CheckpointError
from purerl.loop.checkpoint import commit, committed, newest, restore
from purerl.loop.run import State


class Number:
    """As much of a trainer as a checkpoint needs: one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def save(self, path: Path) -> None:
        (path / "value").write_text(str(self.value))

    def load(self, path: Path) -> None:
        self.value = float((path / "value").read_text())


def _commit(folder: Path, step: int, value: float = 1.0) -> Path:
    return commit(
        folder, State(step, drawn=10 * step, transform=(torch.tensor(0.5),)), {"policy": Number(value)}, keep=2
    )


def test_everything_comes_back(tmp_path: Path) -> None:
    path = _commit(tmp_path, 4, value=7.0)
    expected = _draws()
    trainer = Number(0.0)
    state = restore(path, {"policy": trainer})
    assert (state.step, state.drawn, state.transform, trainer.value) == (4, 40, (torch.tensor(0.5),), 7.0)
    assert _draws() == expected


def _draws() -> tuple[float, ...]:
    return random.random(), numpy.random.random(), float(torch.rand(()))


def test_the_newest_few_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _commit(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000003"]
    assert committed(tmp_path, keep=2) == tmp_path / "000003"


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "short file", "missing file"])
def test_a_damaged_one_is_never_loaded(tmp_path: Path, damage: str) -> None:
    _commit(tmp_path, 1)
    last = _commit(tmp_path, 2)
    manifest = last / "manifest.json"
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:9])
    elif damage == "short file":
        (last / "loop.pt").write_bytes((last / "loop.pt").read_bytes()[:-1])
    else:
        (last / "policy" / "value").unlink()
    assert newest(tmp_path) == committed(tmp_path, keep=2) == tmp_path / "000001"
    assert last.exists() == manifest.exists(), "only what was never committed is removed"
    for step in (3, 4):
        _commit(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003", "000004"]


def test_what_is_not_ours_is_left_alone_and_in_nobodys_way(tmp_path: Path) -> None:
    path = _commit(tmp_path, 1)
    (path / "notes.txt").write_text("the good one")
    (path / "policy" / ".nfs01").touch()
    (tmp_path / "zz.txt").touch()
    (tmp_path / "9").touch()
    for name in ("000001 copy", "best", "000009"):
        shutil.copytree(path, tmp_path / name)
    strangers = {entry.name for entry in tmp_path.iterdir()} - {path.name}
    for step in (2, 3):
        assert newest(tmp_path) == committed(tmp_path, keep=2) == tmp_path / f"{step - 1:06d}"
        _commit(tmp_path, step)
    assert {entry.name for entry in tmp_path.iterdir()} == strangers | {"000002", "000003"}


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 1_000_001):
        assert committed(tmp_path, keep=2) == newest(tmp_path)
        assert _commit(tmp_path, step) == newest(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"1000000", "1000001"}


def test_all_of_it_is_on_the_disk_before_older_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _commit(tmp_path, 1)
    synced, at_removal = _synced(monkeypatch), []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: at_removal.append((path, synced.copy())))
    path = commit(tmp_path, State(2), {"policy": Number(0.0)}, keep=1)
    removed, before = at_removal[-1]
    assert removed == tmp_path / "000001"
    assert before[-1] == tmp_path, "the name of the folder is the last thing"
    *_, manifest, names, _ = before
    assert (manifest.stem, names) == ("manifest.json", path), "the manifest comes after everything that it lists"
    assert {path / "loop.pt", path / "policy", path / "policy" / "value", path} <= set(before[:-3])


def _synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is on the disk for certain, in the order in which it got there."""
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return synced


def test_none_is_none(tmp_path: Path) -> None:
    assert committed(tmp_path / "checkpoints", keep=2) is None


def test_the_manifest_lists_every_file(tmp_path: Path) -> None:
    path = _commit(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest == {"step": 1, "files": {"loop.pt": (path / "loop.pt").stat().st_size, "policy/value": 3}}


def test_one_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    class Full(Number):
        def save(self, path: Path) -> None:
            raise OSError(28, "No space left on device")

    _commit(tmp_path, 1)
    with pytest.raises(CheckpointError, match="No space left on device"):
        commit(tmp_path, State(2), {"policy": Full(0.0)}, keep=1)
    assert committed(tmp_path, keep=2) == tmp_path / "000001"
