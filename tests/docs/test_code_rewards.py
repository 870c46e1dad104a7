"""docs/how-to/code_rewards.md: the example runs, the settings can be read, and the table lists all of them."""

from __future__ import annotations

import re
import tomllib

import attrs
import pytest

from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.recipes.addition import addition
from purerl.rewards.code.languages import LANGUAGES
from purerl.rewards.kinds.code import Config

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "how-to" / "code_rewards.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == "Grade(score=1.0, reason='')\nAssertionError: \n"


def test_settings_can_be_read() -> None:
    blocks = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
    configs = [from_dict(RunConfig, {**to_dict(addition()), **block}) for block in blocks]
    assert [len(config.rewards) for config in configs] == [1, 2]


def test_tables_are_complete() -> None:
    settings = re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", _section("Settings"))))
    assert settings == [field.name for field in attrs.fields(Config)]
    languages = re.findall(
        r"`([\w+]+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", _section("Programs that read stdin")))
    )
    assert sorted(languages) == sorted(LANGUAGES)
