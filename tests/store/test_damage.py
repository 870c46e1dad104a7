"""A damaged checkpoint is never loaded: an older one is used, or an error says what to do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from purerl.errors import CheckpointError, EngineError
from purerl.store.checkpoint import clean, newest, restore, set_aside
from purerl.store.commit import commit

from .damage import DAMAGES, flip

FILES = ("manifest.json", "loop.pt", "policy/weights")


class Weights:
    """The part of a trainer that a checkpoint needs, which reports no digests."""

    def save(self, path: Path) -> None:
        (path / "weights").write_bytes(bytes(range(256)) * 8)


class Reporting(Weights):
    """A trainer that reports these digests."""

    def __init__(self, digests: dict[str, str]) -> None:
        self.digests = digests

    def save(self, path: Path) -> dict[str, str]:
        super().save(path)
        return self.digests


def _commit(folder: Path, step: int, trainer: Weights | None = None, *, keep: int = 3) -> Path:
    return commit(folder, step, {"step": step}, {"policy": trainer or Weights()}, keep=keep)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, file: str
) -> None:
    first, last = _commit(tmp_path, 1), _commit(tmp_path, 2)
    DAMAGES[damage](last / file)
    assert newest(tmp_path) == first
    (message,) = caplog.messages
    assert message.startswith(f"checkpoint {last} cannot be used: {file} ")
    assert message.endswith(f"; {first} is used instead")
    set_aside(tmp_path, after=1)
    clean(tmp_path, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000002.unused"]


def test_checkpoints_after_the_one_that_is_used_are_renamed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3):
        _commit(tmp_path, step)
    (tmp_path / "000003.unused").mkdir()
    set_aside(tmp_path, after=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000002.unused", "000003.unused"]
    assert (tmp_path / "000003.unused" / "manifest.json").exists()
    assert f"the run resumes before checkpoint {tmp_path}/000002, which is renamed to 000002.unused" in caplog.messages


@pytest.mark.parametrize("file", FILES[1:])
def test_missing_file_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str) -> None:
    first, last = _commit(tmp_path, 1), _commit(tmp_path, 2)
    (last / file).unlink()
    assert newest(tmp_path) == first
    assert f"cannot be used: {file} is missing; {first} is used" in caplog.text


def test_every_changed_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    """Apart from other white space, and from another name of the rank."""
    manifest = _commit(tmp_path, 3) / "manifest.json"
    content = manifest.read_bytes()
    before = json.loads(content)["ranks"]["0"]
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        manifest.write_bytes(changed)
        try:
            after = json.loads(changed)
            same = [*after["ranks"].values()] == [before] and (after["step"], after["format"]) == (3, 2)
        except (ValueError, KeyError, AttributeError):
            same = False
        if not same:
            with pytest.raises(CheckpointError, match=r"000003: "):
                newest(tmp_path)


@pytest.mark.parametrize(
    "content", ['{"format": 2, "step": 3, "ranks": {}}', '{"format": 2, "step": 3, "ranks": {"0": {}}}']
)
def test_manifest_without_the_state_of_the_loop_is_refused(tmp_path: Path, content: str) -> None:
    (_commit(tmp_path, 3) / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match="manifest.json does not belong to it"):
        newest(tmp_path)


def test_manifest_of_another_step_is_refused(tmp_path: Path) -> None:
    _commit(tmp_path, 1)
    shutil.copytree(tmp_path / "000001", tmp_path / "000005")
    assert newest(tmp_path) == tmp_path / "000001"


def test_error_names_all_damaged_checkpoints_and_says_what_to_do(tmp_path: Path) -> None:
    flip(_commit(tmp_path, 1) / "policy" / "weights")
    (_commit(tmp_path, 2) / "loop.pt").unlink()
    with pytest.raises(CheckpointError) as caught:
        newest(tmp_path)
    assert str(caught.value) == (
        f"no checkpoint in '{tmp_path}' can be used\n"
        "  got:  000002: loop.pt is missing; 000001: policy/weights has other content than was written\n"
        "  need: one of them, and the metrics up to it, as they were written\n"
        "  do:   restore them from a copy, or discard the run with purerl train --fresh"
    )


@pytest.mark.parametrize("content", [{"step": 2, "files": {}}, {"step": 2, "ranks": {"0": {}}}])
def test_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path, content: dict[str, object]) -> None:
    (_commit(tmp_path, 2) / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        newest(tmp_path)
    assert str(caught.value) == (
        f"no checkpoint in '{tmp_path}' can be used\n"
        "  got:  000002: an earlier version of purerl wrote it, in a format that this version does not read; finish "
        "the run with that version, or let it export the model and start a new run from the export\n"
        "  need: one of them, and the metrics up to it, as they were written\n"
        "  do:   restore them from a copy, or discard the run with purerl train --fresh"
    )


def test_checkpoint_can_be_unusable_for_another_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, _ = _commit(tmp_path, 1), _commit(tmp_path, 2)
    assert newest(tmp_path, lambda step: "too late" if step > 1 else None) == first
    assert "000002 cannot be used: too late" in caplog.text


def test_checkpoint_that_is_removed_while_it_is_verified_is_not_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _commit(tmp_path, 1)

    def commit_another(step: int) -> str | None:
        if step == 2:
            return None
        _commit(tmp_path, 2, keep=1)
        return "removed"

    assert newest(tmp_path, commit_another) == tmp_path / "000002"
    assert not caplog.messages


# --- digests of trainers ------------------------------------------------------------------------------------------


def test_digest_that_a_trainer_reports_is_stored_without_reading_the_file(tmp_path: Path) -> None:
    path = _commit(tmp_path, 1, Reporting({"weights": "sha256:0"}))
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["ranks"]["0"]["policy/weights"] == {"size": 2048, "digest": "sha256:0"}


def test_digest_of_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="got:  policy/weight\n"):
        _commit(tmp_path, 1, Reporting({"weight": "sha256:0"}))
    assert newest(tmp_path) is None


def test_state_of_the_loop_that_executes_code_is_refused(tmp_path: Path) -> None:
    class Command:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/executed",)

    path = commit(tmp_path, 1, {"step": Command()}, {}, keep=1)
    with pytest.raises(CheckpointError, match="loop.pt' cannot be loaded"):
        restore(path, {})
    assert not (tmp_path / "executed").exists()


# --- links, the user's own files, permissions -----------------------------------------------------------------------


def test_only_the_link_to_a_checkpoint_is_removed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    folder.mkdir()
    shutil.move(_commit(folder, 1), elsewhere)
    (folder / "000001").symlink_to(elsewhere)
    (folder / "000002").symlink_to(elsewhere)
    assert newest(folder) == folder / "000001", "a whole checkpoint may be in another place"
    _commit(folder, 2, keep=1)
    assert sorted(path.name for path in folder.iterdir()) == ["000002"]
    assert not (folder / "000002").is_symlink()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["loop.pt", "manifest.json", "policy"]


def test_directories_and_files_of_the_user_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "2024" / "results").mkdir(parents=True)
    (tmp_path / "000001").write_text("a note")
    (tmp_path / "000007").symlink_to("nowhere")
    for step in (2, 3):
        _commit(tmp_path, step, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000003", "000007", "2024"]
    with pytest.raises(CheckpointError, match="000001' cannot be written\n  got:  .*File exists"):
        _commit(tmp_path, 1)
    assert (tmp_path / "000001").read_text() == "a note"


def test_checkpoint_that_is_removed_in_part_is_not_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    _commit(tmp_path, 1)
    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _commit(tmp_path, 2, keep=1)
    monkeypatch.undo()
    (tmp_path / "000001" / "loop.pt").unlink()
    (tmp_path / "000002" / "loop.pt").unlink()
    with pytest.raises(CheckpointError) as caught:
        newest(tmp_path)
    assert "000001" not in str(caught.value)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    import torch

    from purerl.backends.hf.weights.checkpoint import SavePlans
    from purerl.ranks import ONE_RANK

    class Trainer:
        def save(self, path: Path) -> dict[str, str]:
            return SavePlans(ONE_RANK).stage({"a": torch.ones(3)}, copy=False).write(path, ONE_RANK)

    before = os.umask(umask)
    try:
        path = commit(tmp_path, 1, {}, {"policy": Trainer()}, keep=1)
    finally:
        os.umask(before)
    modes = {str(file.relative_to(path)): file.stat().st_mode & 0o777 for file in path.rglob("*") if file.is_file()}
    assert modes == dict.fromkeys(("loop.pt", "manifest.json", "policy/.metadata", "policy/__0_0.distcp"), mode)
    assert newest(tmp_path) == path, "the digests are those of the files"
