"""`purerl plan`: tables, JSON, suggestions, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl_cli.main import app
from tests.planning.models import write_model

SETTINGS = ("data=rows.jsonl", "data.max_prompt_tokens=24", "rollout.max_tokens=40", "batch_size=4", "evaluate=")
SETTINGS += ("trainer.device=cpu", "generator.device=cpu", "data.validation_fraction=0.0", "num_minibatches=1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the configuration of a model, and no weights."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, num_hidden_layers=1)
    for file in [*folder.glob("*.safetensors"), *folder.glob("tokenizer*")]:
        file.unlink()
    return folder


def _plan(*arguments: str, model: object, settings: tuple[str, ...] = SETTINGS) -> Result:
    options = [part for setting in (*settings, f"model={model}") for part in ("--set", setting)]
    return CliRunner().invoke(app, ["plan", "gsm8k", *options, *arguments])


def test_table_of_components_and_phases(model: Path) -> None:
    result = _plan(model=model)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "component sampling scoring training optimizer weight sync" in lines
    assert any(line.startswith("policy: AdamW's moments") for line in lines)
    assert any(line.startswith("total on each rank") for line in lines)
    assert "on each rank at most, in the phase" in result.stdout
    assert "fits: " in result.stdout
    assert "--set" not in result.stdout, "no suggestions for a run that fits"


def test_assumed_answers_are_not_longer_than_the_model_can_read(model: Path, tmp_path: Path) -> None:
    """Without a limit, answers of 512 tokens are assumed. This model has 32 positions."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32}), encoding="utf-8")
    settings = (f"model={tmp_path}", "data=pairs.parquet", "trainer.device=cpu")
    options = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(app, ["plan", "preferences", *options, "--set", "batch_size=1"])
    assert result.exit_code in (0, 1), result.output
    assert "answers of 512 tokens" in result.stdout


def test_json_has_bytes_of_every_component(model: Path) -> None:
    result = _plan("--json", model=model)
    plan = json.loads(result.stdout)
    assert plan["peak"] == max(plan["phases"].values()) == plan["phases"][plan["peak_phase"]]
    assert (plan["fits"], plan["suggestions"], plan["assumed"]) == (True, [], [])
    phase = plan["peak_phase"]
    assert sum(sizes.get(phase, 0) for sizes in plan["components"].values()) == plan["peak"]


@pytest.mark.slow
def test_a_run_that_does_not_fit_has_suggestions_and_status_1(model: Path) -> None:
    result = _plan("--json", "--memory", "4MiB", model=model)
    plan = json.loads(result.stdout)
    assert (result.exit_code, plan["fits"], plan["memory"]) == (1, False, 4 * 2**20)
    assert plan["suggestions"]
    for suggestion in plan["suggestions"]:
        assert suggestion["peak"] < plan["peak"]
        assert all("=" in setting for setting in suggestion["set"])
    table = _plan("--memory", "4MiB", model=model)
    assert "does not fit: 4.0 MiB (as given, for each rank)" in table.stdout
    assert "--set " in table.stdout


def test_ranks_and_lengths_are_options(model: Path) -> None:
    unlimited = tuple(setting for setting in SETTINGS if "max_prompt_tokens" not in setting)
    plan = json.loads(_plan("--json", "--ranks", "2", model=model, settings=unlimited).stdout)
    assert plan["ranks"] == 2
    assert plan["assumed"] == ["prompts of 512 tokens, because data.max_prompt_tokens is not set (--prompt-tokens)"]
    plan = json.loads(_plan("--json", "--prompt-tokens", "24", model=model, settings=unlimited).stdout)
    assert plan["assumed"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "Missing argument"),
        (["plan", "addition"], "which the run itself creates"),
        (["plan", "unknown_recipe"], "unknown_recipe"),
        (["plan", "addition", "--memory", "80"], "need: a number above 0 and a unit: 80GiB, 512MiB or 80GB"),
        (["plan", "addition", "--set", "trainer.lrr=1"], "no such setting"),
    ],
)
def test_invalid_input_exits_with_status_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_model_without_configuration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = _plan(model=tmp_path)
    assert result.exit_code == 2
    assert f"no config.json can be loaded from the directory {str(tmp_path)!r}" in result.stderr
