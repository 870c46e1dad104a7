"""The report on a file: what it holds, how long its prompts are, a row as the model sees it, and its problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purerl.data.inspect import Column, Report, inspect
from purerl.errors import ConfigError

from .made import CHATML, STRICT, assistant, system, tokenizer, user, write


def _problems(report: Report) -> dict[str, tuple[int, ...]]:
    return {problem.what: problem.rows for problem in report.problems}


def _verl(prompt: list[dict[str, str]] | None, truth: str | None) -> dict[str, Any]:
    return {"data_source": "made", "prompt": prompt, "reward_model": {"style": "rule", "ground_truth": truth}}


def test_a_sound_file(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", [_verl([user("1" * k)], "1") for k in range(1, 101)])
    report = inspect(path, tokenizer(CHATML), system_prompt="be")
    assert (report.path, report.rows, report.style, report.truth) == (path, 100, "verl", "reward_model.ground_truth")
    assert [str(layout) for layout in report.layouts] == ["prompts: prompt (messages)"]
    assert report.columns == (
        Column("data_source", "string", 0),
        Column("prompt", "messages", 0),
        Column("reward_model", "struct<style: string, ground_truth: string>", 0),
    )
    header = len("<system\nbe>\n<user\n>\n<assistant\n")  # one token for each letter, and for each special token
    assert {name: size - header for name, size in report.lengths.items()} == {
        "least": 1,
        "half": 50,
        "9 in 10": 90,
        "99 in 100": 99,
        "all": 100,
    }
    assert report.sample == (
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n",
    )
    assert report.problems == ()


def test_what_is_learned_of_a_row_is_shown(tmp_path: Path) -> None:
    pair = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    report = inspect(write(tmp_path / "pairs.jsonl", [pair]), tokenizer())
    assert report.sample == ("<bos>1+1=⟦2<eos>⟧", "<bos>1+1=⟦3<eos>⟧")
    talk = {"messages": [user("a"), assistant("b"), user("c"), assistant("d")]}
    (shown,) = inspect(write(tmp_path / "talk.jsonl", [talk]), tokenizer(CHATML)).sample
    assert shown.count("⟦") == 2
    assert "⟦b<|im_end|>⟧\n<|im_start|>user\nc<|im_end|>" in shown


def test_problems_of_prompts_are_named_with_their_rows(tmp_path: Path) -> None:
    rows = [
        _verl([user("a")], "1"),
        _verl(None, "1"),
        _verl([], "1"),
        _verl([user("a")], None),
        _verl([user("b"), assistant("c")], ""),
        _verl([{"role": "humán", "content": "d"}], "1"),
        _verl([{"role": "user", "content": None}], "1"),
        _verl([user("e" * 50)], "1"),
    ]
    path = write(tmp_path / "rows.parquet", rows)
    expected = {
        "nothing in column 'prompt'": (1,),
        "an empty prompt": (2,),
        "the prompt of an earlier row": (3,),
        "no right answer in 'reward_model.ground_truth'": (3, 4),
        "a prompt that ends with the assistant's turn": (4,),
        "a message of the role 'humán'": (5,),
        "a message without a role or without content": (6,),
    }
    assert _problems(inspect(path)) == expected
    longest = inspect(path, tokenizer(CHATML)).lengths["all"]
    assert _problems(inspect(path, tokenizer(CHATML), max_prompt_tokens=longest)) == expected
    assert _problems(inspect(path, tokenizer(CHATML), max_prompt_tokens=longest - 1)) == {
        **expected,
        f"a prompt of more than {longest - 1} tokens": (7,),
    }
    assert _problems(inspect(path, limit=3)) == {"nothing in column 'prompt'": (1,), "an empty prompt": (2,)}


def test_problems_of_answers_are_named_with_their_rows(tmp_path: Path) -> None:
    talks = [{"messages": [user("a"), assistant("b")]}, {"messages": [user("a2")]}, {"messages": [assistant("b")]}]
    assert _problems(inspect(write(tmp_path / "talks.jsonl", talks))) == {
        "nothing to learn: no turn of the assistant's": (1,),
        "an empty prompt": (2,),
    }
    pairs = [{"prompt": f"{k}", "chosen": "a", "rejected": "ab"[k > 0]} for k in range(3)]
    assert _problems(inspect(write(tmp_path / "pairs.jsonl", pairs))) == {"the chosen answer is the rejected one": (0,)}


@pytest.mark.parametrize("broken", [None, {"role": "user", "content": None}, {"role": None, "content": "a"}])
def test_messages_that_are_not_whole_are_named_wherever_they_are(broken: Any, tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    talks = [[user("a"), broken], [user("b"), call], [broken, assistant("b")], [user("c"), assistant("b"), broken]]
    path = write(tmp_path / "talks.parquet", [{"messages": talk} for talk in talks])
    assert _problems(inspect(path)) == {"a message without a role or without content": (0, 2, 3)}


def test_rows_that_the_template_refuses_are_named(tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")]}, {"prompt": [system("s"), user("b")]}]
    report = inspect(write(tmp_path / "rows.jsonl", rows), tokenizer(STRICT))
    assert _problems(report) == {"the chat template refuses a conversation: no system prompts": (1,)}
    assert report.sample == ("<|im_start|>user\na<|im_end|>\n",)


def test_a_file_that_no_run_can_use_is_still_described(tmp_path: Path) -> None:
    report = inspect(write(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": None}]), tokenizer())
    assert (report.layouts, report.columns) == ((), (Column("text", "string", 1),))


PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
SHARED = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
USELESS = {
    "parts": (
        {"prompt": PARTS},
        "prompts",
        "column 'prompt' of",
        "make each content in 'prompt' one text: join the texts of its parts",
    ),
    "parts in a column of another name": (
        {"talk": PARTS},
        "demonstrations",
        "no column 'prompt'",
        "make each content in 'talk' one text: join the texts of its parts",
    ),
    "from and value": (
        {"id": "x", "conversations": SHARED},
        "demonstrations",
        "no column 'prompt'",
        (
            "in 'conversations' rename 'from' to 'role' (human to user, gpt to assistant) and 'value' to 'content', "
            "and the column to 'messages'"
        ),
    ),
    "messages by another name": (
        {"talk": [user("a")]},
        "prompts",
        "no column 'prompt'",
        "rename the column 'talk'",
    ),
    "whole texts": (
        {"text": "a"},
        "demonstrations",
        "no column 'prompt'",
        "rename the column 'text' if it is what to continue, or split it into 'prompt' and 'completion'",
    ),
    "bytes": ({"prompt": b"a"}, "prompts", "got:  type binary", "decode 'prompt' from bytes to text"),
    "nothing": ({"prompt": None}, "prompts", "got:  type null", "fill 'prompt': it is empty in every row"),
    "no messages": ({"prompt": []}, "prompts", "got:  type list", "fill 'prompt': it is empty in every row"),
}


@pytest.mark.parametrize("name", USELESS)
def test_why_no_run_can_use_a_file_is_told_for_each_purpose(name: str, tmp_path: Path) -> None:
    row, purpose, what, do = USELESS[name]
    report = inspect(write(tmp_path / "rows.parquet", [row]))
    assert [reason.partition(":")[0] for reason in report.reasons] == ["prompts", "demonstrations", "preferences"]
    (reason,) = [one for one in report.reasons if one.startswith(purpose)]
    assert what in reason
    assert reason.endswith(f"\n  do:   {do}")


def test_categories_are_texts(tmp_path: Path) -> None:
    column = pa.array(["1+1=", "2+2=", "1+1="]).dictionary_encode()
    pq.write_table(pa.table({"prompt": column, "answer": column}), tmp_path / "rows.parquet")
    report = inspect(str(tmp_path / "rows.parquet"))
    assert [str(layout) for layout in report.layouts] == ["prompts: prompt (text)"]
    assert report.reasons == ()


@pytest.mark.parametrize(
    "setting", [{"system_prompt": "be"}, {"chat_template_kwargs": {"a": 1}}, {"max_prompt_tokens": 3}]
)
def test_a_setting_without_a_tokenizer_is_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        inspect(str(tmp_path / "never read"), **setting)
    assert str(caught.value) == f"{next(iter(setting))} has no effect\n  need: a tokenizer\n  do:   name a model"
