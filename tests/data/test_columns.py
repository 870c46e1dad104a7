"""Detection of example formats from column names and types, and the checks of the rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from purerl.data.columns import (
    all_begin_with,
    check_rows,
    detect_formats,
    detect_style,
    find_ground_truth_column,
    select_format,
)
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
    ("row", "formats", "style"),
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
        (
            {"prompt": "a", "completion": "b", "label": True},
            [
                "prompts: prompt (text)",
                "demonstrations: prompt, completion (text)",
                "labels: prompt, completion, label (text)",
            ],
            "TRL",
        ),
        (
            {"prompt": [user("a")], "completion": [assistant("b")], "label": True},
            [
                "prompts: prompt (messages)",
                "demonstrations: prompt, completion (messages)",
                "labels: prompt, completion, label (messages)",
            ],
            "TRL",
        ),
        (
            {"prompt": "a", "completion": "b", "label": "good"},
            ["prompts: prompt (text)", "demonstrations: prompt, completion (text)"],
            "TRL",
        ),
        ({"text": "a"}, ["demonstrations: text (text)"], "TRL"),
        ({"prompt": 3}, [], "TRL"),
        ({"prompt": ["a"]}, [], "TRL"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
            ["prompts: prompt (messages)"],
            "TRL",
        ),
        ({"prompt": [{"role": "user", "content": [{"kind": "text", "text": "a"}]}]}, [], "TRL"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_format_is_detected_from_column_names_and_types(row: dict[str, Any], formats: list[str], style: str) -> None:
    schema = _table(row).schema
    assert [str(example_format) for example_format in detect_formats(schema)] == formats
    assert detect_style(schema) == style


def test_ground_truth_column_may_be_nested() -> None:
    assert find_ground_truth_column(_table(VERL).schema) == "reward_model.ground_truth"
    assert find_ground_truth_column(_table({"prompt": "a", "answer": "b"}).schema) == "answer"
    assert find_ground_truth_column(_table({"prompt": "a"}).schema) is None


def test_ground_truth_columns_are_those_of_the_reward_functions() -> None:
    assert find_ground_truth_column(_table(VERL | {"answer": "2"}).schema) == "answer"
    for name in ("solution", "ground_truth"):
        schema = _table({"prompt": "a", name: "b"}).schema
        assert find_ground_truth_column(schema) is None
        assert detect_style(schema) == "TRL"


UNSUPPORTED = [
    (
        {"promt": "a", "answer": "b"},
        "prompts",
        (
            "data set 'f' has no column 'prompt'\n"
            "  got:  promt, answer\n"
            "  need: a column 'prompt' of text or messages, to use the file as prompts\n"
            "  do:   rename the column 'promt'"
        ),
    ),
    (
        {"prompt": "a", "answer": "b"},
        "demonstrations",
        (
            "data set 'f' has no column 'completion'\n"
            "  got:  prompt, answer\n"
            "  need: a column 'completion' of text or messages, to use the file as demonstrations\n"
            "  do:   use an algorithm that trains on prompts: the file has those"
        ),
    ),
    (
        {"prompt": 3},
        "prompts",
        (
            "column 'prompt' of 'f'\n"
            "  got:  type int64\n"
            "  need: text, or messages: a list of {role, content}, strings or a list of parts as content"
        ),
    ),
    (
        {"prompt": "a", "completion": "b"},
        "labels",
        (
            "data set 'f' has no column 'label'\n"
            "  got:  prompt, completion\n"
            "  need: a column 'label' of true or false, to use the file as labels\n"
            "  do:   use an algorithm that trains on prompts or demonstrations: the file has those"
        ),
    ),
    (
        {"prompt": "a", "completion": "b", "label": 1},
        "labels",
        (
            "column 'label' of 'f'\n"
            "  got:  type int64\n"
            "  need: true or false in every row\n"
            "  do:   true: the completion is desirable"
        ),
    ),
    (
        {"prompt": [user("a")], "completion": "b"},
        "demonstrations",
        (
            "columns of 'f'\n"
            "  got:  'prompt' holds messages, 'completion' holds text\n"
            "  need: text in all of them, or messages in all of them\n"
            "  do:   convert them to one format"
        ),
    ),
]


@pytest.mark.parametrize(("row", "example_type", "message"), UNSUPPORTED)
def test_unsupported_columns_are_refused(row: dict[str, Any], example_type: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        select_format(_table(row).schema, example_type, "f")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"prompt": "a"}, {"prompt": None}],
            (
                "column 'prompt' of 'f'\n"
                "  got:  no value in row 1\n"
                "  need: text in every row\n"
                "  do:   remove such rows: `purerl data inspect` lists all of them"
            ),
        ),
        (
            [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "b", "label": None}],
            (
                "column 'label' of 'f'\n"
                "  got:  no value in row 1\n"
                "  need: true or false in every row\n"
                "  do:   remove such rows: `purerl data inspect` lists all of them"
            ),
        ),
        (
            [{"prompt": "a"}, {"prompt": "b"}, {"prompt": ""}],
            (
                "column 'prompt' of 'f'\n"
                "  got:  an empty prompt in row 2\n"
                "  need: a prompt in every row\n"
                "  do:   remove such rows: `purerl data inspect` lists all of them"
            ),
        ),
        (
            [{"prompt": [user("a")]}, {"prompt": []}],
            (
                "column 'prompt' of 'f'\n"
                "  got:  an empty prompt in row 1\n"
                "  need: a prompt in every row\n"
                "  do:   remove such rows: `purerl data inspect` lists all of them"
            ),
        ),
    ],
)
def test_row_without_prompt_is_named(rows: list[dict[str, Any]], message: str) -> None:
    table = _table(*rows)
    with pytest.raises(DataError) as caught:
        check_rows(table, detect_formats(table.schema)[-1], "f")
    assert str(caught.value) == message


TOOL_CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
INCOMPLETE = [
    None,
    {"role": "user", "content": None},
    {"role": None, "content": "a"},
    {"role": "assistant", "content": None},
    {**TOOL_CALL, "tool_calls": []},
    {**TOOL_CALL, "role": "user"},
    {**TOOL_CALL, "role": None},
]


@pytest.mark.parametrize("incomplete", INCOMPLETE)
@pytest.mark.parametrize("kind", ["list", "large list", "chunks"])
def test_row_with_incomplete_message_is_named(incomplete: dict[str, Any] | None, kind: str) -> None:
    valid = {"messages": [user("a"), TOOL_CALL, {"role": "tool", "content": "2"}, assistant("b")]}
    invalid = {"messages": [user("a"), incomplete, assistant("b")]}
    table = _table(*[valid] * 30, invalid, invalid)
    if kind == "large list":
        table = table.cast(pa.schema([("messages", pa.large_list(table.schema.field(0).type.value_type))]))
    if kind == "chunks":
        table = pa.concat_tables([table.slice(0, 7), table.slice(7, 20), table.slice(27)])
    with pytest.raises(DataError) as caught:
        check_rows(table, detect_formats(table.schema)[0], "f")
    assert str(caught.value) == (
        "column 'messages' of 'f'\n"
        "  got:  a message without a role or without content in row 30\n"
        "  need: both in every message\n"
        "  do:   remove such rows: `purerl data inspect` lists all of them"
    )
    check_rows(table.slice(3, 27), detect_formats(table.schema)[0], "f")


def test_all_begin_with_is_true_only_if_every_conversation_does() -> None:
    with_system, without_system = [system("s"), user("a")], [user("a")]
    for rows, expected in (((with_system, with_system), True), ((with_system, without_system), False)):
        table = _table(*({"prompt": messages} for messages in rows))
        assert all_begin_with(table, detect_formats(table.schema)[0], "system") is expected
