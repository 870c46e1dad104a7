"""The commit of a clone, with and without changes, and without git; versions and processor of this process."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from purerl.system import provenance

_AUTHOR = ("-c", "user.name=Test", "-c", "user.email=test@localhost")


def _git(folder: Path, *arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git")
    command = [git, "-C", str(folder), *_AUTHOR, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    _git(tmp_path, "add", "file")
    _git(tmp_path, "commit", "-qm", "First")
    provenance.commit.cache_clear()
    return tmp_path


def test_commit_of_a_clone_is_marked_if_a_file_has_changed(clone: Path) -> None:
    head = _git(clone, "rev-parse", "HEAD")
    _git(clone, "tag", "v1")
    (clone / "result").write_text("not under version control")
    assert provenance.commit(clone) == head
    (clone / "file").write_text("2")
    provenance.commit.cache_clear()
    assert provenance.commit(clone) == f"{head}-dirty"


def test_commit_is_not_known_without_git(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance.shutil, "which", lambda name: None)
    assert provenance.commit(clone) is None


def test_commit_of_an_installation_from_git_is_that_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        @staticmethod
        def read_text(name: str) -> str:
            return '{"url": "https://host/purerl.git", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}}'

    monkeypatch.setattr(provenance, "distribution", lambda name: Installed)
    provenance.commit.cache_clear()
    assert provenance.commit(tmp_path) == "4f2a"


def test_versions_and_machine_are_those_of_this_process() -> None:
    found, machine = provenance.versions(), provenance.machine()
    assert found["torch"] == torch.__version__
    assert "purerl" in found
    assert machine["cores"] >= 1
    assert machine["processor"]
    assert ("device" in machine) == torch.accelerator.is_available()
