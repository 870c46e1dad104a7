"""docs/how-to/replay.md: its example runs on a real run, and its tables have every option and every number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from purerl.loop.train import train
from purerl.replay import Numbers
from purerl_cli.main import app
from tests.loop.small import fake

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "how-to" / "replay.md").read_text(encoding="utf-8")


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    train(fake(max_steps=2, evaluate=None), directory="runs/addition")
    capsys.readouterr()
    [code] = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]


def test_tables_have_every_number_and_every_option() -> None:
    section = PAGE.split("## The numbers")[1].split("## ")[0]
    assert {*re.findall(r"`(\w+)`", section)} >= {*Numbers._fields} - {"step", "rows"}
    text = CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "200"}).stdout
    options = {*re.findall(r"--[a-z]+", text)} - {"--help", "--debug"}
    assert options == {*re.findall(r"^\| `(--[a-z]+)", PAGE, re.MULTILINE)}
