"""docs/how-to/environments.md: the game conforms, its test finds a mistake, and its settings are valid."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from purerl.envs.check import check_environment_settings
from purerl.envs.settings import EnvironmentSettings

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "how-to" / "environments.md").read_text(encoding="utf-8")
GAME, TEST, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SECTIONS = [tomllib.loads(text)["environment"] for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]


def run_test(folder: Path, monkeypatch: pytest.MonkeyPatch, game: str) -> None:
    (folder / "game.py").write_text(game, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "game", raising=False)
    namespace: dict = {}
    exec(TEST, namespace)
    namespace["test_game"]()


def test_game_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(GAME.strip().splitlines()) <= 36, "with empty lines"
    run_test(tmp_path, monkeypatch, GAME)
    monkeypatch.chdir(tmp_path)
    check_environment_settings(EnvironmentSettings(**SECTIONS[0]), num_rewards=0)


def test_mistake_in_the_game_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"observations_are_valid: step\(.*ValueError"):
        run_test(tmp_path, monkeypatch, GAME.replace(" if text.isdecimal() and len(text) < 9 else 0", ""))


@pytest.mark.parametrize("section", SECTIONS[1:], ids=" ".join)
def test_settings_on_the_page_are_valid(section: dict) -> None:
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}
    EnvironmentSettings(**lists)
