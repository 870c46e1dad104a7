"""`purerl recipes`, `config` and `doctor`, and what the shell completes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from purerl import RunConfig, doctor
from purerl.config.structure import dumps, from_dict
from purerl.doctor import Finding
from purerl.recipes import names
from purerl.recipes.addition import addition
from purerl_cli.completion import recipe_names, setting_keys
from purerl_cli.main import app


def _purerl(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "160"})


def test_recipes_are_listed_with_what_they_do_and_need() -> None:
    lines = _purerl("recipes").stdout.splitlines()
    row = next(line for line in lines if line.startswith("  addition "))
    assert row.split(None, 1)[1].split("  ")[0] == "DAPO on two-digit addition, after a short supervised start."
    assert row.rstrip().endswith("nothing")
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in names())


def test_settings_are_shown_with_where_they_came_from() -> None:
    lines = _purerl("config", "addition", "--set", "max_steps=7").stdout.splitlines()
    steps, epochs = (
        next(line for line in lines if line.startswith(f"  {key} ")) for key in ("max_steps", "ppo_epochs")
    )
    assert steps.split() == ["max_steps", "7", "steps", "steps", "of", "the", "loop", "--set"]
    assert (epochs.split()[1], epochs.split()[-1]) == ("1", "default")


@pytest.mark.parametrize("width", [30, 40, 80, 120, 160, 300])
@pytest.mark.parametrize("command", ["config", "algo list", "recipes"])
def test_a_terminal_of_any_width_shows_every_word(command: str, width: int) -> None:
    shown = CliRunner().invoke(app, command.split(), env={"COLUMNS": str(width), "FORCE_COLOR": "1"}).stdout
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    assert max(map(len, lines)) <= width
    found = {word.strip("()") for line in lines for word in line.split()}
    rows = _purerl(*command.split()).stdout.splitlines()[3:]
    words = {word.strip("()") for row in rows for word in row.split() if len(word) < width // 2}
    assert words - found == set()


def test_elsewhere_each_row_is_a_line() -> None:
    lines = CliRunner().invoke(app, ["config"], env={"COLUMNS": "40"}).stdout.splitlines()
    row = next(line for line in lines if line.startswith("  initial_run.trainer.max_tokens_per_microbatch "))
    assert row.split()[1] == "1024"
    assert row.split()[-1] == "recipe"
    assert len([line for line in lines if "min_lr_ratio" in line and "as a fraction of lr" in line]) == 2


def test_a_configuration_is_printed_as_a_file() -> None:
    table = tomllib.loads(_purerl("config", "--toml", "--set", "max_steps=7").stdout)
    assert from_dict(RunConfig, table).max_steps == 7


@pytest.mark.parametrize("command", ["config", "train"])
def test_a_mistake_leaves_with_2_and_debug_shows_where_it_was_made(command: str) -> None:
    plain, debug = _purerl(command, "adition"), _purerl(command, "adition", "--debug")
    assert (plain.exit_code, debug.exit_code) == (2, 2)
    assert plain.stderr.startswith("error: no recipe is called 'adition'\n")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize(("state", "code"), [("good", 0), ("missing", 0), ("bad", 1)])
def test_the_doctor_leaves_with_1_where_something_is_bad(
    state: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Finding("tried", "one", "good", "[well]"), Finding("tried", "other", state, "so so", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    result = _purerl("doctor")
    assert result.exit_code == code
    assert (
        result.stdout == f"\ntried\n  good    one             [well]\n  {state:<8}other           so so  ->  do this\n"
    )


def test_exit_codes_are_told() -> None:
    assert (
        "Exit codes: 0 all is well, 1 a run failed, 2 wrong input, 130 interrupted, 143 terminated."
        in _purerl("--help").stdout
    )


def test_recipes_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(dumps(addition()))
    monkeypatch.chdir(tmp_path)
    assert recipe_names("") == [*names(), "mine.toml"]
    assert recipe_names("add") == ["addition"]
    assert _offered("purerl train ad") == "addition"


def test_settings_complete_with_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(dumps(addition()).replace("steps = 240", "steps = 12"))
    monkeypatch.chdir(tmp_path)
    assert _offered("purerl train mine.toml --set max_step").split() == ["max_steps=12"]
    assert _offered("purerl train gsm8k --set model=x --set tes").split() == ["test="]
    assert "trainer.lr=1e-06" in _offered("purerl config gsm8k --set trai").split()
    nothing = SimpleNamespace(args=[], params={"recipe": "no-such-recipe"})
    assert setting_keys(nothing, "step") == []


def _offered(line: str) -> str:
    words = line.split()
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_PURERL_COMPLETE": "complete_bash"}
    code = "from purerl_cli.main import app; app(prog_name='purerl')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | asked
    )
    assert done.stderr == ""
    return done.stdout.strip()
