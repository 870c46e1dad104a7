"""A checkpoint is what its manifest says, or it is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from purerl.errors import CheckpointError
from purerl.loop.checkpoint import commit, committed, restore
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
    torch.manual_seed(3)
    path = _commit(tmp_path, 4, value=7.0)
    expected = torch.rand(3)
    trainer = Number(0.0)
    state = restore(path, {"policy": trainer})
    assert (state.step, state.drawn, state.transform, trainer.value) == (4, 40, (torch.tensor(0.5),), 7.0)
    assert torch.equal(torch.rand(3), expected)


def test_the_newest_few_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _commit(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000003"]
    assert committed(tmp_path, keep=2) == tmp_path / "000003"


@pytest.mark.parametrize("damage", ["no manifest", "short file", "missing file", "extra file"])
def test_a_damaged_one_is_never_loaded(tmp_path: Path, damage: str) -> None:
    _commit(tmp_path, 1)
    newest = _commit(tmp_path, 2)
    if damage == "no manifest":
        (newest / "manifest.json").unlink()
    elif damage == "short file":
        (newest / "loop.pt").write_bytes((newest / "loop.pt").read_bytes()[:-1])
    elif damage == "missing file":
        (newest / "policy" / "value").unlink()
    else:
        (newest / "policy" / "other").touch()
    assert committed(tmp_path, keep=2) == tmp_path / "000001"
    assert not newest.exists()


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
