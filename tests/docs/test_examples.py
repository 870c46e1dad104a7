"""examples/environment and examples/mcp_server: complete TOML files of runs, whose settings are valid."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from attrs import evolve
from typer.testing import CliRunner

from purerl.config.check import check_settings
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.config.tables import read_table
from purerl_cli.main import app
from tests.recipes.made import write_model

from .test_environments import GAME
from .test_quickstart import ROOT

EXAMPLES = ROOT / "examples"
SECTIONS = {"model", "data", "environment", "algorithm", "trainer", "generator", "rollout", "checkpoint"}


def _config(name: str) -> RunConfig:
    table = read_table(EXAMPLES / name / "run.toml")
    assert table.keys() >= SECTIONS
    return from_dict(RunConfig, table)


@pytest.fixture
def environment_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is that of the example, and no test has imported a module with the name of its file."""
    monkeypatch.chdir(EXAMPLES / "environment")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "game", raising=False)


@pytest.mark.usefixtures("environment_example")
def test_the_settings_of_the_run_with_an_environment_are_complete_and_valid() -> None:
    check_settings(_config("environment"))


def test_the_settings_of_the_run_with_a_server_are_complete_and_valid() -> None:
    """A function in place of the server, which needs the package mcp: tests/adapters/test_mcp_example.py."""
    config = _config("mcp_server")
    assert config.environment
    assert config.environment.mcp == ("python server.py",)
    environment = evolve(config.environment, mcp=(), tools=("purerl.recipes.calculator:calc",))
    check_settings(evolve(config, environment=environment))


def test_the_game_is_that_of_the_page() -> None:
    assert (EXAMPLES / "environment" / "game.py").read_text(encoding="utf-8") == GAME


@pytest.mark.usefixtures("environment_example")
def test_a_dry_run_of_the_environment_checks_its_code_and_data(tmp_path: Path) -> None:
    """A model that is on no disk is replaced. The dry run creates the environment, and starts an episode."""
    model = write_model(tmp_path / "tiny")
    arguments = ["train", "run.toml", "--set", f"model={model}", "--directory", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*arguments, "--dry-run", "--check-code"])
    assert result.exit_code == 0, result.output
    assert 'factory = "game.py:GuessTheNumber"' in result.stdout
    refused = CliRunner().invoke(
        app, [*arguments, "--set", "environment.kwargs={minimum=2}", "--dry-run", "--check-code"]
    )
    assert refused.exit_code == 2
    assert "minimum" in refused.stderr
    names = sorted(path.name for path in (EXAMPLES / "environment").iterdir() if path.name != "__pycache__")
    assert names == ["game.py", "games.jsonl", "run.toml"]
