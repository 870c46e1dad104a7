"""The command that installs an extra of purerl names the source of this installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purerl.system import installation
from purerl.system.installation import command_from, install_command


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ({"url": "file:///a%20b/purerl", "dir_info": {"editable": True}}, "pip install -e '/a b/purerl[ray]'"),
        ({"url": "file:///src/purerl", "dir_info": {}}, "pip install '/src/purerl[ray]'"),
        (
            {"url": "https://host/me/purerl.git", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}},
            "pip install 'purerl[ray] @ git+https://host/me/purerl.git@4f2a'",
        ),
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}, "subdirectory": "rl"},
            "pip install 'purerl[ray] @ git+https://host/x.git@4f2a#subdirectory=rl'",
        ),
        (
            {"url": "file:///w/purerl-0.2.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'purerl[ray] @ file:///w/purerl-0.2.0-py3-none-any.whl'",
        ),
    ],
)
def test_command_for_each_source_that_pip_records(source: dict[str, Any], command: str) -> None:
    assert command_from(source, "ray") == command


class _Distribution:
    requires = ("torch>=2.6", "ray>=2.40 ; extra == 'ray'", "peft>=0.17 ; extra == 'lora'")

    def read_text(self, name: str) -> None:
        return None


def test_without_a_recorded_source_the_clone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "distribution", lambda name: _Distribution())
    clone = Path(__file__).resolve().parents[2]
    assert install_command.__wrapped__("ray") == f"pip install -e '{clone}[ray]'"


def test_without_a_source_and_a_clone_the_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation, "distribution", lambda name: _Distribution())
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "purerl" / "system" / "installation.py"))
    assert install_command.__wrapped__("ray") == "pip install 'ray>=2.40'"
