"""The report on a data file: formats, columns, prompt lengths, a rendered row, and problems."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purerl.data.inspect import Column, Report, inspect
from purerl.errors import ConfigError
from purerl.rewards.ground_truth import get_ground_truth

from .made import CHATML, STRICT, assistant, system, tokenizer, user, write
from .tokenizers_of_kinds import tokenizer_of


def _problems(report: Report) -> dict[str, tuple[int, ...]]:
    return {problem.message: problem.rows for problem in report.problems}


def _verl_row(prompt: list[dict[str, str]] | None, ground_truth: str | None) -> dict[str, Any]:
    reward_model = {"style": "rule", "ground_truth": ground_truth}
    return {"data_source": "test", "prompt": prompt, "reward_model": reward_model}


def test_report_on_a_valid_file(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", [_verl_row([user("1" * k)], "1") for k in range(1, 101)])
    report = inspect(path, tokenizer(CHATML), system_prompt="be")
    assert (report.path, report.rows, report.style) == (path, 100, "verl")
    assert report.ground_truth_column == "reward_model.ground_truth"
    assert [str(example_format) for example_format in report.formats] == ["prompts: prompt (messages)"]
    assert report.columns == (
        Column("data_source", "string", 0),
        Column("prompt", "messages", 0),
        Column("reward_model", "struct<style: string, ground_truth: string>", 0),
    )
    header = len("<system\nbe>\n<user\n>\n<assistant\n")  # one token per character, and per special token
    assert {name: length - header for name, length in report.prompt_lengths.items()} == {
        "min": 1,
        "median": 50,
        "p90": 90,
        "p99": 99,
        "max": 100,
    }
    assert report.sample == (
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n",
    )
    assert report.problems == ()


def test_sample_marks_the_tokens_to_learn(tmp_path: Path) -> None:
    pair = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    report = inspect(write(tmp_path / "pairs.jsonl", [pair]), tokenizer())
    assert report.sample == ("<bos>1+1=⟦2<eos>⟧", "<bos>1+1=⟦3<eos>⟧")
    chat = {"messages": [user("a"), assistant("b"), user("c"), assistant("d")]}
    (text,) = inspect(write(tmp_path / "chat.jsonl", [chat]), tokenizer(CHATML)).sample
    assert text.count("⟦") == 2
    assert "⟦b<|im_end|>⟧\n<|im_start|>user\nc<|im_end|>" in text


def test_problems_of_prompts_are_listed_with_their_rows(tmp_path: Path) -> None:
    rows = [
        _verl_row([user("a")], "1"),
        _verl_row(None, "1"),
        _verl_row([], "1"),
        _verl_row([user("a")], None),
        _verl_row([user("b"), assistant("c")], ""),
        _verl_row([{"role": "humán", "content": "d"}], "1"),
        _verl_row([{"role": "user", "content": None}], "1"),
        _verl_row([user("e" * 50)], "1"),
    ]
    path = write(tmp_path / "rows.parquet", rows)
    expected = {
        "no value in column 'prompt'": (1,),
        "an empty prompt": (2,),
        "duplicate of an earlier prompt": (3,),
        "no ground truth in 'reward_model.ground_truth'": (3, 4),
        "a prompt that ends with an assistant turn": (4,),
        "a message with the unknown role 'humán'": (5,),
        "a message without a role or without content": (6,),
    }
    check = partial(inspect, path, get_ground_truth=get_ground_truth)
    assert _problems(check()) == expected
    max_length = check(tokenizer(CHATML)).prompt_lengths["max"]
    assert _problems(check(tokenizer(CHATML), max_prompt_tokens=max_length)) == expected
    assert _problems(check(tokenizer(CHATML), max_prompt_tokens=max_length - 1)) == {
        **expected,
        f"a prompt of more than {max_length - 1} tokens": (7,),
    }
    assert _problems(check(limit=3)) == {"no value in column 'prompt'": (1,), "an empty prompt": (2,)}


def test_ground_truth_is_found_as_reward_functions_find_it(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "answer": "1", "reward_model": {"ground_truth": None}},
        {"prompt": "b", "answer": None, "reward_model": {"ground_truth": "2"}},
        {"prompt": "c", "answer": None, "reward_model": None},
        {"prompt": "d", "answer": " ", "reward_model": {"ground_truth": "4"}},
    ]
    path = write(tmp_path / "rows.parquet", rows)
    report = inspect(path, get_ground_truth=get_ground_truth)
    assert report.ground_truth_column == "answer"
    assert _problems(report) == {"no ground truth in 'answer'": (2, 3)}
    assert inspect(path).problems == ()


def test_ground_truth_that_is_nan_or_of_another_type_is_listed(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": 2.0}, {"prompt": "b", "answer": float("nan")}]
    report = inspect(write(tmp_path / "floats.parquet", rows), get_ground_truth=get_ground_truth)
    assert _problems(report) == {"no ground truth in 'answer'": (1,)}
    lists = [{"prompt": "a", "answer": ["2"]}]
    report = inspect(write(tmp_path / "lists.parquet", lists), get_ground_truth=get_ground_truth)
    assert _problems(report) == {"a ground truth that is neither a string nor a number": (0,)}


def test_problems_of_answers_are_listed_with_their_rows(tmp_path: Path) -> None:
    chats = [{"messages": [user("a"), assistant("b")]}, {"messages": [user("a2")]}, {"messages": [assistant("b")]}]
    assert _problems(inspect(write(tmp_path / "chats.jsonl", chats))) == {
        "nothing to learn: no assistant turn": (1,),
        "an empty prompt": (2,),
    }
    pairs = [{"prompt": f"{k}", "chosen": "a", "rejected": "ab"[k > 0]} for k in range(3)]
    assert _problems(inspect(write(tmp_path / "pairs.jsonl", pairs))) == {
        "the chosen answer equals the rejected answer": (0,)
    }


@pytest.mark.parametrize("incomplete", [None, {"role": "user", "content": None}, {"role": None, "content": "a"}])
def test_incomplete_messages_are_listed_at_any_position(incomplete: Any, tmp_path: Path) -> None:
    tool_call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    conversations = [
        [user("a"), incomplete],
        [user("b"), tool_call],
        [incomplete, assistant("b")],
        [user("c"), assistant("b"), incomplete],
    ]
    path = write(tmp_path / "chats.parquet", [{"messages": messages} for messages in conversations])
    assert _problems(inspect(path)) == {"a message without a role or without content": (0, 2, 3)}


def test_rows_that_cannot_be_rendered_are_listed(tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")]}, {"prompt": [system("s"), user("b")]}]
    report = inspect(write(tmp_path / "rows.jsonl", rows), tokenizer(STRICT))
    assert _problems(report) == {"the chat template raised an error: no system prompts": (1,)}
    assert report.sample == ("<|im_start|>user\na<|im_end|>\n",)


def test_file_without_supported_columns_is_described(tmp_path: Path) -> None:
    report = inspect(write(tmp_path / "rows.jsonl", [{"words": "a"}, {"words": None}]), tokenizer())
    assert (report.formats, report.columns) == ((), (Column("words", "string", 1),))


CONTENT_PARTS = [{"role": "user", "content": [{"kind": "text", "text": "a"}]}]
SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
UNSUPPORTED = {
    "content parts": (
        {"prompt": CONTENT_PARTS},
        "prompts",
        "column 'prompt' of",
        "give each part of a content in 'prompt' a `type`, text or image",
    ),
    "content parts in another column": (
        {"chat": CONTENT_PARTS},
        "demonstrations",
        "no column 'prompt'",
        "give each part of a content in 'chat' a `type`, text or image",
    ),
    "from and value": (
        {"id": "x", "conversations": SHAREGPT},
        "demonstrations",
        "no column 'prompt'",
        (
            "in 'conversations' rename 'from' to 'role' (human to user, gpt to assistant) and 'value' to 'content', "
            "and rename the column to 'messages'"
        ),
    ),
    "messages in another column": (
        {"chat": [user("a")]},
        "prompts",
        "no column 'prompt'",
        "rename the column 'chat'",
    ),
    "bytes": ({"prompt": b"a"}, "prompts", "got:  type binary", "decode 'prompt' from bytes to text"),
    "null": ({"prompt": None}, "prompts", "got:  type null", "fill 'prompt': it is empty in every row"),
    "empty lists": ({"prompt": []}, "prompts", "got:  type list", "fill 'prompt': it is empty in every row"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_report_on_unsupported_columns_has_an_error_for_each_example_type(name: str, tmp_path: Path) -> None:
    row, example_type, what, do = UNSUPPORTED[name]
    report = inspect(write(tmp_path / "rows.parquet", [row]))
    assert [error.partition(":")[0] for error in report.errors] == [
        "prompts",
        "demonstrations",
        "preferences",
        "labels",
    ]
    (error,) = [error for error in report.errors if error.startswith(example_type)]
    assert what in error
    assert error.endswith(f"\n  do:   {do}")


def test_pandas_categories_are_read_as_text(tmp_path: Path) -> None:
    column = pa.array(["1+1=", "2+2=", "1+1="]).dictionary_encode()
    pq.write_table(pa.table({"prompt": column, "answer": column}), tmp_path / "rows.parquet")
    report = inspect(str(tmp_path / "rows.parquet"))
    assert [str(example_format) for example_format in report.formats] == ["prompts: prompt (text)"]
    assert report.errors == ()


@pytest.mark.parametrize(
    "setting",
    [{"system_prompt": "be"}, {"chat_template_kwargs": {"a": 1}}, {"max_prompt_tokens": 3}, {"stop_strings": ("#",)}],
)
def test_setting_without_tokenizer_is_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        inspect(str(tmp_path / "missing"), **setting)
    assert str(caught.value) == (
        f"{next(iter(setting))} has no effect without a tokenizer\n"
        "  need: a tokenizer\n"
        "  do:   pass one (on the command line: --model DIR)"
    )


def test_each_token_of_a_row_is_shown_with_what_is_learned(tmp_path: Path) -> None:
    chat = tokenizer_of("fallback", "prepend", "bos")
    rows = [{"prompt": "2+3=", "completion": "5"}, {"prompt": "The sky is", "completion": " blue"}]
    [(tokens, _)] = inspect(write(tmp_path / "rows.jsonl", rows), chat).shown
    assert [token.text for token in tokens if token.is_learned] == ["5", "</s>"]
    assert [token.id for token in tokens] == [*chat("2+3=5")["input_ids"], chat.eos_token_id]
    assert "".join(token.text for token in tokens) == chat.decode([token.id for token in tokens])


def test_rendered_prompts_are_shown_as_they_are_sampled_from(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": "<s>2+3="}, {"prompt": "2+3="}])
    report = inspect(path, tokenizer_of("bytes", "byte-level", "both"))
    assert report.sample == ("<s>2+3=",)
    assert [token.text for token in report.shown[0].tokens].count("<s>") == 1
    assert report.prompt_lengths["min"] == report.prompt_lengths["max"]
    assert "1 prompt begins with '<s>', which the tokenizer does not add again" in report.notes


def test_rows_in_which_a_token_would_cross_the_border_are_listed(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "completion": "blue"} for prompt in ("sky ", "The sky is=", "is ")]
    report = inspect(write(tmp_path / "rows.jsonl", rows), tokenizer_of("bytes", "byte-level"))
    [problem] = report.problems
    assert problem.message == "a token would cross the border of a prompt and an answer: they are tokenized apart"
    assert problem.rows == (0, 2)
