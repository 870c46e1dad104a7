"""Directories of weights for servers: nothing of a run that was killed stays, and nothing of another run is removed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from purerl.backends.serving import weights
from purerl.backends.serving.weights import WeightsDirectory
from tests.forks import PROGRAMS

PROGRAM = """
import sys, time
from purerl.backends.serving.weights import WeightsDirectory
directory = WeightsDirectory(sys.argv[1], 1)
(directory.path / "model.safetensors").write_text("weights")
print(directory.path, flush=True)
time.sleep(600)
"""


def let_it_be_old(path: Path) -> None:
    os.utime(path, (1.0, 1.0))


def test_directory_of_a_process_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    process = PROGRAMS.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    old = Path(process.stdout.readline().strip())
    let_it_be_old(old)
    WeightsDirectory(str(tmp_path), 1).close()
    assert (old / "model.safetensors").exists(), "its process lives"
    process.kill()
    process.wait()
    process.stdout.close()
    WeightsDirectory(str(tmp_path), 1).close()
    assert list(tmp_path.iterdir()) == []


def test_directories_that_are_used_or_new_or_of_others_stay(tmp_path: Path) -> None:
    used = WeightsDirectory(str(tmp_path), 1)
    (new := tmp_path / "purerl-weights-justmade").mkdir()
    (other := tmp_path / "weights").mkdir()
    (not_made := tmp_path / "purerl-weights-of_a_run").mkdir()  # it has this name, and no lock of purerl
    (not_made / "summary.json").touch()
    for path in (used.path, other, not_made):
        let_it_be_old(path)
    WeightsDirectory(str(tmp_path), 1).close()
    assert sorted(tmp_path.iterdir()) == sorted([used.path, new, other, not_made])
    used.close()
    assert sorted(tmp_path.iterdir()) == sorted([new, other, not_made])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a directory of another user")
def test_directories_of_strangers_are_neither_removed_nor_followed(tmp_path: Path) -> None:
    (theirs := tmp_path / "purerl-weights-stranger").mkdir()
    (theirs / ".purerl-lock").write_text(socket.gethostname())
    (mine := tmp_path / "mine").mkdir()
    (mine / ".purerl-lock").write_text(socket.gethostname())
    (link := tmp_path / "purerl-weights-is_alink").symlink_to(mine)
    os.chown(theirs, 65534, 65534)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    for path in (theirs, mine):
        let_it_be_old(path)
    WeightsDirectory(str(tmp_path), 1).close()
    assert sorted(tmp_path.iterdir()) == sorted([theirs, mine, link])
    assert (mine / ".purerl-lock").exists()


def test_a_server_of_another_user_may_read_a_directory_that_was_named(tmp_path: Path) -> None:
    directory = WeightsDirectory(str(tmp_path / "shared"), 1)
    assert directory.path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("share", "is_in_memory"), [(0.4, True), (0.5, False)])
def test_without_a_name_two_copies_must_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, is_in_memory: bool
) -> None:
    monkeypatch.setattr(weights, "_SHARED_MEMORY", memory := tmp_path / "memory")
    monkeypatch.setattr("tempfile.tempdir", str(disk := tmp_path / "disk"))
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    memory.mkdir()
    disk.mkdir()
    directory = WeightsDirectory(None, int(share * 1000))
    assert directory.path.parent == (memory if is_in_memory else disk)
    assert directory.path.stat().st_mode & 0o777 == 0o700
