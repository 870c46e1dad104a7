"""`purerl eval` and `purerl sample` of models and runs that take turns with an environment, or have tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.envs.settings import EnvironmentSettings
from purerl.loop.train import train
from purerl.recipes.addition import addition, prepare
from purerl_cli.main import app
from tests.loop.small import fake, small_real

GAMES = "tests.cli.games"
COUNT, ADD = f"{GAMES}:Count", f"{GAMES}:add"
SMALL_DIGIT = "tests.cli.rewards:starts_with_small_digit"
ENDED = (*(part for character in "0123456789+=" for part in ("--stop-string", character)), "--max-tokens", 4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, seed=0)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in an environment."""
    directory = tmp_path_factory.mktemp("run") / "run"
    environment = EnvironmentSettings(factory=COUNT, max_turns=3)
    config = small_real(max_steps=1, trainer=addition().trainer, rewards=(), environment=environment)
    train(config, directory=directory)
    return directory


def _purerl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})


def _evaluated(prepared: Path, path: Path, *options: object) -> dict[str, float]:
    """The metrics of `purerl eval` with these options."""
    data = ("--data", prepared / "held_out.parquet", "--max-examples", 4, "--temperature", 1, "--json", path)
    result = _purerl("eval", prepared / "model", *data, *options)
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())["metrics"]


def test_environment_of_a_model_gives_the_rewards(prepared: Path, tmp_path: Path) -> None:
    metrics = _evaluated(prepared, tmp_path / "all.json", "--environment", COUNT, *ENDED)
    assert metrics["eval/turns"] == 3
    assert (metrics["eval/reward"], metrics["eval/accuracy"]) == (1.5, 1), "at least 1 is correct"
    attempt = json.loads((tmp_path / "all.json").read_text())["data"]["held_out"]["problems"][0]["attempts"][0]
    roles = [message["role"] for message in attempt["messages"]]
    assert roles == ["user", "user", *["assistant", "user"] * 3]
    assert (attempt["turns"], attempt["tool_calls"], attempt["components"]) == (3, 0, {"environment": 1.5})
    kwargs = ("--environment-settings", "kwargs.value=0.25", "--max-turns", 2)
    metrics = _evaluated(prepared, tmp_path / "other.json", "--environment", COUNT, *kwargs, *ENDED)
    assert (metrics["eval/turns"], metrics["eval/reward"], metrics["eval/accuracy"]) == (2, 0.5, 0)


def test_table_of_an_evaluation_has_the_turns(prepared: Path) -> None:
    data = ("--data", prepared / "held_out.parquet", "--max-examples", 1)
    result = _purerl("eval", prepared / "model", *data, "--environment", COUNT, *ENDED)
    assert "length   turns   tool_calls   tool_errors   truncated" in result.stdout, result.output
    assert "turns" not in _purerl("eval", prepared / "model", *data, "--reward", SMALL_DIGIT).stdout


def test_reward_functions_are_added_to_the_rewards_of_an_environment(prepared: Path, tmp_path: Path) -> None:
    options = ("--environment", COUNT, "--reward", SMALL_DIGIT, "--accuracy-reward", "environment")
    metrics = _evaluated(prepared, tmp_path / "all.json", *options, *ENDED)
    assert metrics["eval/reward"] == 1.5 + metrics["eval/reward/starts_with_small_digit"]
    assert metrics["eval/accuracy"] == 1


def test_tools_of_a_model_are_scored_by_reward_functions(prepared: Path, tmp_path: Path) -> None:
    metrics = _evaluated(prepared, tmp_path / "all.json", "--tool", ADD, "--reward", SMALL_DIGIT, *ENDED)
    assert (metrics["eval/turns"], metrics["eval/tool_calls"]) == (1, 0)
    missing = _purerl("eval", prepared / "model", "--data", prepared / "held_out.parquet", "--tool", ADD)
    assert (missing.exit_code, missing.stderr.partition("\n")[0]) == (2, "error: --reward is missing")


def test_sample_with_tools_needs_no_reward_function(prepared: Path) -> None:
    result = _purerl("sample", prepared / "model", "--prompt", "1+1=", "--tool", ADD, "--max-tokens", 3)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("prompt, problem 0\nattempt 1: 3 tokens, ended by length\n  user\n    | 1+1=\n")


def test_sample_prints_an_episode_of_a_run_turn_by_turn(run: Path) -> None:
    result = _purerl("sample", "--run", run, "--max-examples", 1, *ENDED)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[1].startswith("attempt 1: reward 1.5 (environment 1.5); ")
    assert [line for line in lines if line.startswith(("  user", "  assistant"))] == [
        "  user", "  user", *["  assistant, reward 0.500", "  user"] * 3,
    ]  # fmt: skip
    assert [lines[k + 1] for k, line in enumerate(lines) if line == "  user"][1:] == [f"    | {k}" for k in range(4)]
    shorter = _purerl("sample", "--run", run, "--prompt", "1+1=", "--max-turns", 1, *ENDED)
    assert "reward 0.5 (environment 0.5)" in shorter.stdout, shorter.output
    assert shorter.stdout.count("  assistant") == 1


def test_prompts_of_a_run_with_tools_have_no_rewards(tmp_path: Path) -> None:
    train(fake(max_steps=1, environment=EnvironmentSettings(tools=(ADD,))), directory=tmp_path / "run")
    result = _purerl("sample", "--run", tmp_path / "run", "--prompt", "1+1=", *ENDED)
    assert result.exit_code == 0, result.output
    assert "reward" not in result.stdout


def test_unfinished_run_is_evaluated_in_its_environment(run: Path, tmp_path: Path) -> None:
    (run / "summary.json").rename(tmp_path / "summary.json")
    try:
        result = _purerl("eval", "--run", run, "--json", tmp_path / "all.json", "--max-examples", 2)
    finally:
        (tmp_path / "summary.json").rename(run / "summary.json")
    assert result.exit_code == 0, result.output
    assert "the run is not finished: its checkpoint of step 1 is evaluated" in result.stderr
    assert json.loads((tmp_path / "all.json").read_text())["metrics"]["eval/turns"] >= 1


def test_evaluation_of_a_run_repeats_its_last_one(run: Path, tmp_path: Path) -> None:
    result = _purerl("eval", "--run", run, "--json", tmp_path / "all.json")
    assert result.exit_code == 0, result.output
    after = json.loads((run / "summary.json").read_text())["after"]
    assert json.loads((tmp_path / "all.json").read_text())["metrics"] == after


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--environment", f"{GAMES}:Cout"], f"environment: cannot find '{GAMES}:Cout'"),
        (["--environment", f"{GAMES}:NeverStarts"], f"the environment {GAMES}:NeverStarts cannot start an episode"),
        (
            ["--environment", COUNT, "--tool", ADD],
            "environment: factory, tools, mcp or url\n  got:  factory, tools or mcp",
        ),
        (["--environment", COUNT, "--environment-settings", "max_turn=3"], "did you mean 'max_turns'?"),
        (["--environment", COUNT, "--environment-settings", "kwargs.size=3"], "unexpected keyword argument 'size'"),
        (["--tool", f"{GAMES}:without_hints"], "the parameter 'first' of the tool 'without_hints'"),
        (["--max-turns", "3"], "environment.max_turns has no effect\n  got:  3\n  need: --environment, --tool"),
        (
            ["--environment", COUNT, "--prompt", "1" * 20, "--max-tokens", "13"],
            "row 1 of 'prompts'\n  got:  a prompt of 20",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_model_is_loaded(
    options: list[str], message: str, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: object, **kwargs: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("purerl.opening.engines.open_generator", load)
    result = _purerl("sample", prepared / "model", "--prompt", "1+1=", *options)
    assert result.exit_code in (1, 2), result.output
    assert message in result.stderr


def test_run_starts_its_environment_before_it_loads_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purerl.loop.run.open_engines", None)
    environment = EnvironmentSettings(factory=f"{GAMES}:NeverStarts")
    with pytest.raises(Exception, match="RuntimeError: no board"):
        train(fake(rewards=(), environment=environment), directory=tmp_path / "run")


def test_options_of_a_run_need_an_environment(run: Path, tmp_path: Path) -> None:
    train(fake(max_steps=1), directory=tmp_path / "run")
    refused = _purerl("sample", "--run", tmp_path / "run", "--max-turns", 2)
    assert refused.stderr.startswith("error: environment.max_turns has no effect\n  got:  2\n  need: a run with an ")
    refused = _purerl("sample", "--run", run, "--tool", ADD)
    assert refused.stderr.startswith("error: --tool has no effect\n  got:  --run, which determines it\n")
