"""`purerl eval` and `purerl sample`: what is printed and written, and what a mistake is told."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from purerl.evaluation.results import Attempt, Problem
from purerl.loop.evaluate import key_of
from purerl.protocols import Completion
from purerl.recipes.addition import prepare
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardResult
from purerl_cli.main import app
from purerl_cli.progress import Problems
from purerl_cli.results import texts

from .terminal import in_terminal

EASY = "tests.loop.test_evaluation:starts_with_a_digit"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing, and its problems in two files."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, seed=0)
    return folder


def _purerl(*arguments: object, columns: int = 160) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": str(columns)})


def test_a_model_is_scored_on_two_data_sets(prepared: Path, tmp_path: Path) -> None:
    result = _purerl(
        "eval", prepared / "model", "--data", prepared / "held_out.parquet", "--data", f"old={prepared}/train.parquet",
        "--reward", EASY, "--samples", 4, "--temperature", 1.5, "--max-tokens", 4, "--pass-at", "1,2",
        "--answer", "tests.loop.test_evaluation:first_two", "--examples", 5, "--json", tmp_path / "all.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    head, _, new, old = [line.split("  ") for line in result.stdout.splitlines() if line.strip()]
    labels = [label.strip() for label in head if label.strip()]
    assert labels == [
        "data set", "problems", "mean@4", "95 % interval", "pass@1", "pass@2", "maj@4", "reward", "length",
        "truncated", "valid_fraction", "failed",
    ]  # fmt: skip
    written = json.loads((tmp_path / "all.json").read_text())
    for row, name in ((new, "held_out"), (old, "old")):
        cells = [cell.strip() for cell in row if cell.strip()]
        found = written["data"][name]["metrics"]
        sure = f"{found['accuracy_low']:.3f} to {found['accuracy_high']:.3f}"
        assert cells[:4] == [name, "5", f"{found['accuracy']:.3f}", sure]
        assert cells[4:7] == [f"{found[key]:.3f}" for key in ("pass@1", "pass@2", "maj@4")]
        assert len(written["data"][name]["problems"]) == 5


def _come(name: str, index: int, attempt: int, tokens: int) -> Completion:
    return Completion(key_of(name, index, attempt), range(tokens), [0.0] * tokens, [0] * tokens, "stop")


def test_elsewhere_than_in_a_terminal_a_line_now_and_then_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 15.0, 40.0, 41.0, 69.0, 70.0])
    monkeypatch.setattr("purerl_cli.progress.time.monotonic", lambda: next(clock))
    rich = Console(file=io.StringIO())
    with Problems({"a": 2, "b": 1}, 2, rich=rich) as progress:
        progress(())  # 10 s
        progress([_come("a", 0, 0, 30)])  # 15 s
        progress([_come("a", 1, 0, 30)])  # 40 s: no problem is whole
        progress([_come("a", 0, 1, 2), _come("a", 1, 1, 0)])
        progress([_come("b", 7, 1, 56)])
        progress([_come("b", 7, 0, 2)])  # 70 s
    assert rich.file.getvalue() == "a: 0 of 2 problems, 2 tokens/s\nb: 1 of 1 problems, 2 tokens/s\n"


def test_in_a_terminal_a_bar_tells_how_far_it_is_and_leaves_nothing_behind(prepared: Path) -> None:
    command = [
        sys.executable, "-m", "purerl_cli", "sample", prepared / "model", "--data", prepared / "held_out.parquet",
        "--rows", "300", "--max-tokens", "16",
    ]  # fmt: skip
    said, code = in_terminal([*map(str, command)])
    assert code == 0, said
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1
    bar, results = said.split("\x1b[?25h")
    assert re.search(r"held_out .*\d+/300.* tokens/s", bar)
    assert results.startswith("\r\x1b[1A\x1b[2K"), "it is erased"
    assert (results.count("held_out, problem "), results.count("tokens/s")) == (300, 0)


def test_completions_are_shown(prepared: Path) -> None:
    data = prepared / "held_out.parquet"
    result = _purerl(
        "sample", prepared / "model", "--data", data, "--reward", EASY, "--rows", 2, "--samples", 2,
        "--temperature", 1, "--max-tokens", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.count("held_out, problem ") == 2
    assert result.stdout.count("attempt 1: reward ") == result.stdout.count("attempt 2: reward ") == 2
    assert "(starts_with_a_digit " in result.stdout
    alone = _purerl("sample", prepared / "model", "--data", data, "--rows", 1, "--max-tokens", 3)
    assert (alone.exit_code, alone.stdout.count("attempt 1: 3 tokens, ended by length")) == (0, 1), alone.output


def test_what_fails_is_shown_beside_its_completion_and_numbers_are_never_broken(prepared: Path) -> None:
    data = ("--data", prepared / "train.parquet", "--max-tokens", 1)
    result = _purerl("sample", prepared / "model", *data, "--reward", "tests.loop.test_evaluation:now_and_then")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("now_and_then raised; 1 tokens") == 3
    assert result.stdout.count("    KeyError: 'index'") == 3
    result = _purerl("eval", prepared / "model", *data, "--reward", EASY, "--examples", 2, columns=20)
    assert re.search(r"train +2 +[01]\.\d{3} +0\.\d{3} to [01]\.\d{3} ", result.stdout), result.stdout


def test_hostile_texts_are_shown_harmless() -> None:
    failed = RewardResult(failure=Failure("m:f", "raised", ""))
    attempts = (
        Attempt("\x1b]0;owned\x07 [bold]x[/bold]\nattempt 9: reward 1\r\u202e\ud800", 3, "stop", None, failed),
        Attempt("", 0, "stop", None, RewardResult({"\x1b[2J": 0.5}, {"\x1b[2J": 0.25})),
    )
    assert texts({"a": [Problem(7, "1 +\n1 =", attempts)]}) == (
        "a, problem 7\n"
        "  | 1 +\n"
        "  | 1 =\n"
        "attempt 1: m:f raised; 3 tokens, ended by stop\n"
        "  | \\x1b]0;owned\\x07 [bold]x[/bold]\n"
        "  | attempt 9: reward 1\\r\\u202e\\ud800\n"
        "attempt 2: reward 0.25 (\\x1b[2J 0.5); 0 tokens, ended by stop\n"
        "\n"
        "\n"
    )


def test_mistakes_are_told_before_a_model_is_loaded(prepared: Path, tmp_path: Path) -> None:
    model, data = prepared / "model", ("--data", prepared / "train.parquet")
    for arguments, message in (
        (["eval", model, *data], "--reward is missing\n  need: what judges completions"),
        (["eval", *data, "--reward", EASY], "what to evaluate\n  got:  nothing\n  need: MODEL, or --run DIR"),
        (["eval", model, "--run", tmp_path], "what to evaluate\n  got:  both\n"),
        (["eval", "--run", tmp_path, "--reward", EASY], "--reward has no effect\n  got:  --run, which has its own\n"),
        (["eval", "--run", tmp_path], f"run directory '{tmp_path}'\n  got:  no config.toml\n"),
        (["eval", model, *data, "--reward", EASY, "--samples", 4], "samples_per_prompt has no effect\n"),
        (["eval", model, *data, "--reward", EASY, "--pass-at", "a"], "--pass-at\n  got:  'a'\n  need: whole numbers"),
        (
            ["eval", model, *data, "--reward", EASY, "--json", tmp_path],
            f"--json '{tmp_path}'\n  got:  a directory\n  need: a file",
        ),
        (
            ["eval", model, *data, "--reward", EASY, "--json", tmp_path / "no" / "f.json"],
            f"--json '{tmp_path}/no/f.json'\n  got:  no such directory\n",
        ),
        (["eval", model, "--data", "none.jsonl", "--reward", EASY], "data set 'none.jsonl'\n  got:  no such file\n"),
        (["sample", model], "data is missing\n  need: problems\n"),
        (["sample", tmp_path / "none", *data], "no tokenizer can be loaded from the hub's repository"),
    ):
        result = _purerl(*arguments)
        assert (result.exit_code, result.stdout) == (2 if "config.toml" not in message else 1, ""), result.output
        assert result.stderr.startswith(f"error: {message}"), result.stderr
