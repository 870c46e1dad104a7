"""`purerl recipes`, `purerl config`, `purerl algo list`, `purerl doctor`, and shell completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from purerl import RunConfig, doctor, plugins
from purerl.config.structure import dumps, from_dict
from purerl.doctor import Finding
from purerl.recipes import names
from purerl.recipes.addition import addition
from purerl_cli.completion import recipe_names, setting_keys
from purerl_cli.main import app
from purerl_cli.output import EXIT_STATUS


def _purerl(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "160"})


def test_recipes_are_listed_with_description_and_needs() -> None:
    lines = _purerl("recipes").stdout.splitlines()
    row = next(line for line in lines if line.startswith("  addition "))
    assert (
        row.split(None, 1)[1].split("  ")[0]
        == "DAPO on two-digit addition, after a short SFT phase; 240 steps by default."
    )
    assert row.rstrip().endswith("nothing")
    row = next(line for line in lines if line.startswith("  postfix_rl "))
    assert row.rstrip().endswith("  reward_model=REWARD_MODEL")
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in names())


def test_settings_are_listed_with_their_source() -> None:
    lines = _purerl("config", "addition", "--set", "max_steps=7").stdout.splitlines()
    steps, epochs = (
        next(line for line in lines if line.startswith(f"  {key} ")) for key in ("max_steps", "ppo_epochs")
    )
    assert steps.split() == ["max_steps", "7", "steps", "number", "of", "steps", "--set"]
    assert (epochs.split()[1], epochs.split()[-1]) == ("1", "default")


def test_modifiers_are_listed_with_their_settings_and_papers() -> None:
    lines = _purerl("algo", "modifiers").stdout.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("  kl_loss "))
    assert re.split(" {2,}", lines[first].strip()) == [
        "kl_loss", "A KL penalty against the reference model, in the loss.", "coef = 0.001", "2512.02556"
    ]  # fmt: skip
    assert lines[first + 1].split() == ["estimator", "=", '"k3"', "2506.09477"]
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in plugins.names("modifier"))


def test_modifiers_of_a_configuration_are_listed_in_their_order() -> None:
    settings = ("--set", "algorithm.reduction=token_sum", "--set", "algorithm.kl_loss=0.5")
    rows = [line.split() for line in _purerl("config", "addition", *settings).stdout.splitlines()]
    values = {row[0]: row[1] for row in rows if row and row[0].startswith("algorithm.")}
    assert [key for key in values if key.count(".") == 2] == [
        "algorithm.reduction.by", "algorithm.reduction.length", "algorithm.kl_loss.coef", "algorithm.kl_loss.estimator",
        "algorithm.kl_loss.reduction", "algorithm.kl_loss.target", "algorithm.kl_loss.horizon",
    ]  # fmt: skip
    assert (values["algorithm.modifiers"], values["algorithm.kl_loss.coef"]) == ('["reduction",', "0.5")


@cache
def _rows(command: str) -> tuple[str, ...]:
    """The lines below the head of the table that `command` prints to a pipe."""
    return tuple(_purerl(*command.split()).stdout.splitlines()[3:])


@pytest.mark.parametrize("width", [30, 40, 80, 120, 160, 300])
@pytest.mark.parametrize("command", ["config", "algo list", "algo modifiers", "recipes"])
def test_no_word_is_lost_at_any_width_of_the_terminal(command: str, width: int) -> None:
    output = CliRunner().invoke(app, command.split(), env={"COLUMNS": str(width), "FORCE_COLOR": "1"}).stdout
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in output.splitlines()]
    assert max(map(len, lines)) <= width
    words = {word.strip("()") for line in lines for word in line.split()}
    expected = {word.strip("()") for row in _rows(command) for word in row.split() if len(word) < width // 2}
    assert expected - words == set()


def test_each_row_is_one_line_if_the_output_is_not_a_terminal() -> None:
    lines = CliRunner().invoke(app, ["config"], env={"COLUMNS": "40"}).stdout.splitlines()
    row = next(line for line in lines if line.startswith("  initial_run.trainer.max_tokens_per_microbatch "))
    assert row.split()[1] == "2048"
    assert row.split()[-1] == "recipe"
    assert len([line for line in lines if "min_lr_ratio" in line and "as a fraction of lr" in line]) == 2


def test_configuration_is_printed_as_toml() -> None:
    table = tomllib.loads(_purerl("config", "--toml", "--set", "max_steps=7").stdout)
    assert from_dict(RunConfig, table).max_steps == 7


@pytest.mark.parametrize("command", ["config", "train"])
def test_invalid_input_exits_with_status_2_and_debug_prints_a_traceback(command: str) -> None:
    plain, debug = _purerl(command, "adition"), _purerl(command, "adition", "--debug")
    assert (plain.exit_code, debug.exit_code) == (2, 2)
    assert plain.stderr.startswith("error: unknown recipe 'adition'\n")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize(("state", "status"), [("good", 0), ("missing", 0), ("bad", 1)])
def test_doctor_exits_with_status_1_if_a_check_fails(state: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("tests", "first", "good", "[well]"), Finding("tests", "second", state, "result", "do this")]
    monkeypatch.setattr(doctor, "check_installation", lambda _, **options: iter(findings))
    result = _purerl("doctor")
    assert result.exit_code == status
    expected = f"\ntests\n  good    first           [well]\n  {state:<8}second          result  ->  do this\n"
    assert result.stdout == expected


def test_help_lists_exit_statuses() -> None:
    assert EXIT_STATUS.startswith(
        "Exit status: 0 success, 1 a run failed, 2 invalid input, 75 a run stopped on SIGTERM"
    )
    assert EXIT_STATUS in " ".join(_purerl("--help").stdout.split())


def test_recipes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(dumps(addition()))
    monkeypatch.chdir(tmp_path)
    assert recipe_names("") == [*names(), "mine.toml"]
    assert recipe_names("add") == ["addition"]
    assert _complete("purerl train ad") == "addition"


@pytest.mark.slow
def test_settings_are_completed_with_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(dumps(addition()).replace("steps = 240", "steps = 12"))
    monkeypatch.chdir(tmp_path)
    assert _complete("purerl train mine.toml --set max_step").split() == ["max_steps=12"]
    assert _complete("purerl train gsm8k --set model=x --set tes").split() == ["test="]
    assert "trainer.lr=1e-06" in _complete("purerl config gsm8k --set trai").split()
    assert _complete("purerl train mine.toml seed=1 max_step").split() == ["max_steps=12"]
    assert _complete("purerl train addition --set algorithm.kl_l").split() == ["algorithm.kl_loss=0.001"]
    unknown_recipe = SimpleNamespace(args=[], params={"recipe": "no-such-recipe"})
    assert setting_keys(unknown_recipe, "step") == []


def test_values_are_completed() -> None:
    kinds = ["generator.kind=fake", "generator.kind=hf", "generator.kind=sglang", "generator.kind=vllm"]
    assert _complete("purerl train gsm8k --set generator.kind=").split() == kinds
    assert _complete("purerl train gsm8k --set generator.kind=h").split() == ["generator.kind=hf"]
    assert _complete("purerl train gsm8k --set trainer.packing=t").split() == ["trainer.packing=true"]
    assert _complete("purerl train gsm8k --set checkpoint.best_mode=m").split() == [
        "checkpoint.best_mode=max",
        "checkpoint.best_mode=min",
    ]
    assert _complete("purerl train gsm8k --set trainer.lr=").split() == []


def _complete(line: str) -> str:
    """The completions that bash shows at the end of `line`."""
    words = line.split()
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_PURERL_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['purerl']; from purerl_cli.main import main; main()"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | variables
    )
    assert process.stderr == ""
    return process.stdout.strip()
