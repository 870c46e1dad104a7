"""`purerl init`: the file that it writes is a valid run of the model and the data, and says what was assumed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from purerl.backends.hf.tiny_models import write_small_model
from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.errors import ConfigError, DataError
from purerl.plugins import locate
from purerl.recipes import resolve
from purerl.runs.dry_run import dry_run
from purerl.runs.init import Method, init
from purerl_cli.main import app
from tests.data.made import CHATML, assistant, tokenizer, user, write

from .made import PROBLEMS, write_model

Row = Mapping[str, Any]

CHATS = [{"messages": [user(f"{k}?"), assistant(f"{k}!")], "id": k} for k in range(70)]
ALPACA = [{"instruction": f"Say {k}.", "output": f"{k}", "input": ""} for k in range(5)]
PAIRS = [
    {"prompt": [user(f"{k}?")], "chosen": [assistant("Yes")], "rejected": [assistant("No")]} for k in range(10, 20)
]
LABELED = [{"prompt": f"{k}?", "response": f"{k}", "label": k % 2 == 0} for k in range(6)]
FORMULAS = [{"problem": f"Half of {k}?", "solution": rf"\frac{{{k}}}{{2}}"} for k in range(3, 8)]
WORDS = [{"prompt": [user("Paris is in")], "answer": "France"}, {"prompt": [user("Rome is in")], "answer": "Italy"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("init") / "model")


def _config(text: str) -> RunConfig:
    return from_dict(RunConfig, tomllib.loads(text))


def _comment(text: str, key: str) -> str:
    return re.findall(rf"^{key} = .*?  # (.*)$", text, re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("method", "rows", "suffix", "columns"),
    [
        ("grpo", PROBLEMS, ".jsonl", {}),
        ("grpo", FORMULAS, ".parquet", {"answer": "solution"}),
        ("ppo", WORDS, ".jsonl", {}),
        ("sft", CHATS, ".parquet", {}),
        ("sft", ALPACA, ".jsonl", {"prompt": "instruction", "completion": "output"}),
        ("sft", PROBLEMS, ".parquet", {"prompt": "question", "completion": "answer"}),
        ("dpo", PAIRS, ".jsonl", {}),
        ("kto", LABELED, ".parquet", {"completion": "response"}),
        ("reward_model", PAIRS, ".parquet", {}),
    ],
)
def test_the_file_is_a_run_that_passes_a_dry_run(
    method: Method, rows: Sequence[Row], suffix: str, columns: Row, model: str, tmp_path: Path
) -> None:
    data = write(tmp_path / f"data{suffix}", rows)
    config = _config(init(model, data, method))
    recipe = resolve(method, [f"model={model}", f"data={data}"])
    assert (config.name, str(config.algorithm), config.data.columns) == (method, method, columns)
    assert (config.trainer, config.rollout, config.generator) == (recipe.trainer, recipe.rollout, recipe.generator)
    assert config.batch_size == min(recipe.batch_size, len(rows))
    dry_run(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("rows", "method"),
    [
        (PROBLEMS, "grpo"),
        (CHATS, "sft"),
        (ALPACA, "sft"),
        (PAIRS, "dpo"),
        (LABELED, "kto"),
        ([{"text": "Once upon a time."}], "sft"),
        ([{**CHATS[0], "prompt": "1?"}], "sft"),  # without answers, demonstrations are preferred to prompts
        ([{**CHATS[0], "prompt": "1?", "answer": "1"}], "grpo"),
    ],
)
def test_the_columns_choose_the_method(rows: Sequence[Row], method: str, model: str, tmp_path: Path) -> None:
    text = init(model, write(tmp_path / "data.jsonl", rows))
    config = _config(text)
    assert str(config.algorithm) == method
    assert _comment(text, "algorithm").startswith(f"the data have {requirements_of(config).example_type}")


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["9 * 8 = 72\n#### 72", "#### 5"], "purerl.rewards.math:gsm8k"),
        ([3, 4], "purerl.rewards.math:gsm8k"),
        ([r"\pi", "x^2"], "purerl.rewards.math:math"),
        (["France", "Italy"], "purerl.rewards.exact:exact_match"),
        (["72", "Italy"], "purerl.rewards.exact:exact_match"),
        (["72", None], "purerl.rewards.math:gsm8k"),
    ],
)
def test_the_reward_gives_1_to_the_answers(answers: Sequence[Any], reward: str, model: str, tmp_path: Path) -> None:
    rows = [{"prompt": f"{k}?", "answer": answer} for k, answer in enumerate(answers)]
    text = init(model, write(tmp_path / "data.jsonl", rows))
    [chosen] = _config(text).rewards
    assert chosen.function == reward
    assert ("1 of them have none: remove them" in _comment(text, "rewards")) == (None in answers)
    assert callable(locate(reward))


def test_a_reward_has_to_be_filled_in_if_there_are_no_answers(model: str, tmp_path: Path) -> None:
    text = init(model, write(tmp_path / "data.jsonl", [{"prompt": "1?"}]))
    assert _comment(text, "rewards").startswith("FILL IN: a function of yours")
    with pytest.raises(ConfigError, match=re.escape("my_rewards.py")):
        dry_run(_config(text), tmp_path / "run")


def _write_short(folder: Path) -> str:
    """A model whose sequences have at most 64 tokens; a token is a character."""
    write_small_model(folder, tokenizer(CHATML), seed=0, max_length=64)
    return str(folder)


@pytest.mark.parametrize(
    ("method", "make", "expected"),
    [
        # 32 new tokens, <bos>, and the prompt
        ("grpo", lambda k: {"prompt": "1" * (25 + k), "answer": "1"}, (32, 32, 7)),
        # <bos>, k + 1 tokens of the prompt, 59 of the answer, <eos>
        ("sft", lambda k: {"prompt": "1" * (k + 1), "completion": "2" * 59}, (4, None, 3)),
        ("dpo", lambda k: {"prompt": "1" * (k + 1), "chosen": "2" * 59, "rejected": "3"}, (4, None, 3)),
        # the longest prompt may get the longest answer, that of the first row
        ("kto", lambda k: {"prompt": "1" * (k + 1), "completion": "2" * 59 if k == 0 else "3", "label": True},
         (4, None, 3)),
        ("sft", lambda k: {"text": "1" * (60 + k)}, (64, None, 3)),
    ],
)  # fmt: skip
def test_prompts_are_limited_so_that_all_rows_fit(
    method: Method, make: Callable[[int], Row], expected: tuple[int, int | None, int], tmp_path: Path
) -> None:
    data = write(tmp_path / "data.jsonl", [make(k) for k in range(10)])
    text = init(_write_short(tmp_path / "model"), data, method)
    config, (prompt, new, rows) = _config(text), expected
    assert config.data.max_prompt_tokens == prompt
    assert (config.rollout and config.rollout.max_tokens) == new
    assert config.batch_size == rows
    assert _comment(text, "max_prompt_tokens") == f"leaves out {10 - rows} rows: longer prompts do not fit"
    dry_run(config, tmp_path / "run")


def test_rows_that_no_limit_makes_fit_are_named(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", [{"prompt": "1", "completion": "2" * 70}])
    text = init(_write_short(tmp_path / "model"), data)
    assert "# some rows have more than 64 tokens: remove them, the run refuses them\n" in text
    with pytest.raises(DataError):
        dry_run(_config(text), tmp_path / "run")


@pytest.mark.parametrize(
    ("rows", "method", "message"),
    [
        ([{"a": 1, "b": "x"}], None, "has no columns that a method learns from\n  got:  a (int64), b (string)\n"),
        ([{"prompt": "1"}], "dpo", "has no column 'chosen'\n"),
        ([{"prompt": None}, {"prompt": "1"}], None, "column 'prompt' of"),
    ],
)
def test_data_that_no_method_learns_from_are_refused(
    rows: Sequence[Row], method: Method | None, message: str, model: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        init(model, write(tmp_path / "data.jsonl", rows), method)


def test_the_command_prints_or_writes_a_file(model: str, tmp_path: Path) -> None:
    data, output = write(tmp_path / "data.jsonl", CHATS), tmp_path / "run.toml"
    command = ["init", "--model", model, "--data", data]
    printed = CliRunner().invoke(app, command)
    assert printed.exit_code == 0, printed.output
    assert printed.stdout == init(model, data)
    written = CliRunner().invoke(app, [*command, "--output", str(output)])
    assert written.stdout == f"{output}: check it with `purerl train {output} --dry-run`\n"
    assert output.read_text() == printed.stdout
    again = CliRunner().invoke(app, [*command, "--output", str(output)])
    assert again.exit_code == 2
    assert "which exists" in again.stderr
    checked = CliRunner().invoke(app, ["train", str(output), "--dry-run", "--set", f"name={tmp_path.name}"])
    assert checked.exit_code == 0, checked.output


def test_the_whole_file(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(model).parent)
    write(Path("pairs.jsonl"), [{**pair, "source": "made"} for pair in PAIRS])
    assert (
        init("model", "pairs.jsonl")
        == """\
# Written by: purerl init --model model --data pairs.jsonl
# The comments say what was assumed. Every other setting has its default: `purerl config` lists them.

name = "dpo"  # the run directory is runs/dpo
model = "model"  # Qwen3ForCausalLM, sequences of at most 2,048 tokens, a chat template
algorithm = "dpo"  # the data have preferences: prompt, chosen, rejected (messages); or --method reward_model
num_epochs = 1.0  # steps: 1, for 10 rows
batch_size = 10  # as many as there are rows

[data]
# not read: source
files = ["pairs.jsonl"]  # 10 rows: preferences: prompt, chosen, rejected (messages); the longest has 27 tokens

[trainer]
kind = "hf"  # transformers, in this process
lr = 1e-06  # the default; `purerl config preferences` shows a recipe that was tuned
"""
    )


def test_counts_have_the_right_number_and_whole_texts_no_note_about_prompts(model: str, tmp_path: Path) -> None:
    text = init(model, write(tmp_path / "data.jsonl", [{"text": "1"}]))
    assert "# steps: 1, for 1 row\n" in text
    assert "# 1 row: demonstrations: text (text); the longest has " in text
    assert "chat template" not in text.partition("[data]")[2]
