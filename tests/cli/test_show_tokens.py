"""`purerl sample --show-tokens`: ids of tokens with their origins."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.recipes.addition import prepare
from purerl_cli.main import app
from tests.recipes.made import write_model

from .terminal import run_in_terminal


def purerl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"})


def test_show_tokens_prints_ids_and_origins_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "evaluation.md").read_text(encoding="utf-8")
    documented = page.partition("$ purerl sample model ")[2].partition("```")[0].splitlines()
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    result = purerl("sample", "model", *shlex.split(documented[0]))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    [model] = [k for k, line in enumerate(documented[1:]) if line.startswith("model ")]
    assert documented[-1] == "..."
    expected = documented[1:-1]
    assert re.fullmatch(r"model     (\d+:'.+' ?){3}", lines[model])
    lines[model] = expected[model]  # the model has random weights
    assert lines[: len(expected)] == expected


def test_show_tokens_has_colors_in_a_terminal_and_a_context_of_an_environment(tmp_path: Path) -> None:
    prepare(tmp_path, seed=0)
    command = (sys.executable, "-m", "purerl_cli", "sample", tmp_path / "model", "--show-tokens", "--max-tokens", "2")
    output, status = run_in_terminal([*map(str, command), "--prompt", "1+1="])
    assert status == 0, output
    assert re.search(r"\x1b\[36muser +\d+:'1' ", output)
    assert re.search(r"\x1b\[1;32mmodel +\d+:'", output)
    model = write_model(tmp_path / "chat_model")
    game = ("--environment", "tests.cli.games:Count", "--prompt", "hi", "--max-turns", 2, "--max-tokens", 2)
    result = purerl("sample", model, *game, "--show-tokens")
    assert result.exit_code == 0, result.output
    origins = [line.split()[0] for line in result.stdout.split("a completion ends with")[0].splitlines()[1:]]
    assert origins == ["template", "user", "template", "context", "model"]
