"""Which columns are recognized as what, and what is told of those that are not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from purerl.data.columns import all_begin_with, check_rows, ground_truth, layouts_of, recognize, style_of
from purerl.errors import DataError

from .made import assistant, system, user

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [user("1+1?")],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0},
}


def _table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows))


@pytest.mark.parametrize(
    ("row", "found", "style"),
    [
        (VERL, ["prompts: prompt (messages)"], "verl"),
        ({"prompt": "1+1=", "solution": "2", "level": 3}, ["prompts: prompt (text)"], "TRL"),
        ({"prompt": [user("a")]}, ["prompts: prompt (messages)"], "TRL"),
        ({"question": "1+1?", "answer": "2"}, ["prompts: question (text)"], "plain"),
        ({"problem": "1+1?", "answer": "2"}, ["prompts: problem (text)"], "plain"),
        ({"prompt": "1+1?", "answer": "2"}, ["prompts: prompt (text)"], "plain"),
        (
            {"prompt": "a", "completion": "b"},
            ["prompts: prompt (text)", "demonstrations: prompt, completion (text)"],
            "TRL",
        ),
        (
            {"prompt": [user("a")], "completion": [assistant("b")]},
            ["prompts: prompt (messages)", "demonstrations: prompt, completion (messages)"],
            "TRL",
        ),
        ({"messages": [user("a"), assistant("b")]}, ["demonstrations: messages (messages)"], "TRL"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            ["prompts: prompt (text)", "preferences: prompt, chosen, rejected (text)"],
            "TRL",
        ),
        (
            {"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("c")]},
            ["prompts: prompt (messages)", "preferences: prompt, chosen, rejected (messages)"],
            "TRL",
        ),
        (
            {"prompt": "a", "chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
            ["prompts: prompt (text)", "preferences: chosen, rejected (messages)"],
            "TRL",
        ),
        ({"text": "a"}, [], "TRL"),
        ({"prompt": 3}, [], "TRL"),
        ({"prompt": ["a"]}, [], "TRL"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, [], "TRL"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_columns_are_recognized_by_name_and_type(row: dict[str, Any], found: list[str], style: str) -> None:
    schema = _table(row).schema
    assert [str(layout) for layout in layouts_of(schema)] == found
    assert style_of(schema) == style


def test_the_right_answer_is_found_in_a_structure_too() -> None:
    assert ground_truth(_table(VERL).schema) == "reward_model.ground_truth"
    assert ground_truth(_table({"prompt": "a", "answer": "b"}).schema) == "answer"
    assert ground_truth(_table({"prompt": "a"}).schema) is None


REFUSED = [
    (
        {"promt": "a", "answer": "b"},
        "prompts",
        (
            "data set 'f' has no column 'prompt'\n"
            "  got:  promt, answer\n"
            "  need: a column 'prompt' of text or messages, for prompts\n"
            "  do:   rename the column 'promt'"
        ),
    ),
    (
        {"prompt": "a", "answer": "b"},
        "demonstrations",
        (
            "data set 'f' has no column 'completion'\n"
            "  got:  prompt, answer\n"
            "  need: a column 'completion' of text or messages, for demonstrations\n"
            "  do:   it holds prompts: choose an algorithm that learns from those"
        ),
    ),
    (
        {"prompt": 3},
        "prompts",
        "column 'prompt' of 'f'\n  got:  type int64\n  need: text, or messages: a list of {role, content}, both text",
    ),
    (
        {"prompt": [user("a")], "completion": "b"},
        "demonstrations",
        (
            "columns of 'f'\n"
            "  got:  'prompt' holds messages, 'completion' holds text\n"
            "  need: text in all of them, or messages in all of them"
        ),
    ),
]


@pytest.mark.parametrize(("row", "purpose", "message"), REFUSED)
def test_what_is_not_recognized_is_told(row: dict[str, Any], purpose: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        recognize(_table(row).schema, purpose, "f")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"prompt": "a"}, {"prompt": None}],
            (
                "column 'prompt' of 'f'\n"
                "  got:  nothing in row 1\n"
                "  need: text in every row\n"
                "  do:   purerl data inspect lists all such rows; take them out"
            ),
        ),
        (
            [{"prompt": "a"}, {"prompt": "b"}, {"prompt": ""}],
            (
                "column 'prompt' of 'f'\n"
                "  got:  an empty one in row 2\n"
                "  need: something to continue\n"
                "  do:   purerl data inspect lists all such rows; take them out"
            ),
        ),
        (
            [{"prompt": [user("a")]}, {"prompt": []}],
            (
                "column 'prompt' of 'f'\n"
                "  got:  an empty one in row 1\n"
                "  need: something to continue\n"
                "  do:   purerl data inspect lists all such rows; take them out"
            ),
        ),
    ],
)
def test_a_row_without_a_prompt_is_named(rows: list[dict[str, Any]], message: str) -> None:
    table = _table(*rows)
    with pytest.raises(DataError) as caught:
        check_rows(table, layouts_of(table.schema)[0], "f")
    assert str(caught.value) == message


CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
BROKEN = [
    None,
    {"role": "user", "content": None},
    {"role": None, "content": "a"},
    {"role": "assistant", "content": None},
    {**CALL, "tool_calls": []},
    {**CALL, "role": "user"},
    {**CALL, "role": None},
]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("kind", ["list", "large list", "chunks"])
def test_a_message_that_is_not_whole_is_named_with_its_row(broken: dict[str, Any] | None, kind: str) -> None:
    sound = {"messages": [user("a"), CALL, {"role": "tool", "content": "2"}, assistant("b")]}
    bad = {"messages": [user("a"), broken, assistant("b")]}
    table = _table(*[sound] * 30, bad, bad)
    if kind == "large list":
        table = table.cast(pa.schema([("messages", pa.large_list(table.schema.field(0).type.value_type))]))
    if kind == "chunks":
        table = pa.concat_tables([table.slice(0, 7), table.slice(7, 20), table.slice(27)])
    with pytest.raises(DataError) as caught:
        check_rows(table, layouts_of(table.schema)[0], "f")
    assert str(caught.value) == (
        "column 'messages' of 'f'\n"
        "  got:  a message without a role or without content in row 30\n"
        "  need: both in every message\n"
        "  do:   purerl data inspect lists all such rows; take them out"
    )
    check_rows(table.slice(3, 27), layouts_of(table.schema)[0], "f")


def test_whether_all_conversations_begin_with_a_system_prompt() -> None:
    both, one = [system("s"), user("a")], [user("a")]
    for rows, answer in (((both, both), True), ((both, one), False)):
        table = _table(*({"prompt": messages} for messages in rows))
        assert all_begin_with(table, layouts_of(table.schema)[0], "system") is answer
