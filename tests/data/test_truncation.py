"""Prompts that are longer than the limit: what remains of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import sft
from purerl.data.answers import TokenizedExample
from purerl.data.chat import open_chat
from purerl.data.encoding import decode
from purerl.data.examples import indices_of_draws, prompts_at, read_examples, rows_at, tokenized_at
from purerl.data.settings import Data
from purerl.data.truncation import PromptLimit, truncate, truncate_example
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, DataError, InputError
from purerl.evaluation.settings import Validation
from purerl.loop.train import train
from purerl.opening.data import describe_data
from tests.loop.runs import opened

from .made import CHATML, assistant, tokenizer, user, write
from .runs import EVALUATE, OFFLINE, config, save_model

PROMPT = "abcdefgh"


@pytest.mark.parametrize(("side", "expected"), [("left", "fgh"), ("right", "abc"), ("middle", "agh")])
def test_side_that_is_left_out(side: str, expected: str) -> None:
    assert "".join(truncate(PROMPT, PromptLimit(3, side))) == expected
    for size in (8, 9):
        assert "".join(truncate(PROMPT, PromptLimit(size, side))) == PROMPT


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_prompts_of_data_have_at_most_the_limit(tmp_path: Path, side: str) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": PROMPT}, {"prompt": "ab"}])
    data, chat = read_examples([path], "prompts"), open_chat(tokenizer(), "text")
    limited = evolve(data, truncation=PromptLimit(4, side))
    (whole, short), (cut, same) = (prompts_at(chat, each, [0, 1], rows_at(each, [0, 1])) for each in (data, limited))
    assert same == short
    assert cut.tokens == truncate(whole.tokens, PromptLimit(4, side))
    expected = {"left": "efgh", "right": "<bos>abc", "middle": "<bos>agh"}[side]
    assert cut.text == decode(chat, cut.tokens, skip_special_tokens=False) == expected


def test_only_the_prompt_of_an_answer_is_truncated(tmp_path: Path) -> None:
    rows = [{"prompt": [user(PROMPT)], "completion": [assistant("yes"), user("more"), assistant("no")]}]
    data, chat = (
        read_examples([write(tmp_path / "rows.jsonl", rows)], "demonstrations"),
        open_chat(tokenizer(CHATML), "messages"),
    )
    [whole] = tokenized_at(chat, data, 0, rows_at(data, [0])[0])
    [cut] = tokenized_at(chat, evolve(data, truncation=PromptLimit(5, "left")), 0, rows_at(data, [0])[0])
    start = whole.action.index(True)
    assert cut.tokens == whole.tokens[start - 5 :]
    assert cut.action == whole.action[start - 5 :]
    assert sum(cut.action) == sum(whole.action)


def test_example_within_the_limit_is_unchanged() -> None:
    example = TokenizedExample([1, 2, 3], [False, False, True])
    assert truncate_example(example, PromptLimit(2, "left")) == example
    assert truncate_example(example, None) is example


# --- runs ----------------------------------------------------------------------------------------------------------


def _config(folder: Path, **settings: Any) -> Any:
    save_model(folder)
    rows = [
        {"prompt": [user("1" * k)], "reward_model": {"ground_truth": "Z"}, "data_source": "made"} for k in range(1, 30)
    ]
    data = Data(files=(write(folder / "rows.jsonl", rows),), max_prompt_tokens=40, **settings)
    return config(folder, data, rewards=("tests.loop.rewards:first_is_even",))


def test_run_uses_all_rows_and_counts_truncated_prompts(tmp_path: Path) -> None:
    dropped = opened(_config(tmp_path), tmp_path / "dropped").task.training
    task = opened(_config(tmp_path, truncation="middle"), tmp_path / "truncated").task
    truncated, examples = task.training.counts, task.training.examples
    assert dropped.counts["too_long"] == truncated["truncated"] > 0
    assert truncated["examples"] == truncated["rows"] == 29
    assert f"{truncated['truncated']} prompts are truncated" in str(describe_data(task))
    prompts = prompts_at(task.chat, examples, examples.indices, rows_at(examples, examples.indices))
    assert max(len(prompt.tokens) for prompt in prompts) == 40


def test_validation_set_is_truncated_too(tmp_path: Path) -> None:
    settings = _config(tmp_path, truncation="left", validation_fraction=0.5)
    task = opened(evolve(settings, evaluate=EVALUATE), tmp_path / "run").task
    assert task.problems["validation"].truncation == task.training.examples.truncation == PromptLimit(40, "left")


def test_run_with_a_prompt_that_is_too_long_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        train(_config(tmp_path, truncation="error"), directory=tmp_path / "run")
    first, *lines = str(error.value).splitlines()
    assert first.startswith("row ")
    assert first.endswith("more rows")
    assert lines[0] == "  got:  a prompt of more than 40 tokens"


def test_truncation_with_an_environment_is_refused(tmp_path: Path) -> None:
    settings = evolve(_config(tmp_path, truncation="left"), environment=EnvironmentSettings(tools=("tools.py:f",)))
    with pytest.raises(ConfigError, match="data.truncation\n  got:  left\n  need: drop or error with an environment"):
        train(settings, directory=tmp_path / "run")


# --- order and columns ---------------------------------------------------------------------------------------------


def _prompts(count: int, name: str = "prompt") -> list[dict[str, Any]]:
    return [{name: f"{k}"} for k in range(count)]


def test_sequential_order_is_that_of_the_files_in_every_epoch(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{k}.jsonl", _prompts(k)) for k in (3, 4)]
    data = evolve(read_examples(files, "prompts"), order="sequential")
    assert indices_of_draws(data, 5, 0, 16) == [*range(7), *range(7), 0, 1]
    assert [*indices_of_draws(data, 5, 0, 5), *indices_of_draws(data, 6, 5, 4)] == indices_of_draws(data, 7, 0, 9)
    mixture = evolve(read_examples(files, "prompts", weights=(1, 1)), order="sequential")
    drawn = indices_of_draws(mixture, 5, 0, 8)
    assert [index for index in drawn if index < 3] == [0, 1, 2, 0]
    assert [index for index in drawn if index >= 3] == [3, 4, 5, 6]


def test_seed_of_the_order_replaces_that_of_the_run(tmp_path: Path) -> None:
    data = read_examples([write(tmp_path / "rows.jsonl", _prompts(50))], "prompts")
    fixed = evolve(data, order_seed=3)
    assert indices_of_draws(fixed, 0, 0, 50) == indices_of_draws(fixed, 1, 0, 50) == indices_of_draws(data, 3, 0, 50)
    assert indices_of_draws(data, 0, 0, 50) != indices_of_draws(data, 3, 0, 50)


def test_run_draws_in_the_order_of_its_settings(tmp_path: Path) -> None:
    settings = _config(tmp_path, order="sequential")
    run = opened(settings, tmp_path / "run")
    assert indices_of_draws(run.task.training.examples, settings.seed, 0, 4) == run.task.training.examples.indices[:4]
    seeded = opened(_config(tmp_path, seed=9), tmp_path / "seeded").task.training.examples
    assert (seeded.order, seeded.order_seed) == ("shuffled", 9)


def test_columns_are_renamed_in_all_files_of_a_run(tmp_path: Path) -> None:
    save_model(tmp_path)
    rows = [{"instruction": f"{k}", "prompt": "other", "solution": "2"} for k in range(20)]
    columns = {"prompt": "instruction", "answer": "solution", "old_prompt": "prompt"}
    files = [write(tmp_path / f"{name}.jsonl", rows) for name in ("rows", "problems")]
    evaluate = evolve(EVALUATE, data={"problems": files[1]})
    settings = config(tmp_path, Data(files=(files[0],), columns=columns), evaluate=evaluate)
    task = opened(evolve(settings, rewards=("tests.loop.rewards:first_is_even",)), tmp_path / "run").task
    for part in (task.training.examples, task.problems["problems"]):
        assert rows_at(part, [0]) == [{"prompt": "0", "old_prompt": "other", "answer": "2"}]


def test_held_out_demonstrations_are_renamed(tmp_path: Path) -> None:
    save_model(tmp_path)
    path = write(tmp_path / "rows.jsonl", [{"question": f"{k}", "reply": "b"} for k in range(9)])
    columns = {"prompt": "question", "completion": "reply"}
    settings = config(
        tmp_path,
        Data(files=(path,), columns=columns),
        algorithm=sft.Config(),
        validation=Validation(data=(path,)),
        **OFFLINE,
    )
    validation = opened(settings, tmp_path / "run").task.training.held_out
    assert validation is not None
    assert rows_at(validation, [3]) == [{"prompt": "3", "completion": "b"}]


MISSING = """\
has no column 'instructions'
  got:  instruction, answer
  need: a column 'instructions', which data.columns calls 'prompt'
  do:   did you mean 'instruction'?"""
TWICE = """\
has a column 'answer'
  got:  two columns
  need: one column 'answer': data.columns gives 'instruction' this name
  do:   give the other one a new name too: data.columns.other_answer=answer"""


@pytest.mark.parametrize(
    ("columns", "message"), [({"prompt": "instructions"}, MISSING), ({"answer": "instruction"}, TWICE)]
)
def test_names_that_do_not_fit_the_file_are_refused(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    path = write(tmp_path / "rows.jsonl", [{"instruction": "a", "answer": "b"}])
    with pytest.raises(InputError) as error:
        read_examples([path], "prompts", columns=columns)
    assert str(error.value).endswith(message)
