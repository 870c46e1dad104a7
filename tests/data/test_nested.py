"""Values below a message are those of the row itself, in every format of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.data.examples import extract_answers, extract_prompt, read_examples, rows_at, tokenized_at
from purerl.data.files import read_table
from purerl.data.nested import as_arrow, count_added_keys, make_column, rows_of, shape_of
from purerl.data.open import check_numbers
from purerl.envs.tool_formats import parse_calls
from purerl.errors import DataError
from tests.envs.families import CALC, QWEN, TIME, chat

from .made import assistant, user, write


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(made)}


def schema(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": "a tool", "parameters": parameters}}


RESULT = {"role": "tool", "content": "done"}
ROWS = [
    {
        "messages": [user("Weather?"), calls(call("get_weather", city="Paris")), RESULT, assistant("Sunny.")],
        "tools": [schema("get_weather", city={"type": "string"})],
    },
    {
        "messages": [user("12*3?"), calls(call("calculate", expression="12*3")), RESULT, assistant("36.")],
        "tools": [schema("calculate", expression={"type": "string"})],
    },
]
HETEROGENEOUS = [
    {"messages": [user("a"), calls(call("f", time="2025-08-01"))]},
    {"messages": [user("b"), calls(call("g", time=1690876800))]},
    {
        "messages": [
            user("c"),
            calls(call("h", time=None, at=[1, 2.5, "x", {"a": []}], on=True, n=12345678901234567890)),
        ]
    },
    {"messages": [user("d"), calls(call("i"), call("j", time={"from": 1}))]},
]


def _stream(table: pa.Table, folder: Path) -> Path:
    """Save `table` as `datasets.save_to_disk` does."""
    folder.mkdir()
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return folder


def _as_json(rows: list[dict[str, Any]]) -> pa.Table:
    """A table whose columns have the type ``arrow.json``."""
    return pa.table(
        {
            name: pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps(row[name]) for row in rows]))
            for name in rows[0]
        }
    )


def _with_json_arguments(rows: list[dict[str, Any]]) -> pa.Table:
    """A table of structures in which only the arguments have the type ``arrow.json``."""

    def changed(message: dict[str, Any]) -> dict[str, Any]:
        made = [
            {**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
            for c in message.get("tool_calls", ())
        ]
        return {**message, "tool_calls": made or None}

    table = pa.Table.from_pylist([{"messages": [*map(changed, row["messages"])]} for row in rows])
    function = pa.struct([("name", pa.string()), ("arguments", pa.json_())])
    tool_calls = pa.list_(pa.struct([("type", pa.string()), ("function", function)]))
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", tool_calls)])
    return pa.table([table["messages"].cast(pa.list_(message))], names=["messages"])


def _files(rows: list[dict[str, Any]], folder: Path, *, merged: bool) -> list[str]:
    """The rows as files of every format; with `merged` also those in which Arrow has merged the structures."""
    parquet.write_table(_as_json(rows), folder / "json.parquet")
    texts = [{name: json.dumps(value) for name, value in row.items()} for row in rows]
    made = [
        write(folder / "rows.jsonl", rows),
        folder / "json.parquet",
        _stream(_as_json(rows), folder / "json"),
        write(folder / "texts.jsonl", texts),
        write(folder / "texts.parquet", texts),
    ]
    if merged:
        made += [write(folder / "rows.parquet", rows), _stream(pa.Table.from_pylist(rows), folder / "saved")]
    return [str(path) for path in made]


def test_tool_calls_and_schemas_have_the_keys_of_their_row_in_every_format(tmp_path: Path) -> None:
    opened = chat(QWEN)
    for path in _files(ROWS, tmp_path, merged=True):
        data = read_examples([path], "demonstrations")
        rows = rows_at(data, [0, 1])
        for k, (row, expected) in enumerate(zip(rows, ROWS, strict=True)):
            assert row["messages"] == expected["messages"], path
            [example] = tokenized_at(opened, data, k, row)
            text = opened.tokenizer.decode([t for t, a in zip(example.tokens, example.action, strict=True) if a])
            turn, _, rest = text.partition("<|im_end|>")
            [read] = parse_calls("hermes", turn).calls
            made = expected["messages"][1]["tool_calls"][0]["function"]
            assert (read.name, read.arguments, rest) == (
                made["name"],
                made["arguments"],
                f"{expected['messages'][3]['content']}<|im_end|>",
            )
            prompt = opened.tokenizer.decode(example.tokens[: example.action.index(True)])
            assert json.dumps(expected["tools"][0]) in prompt, path
            assert "null" not in prompt


def test_arguments_of_several_types_are_as_they_are_written(tmp_path: Path) -> None:
    parquet.write_table(_with_json_arguments(HETEROGENEOUS), tmp_path / "arguments.parquet")
    for path in [*_files(HETEROGENEOUS, tmp_path, merged=False), str(tmp_path / "arguments.parquet")]:
        rows = rows_at(read_examples([path], "demonstrations"), range(4))
        assert [repr(row["messages"]) for row in rows] == [repr(row["messages"]) for row in HETEROGENEOUS], path


@pytest.mark.parametrize(
    "values",
    [[1, 2.5], [[1, 2], [2.5]], [[[1]], [[0.5]]], [None, 3, 0.0], [2**53 + 1, 0.5], [[], [1, -0.0]], [1e300, 0]],
)
def test_integers_beside_floats_stay_integers(values: list[Any], tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": value, "margin": 2 if k else 0.5} for k, value in enumerate(values)]
    data = read_examples([write(tmp_path / "rows.jsonl", rows)], "prompts")
    assert [repr(row) for row in rows_at(data, data.indices)] == [*map(repr, rows)]
    check_numbers(data, "margin")
    for k in range(2):
        write(tmp_path / f"{k}.jsonl", rows)
    assert [repr(row) for row in rows_of(read_table(tmp_path / "?.jsonl"))] == [*map(repr, [*rows, *rows])]


def test_shards_keep_the_keys_and_types_of_their_rows(tmp_path: Path) -> None:
    for k, row in enumerate(HETEROGENEOUS):
        write(tmp_path / f"{k}.jsonl", [{**row, "note": None if k % 2 else {"k": k}}])
    rows = rows_of(read_table(tmp_path))
    assert [row["messages"] for row in rows] == [row["messages"] for row in HETEROGENEOUS]
    assert [row["note"] for row in rows] == [{"k": 0}, None, {"k": 2}, None]


def test_keys_that_arrow_has_added_are_counted(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "rows.parquet", ROWS))
    assert count_added_keys(table["messages"]) == 6 + 2, "tool_calls of six messages, an argument of two calls"
    assert count_added_keys(table["tools"]) == 2
    assert count_added_keys(table["messages"].slice(1)) == 4
    assert count_added_keys(read_table(write(tmp_path / "rows.jsonl", ROWS))["messages"]) == 0


def test_only_columns_of_conversations_are_cleaned(tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")], "extra_info": {"a": 1}}, {"prompt": [user("b")], "extra_info": {"b": 2}}]
    merged = rows_of(read_table(write(tmp_path / "rows.parquet", rows)))
    assert [row["extra_info"] for row in merged] == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    assert rows_of(read_table(write(tmp_path / "rows.jsonl", rows))) == rows


def test_maps_are_objects(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    table = pa.table({"prompt": ["a", "b"], "limits": pa.array([[("x", 1), ("y", 2)], None], kind)})
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert [row["limits"] for row in rows_of(read_table(tmp_path / "rows.parquet"))] == [{"x": 1, "y": 2}, None]
    parquet.write_table(pa.table({"limits": pa.array([[("x", 1), ("x", 2)]], kind)}), tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="row 0: ValueError: a map with two values of one key"):
        read_table(tmp_path / "twice.parquet")


def test_json_text_of_an_extension_that_is_not_valid_is_refused_with_its_row(tmp_path: Path) -> None:
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', '{"a": 1, "a": 2}']))
    parquet.write_table(pa.table({"x": column}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="row 1: ValueError: an object with two values of the key 'a'"):
        read_table(tmp_path / "rows.parquet")


def test_content_that_is_null_or_missing_beside_calls_stays_as_it_is(tmp_path: Path) -> None:
    made = [call("f", a=1)]
    rows = [
        {"prompt": [user("a")], "completion": [{"role": "assistant", "content": None, "tool_calls": made}]},
        {"prompt": [user("b")], "completion": [{"role": "assistant", "tool_calls": made}]},
    ]
    for name in ("rows.jsonl", "rows.parquet"):
        data = read_examples([write(tmp_path / name, rows)], "demonstrations")
        read = rows_at(data, [0, 1])
        assert read == (rows if name == "rows.jsonl" else [rows[0], {**rows[1], "completion": rows[0]["completion"]}])
        assert extract_prompt(data.example_format, read[1]) == [user("b")]
        assert extract_answers(data.example_format, read[0]) == [rows[0]["completion"]]


def test_text_of_messages_that_is_not_json_is_refused_or_stays_text(tmp_path: Path) -> None:
    good = json.dumps([user("a"), assistant("b")])
    with pytest.raises(DataError, match=r"column 'messages' of .*\n  got:  other text in row 1: '\[\[ACT"):
        read_examples([write(tmp_path / "a.jsonl", [{"messages": good}, {"messages": "[[ACT I]]"}])], "demonstrations")
    mixed = read_examples([write(tmp_path / "b.jsonl", [{"prompt": good}, {"prompt": "[1] a list"}])], "prompts")
    assert mixed.example_format.prompt_format == "text"
    assert (
        read_examples([write(tmp_path / "c.jsonl", [{"prompt": "[1, 2]"}])], "prompts").example_format.prompt_format
        == "text"
    )


def test_values_of_a_needed_column_must_have_one_type(tmp_path: Path) -> None:
    rows = [{"prompt": None}, {"prompt": "a"}, {"prompt": [user("b")]}]
    with pytest.raises(DataError) as caught:
        read_examples([write(tmp_path / "rows.jsonl", rows)], "prompts")
    assert "got:  values of several types: str in row 1, list in row 2\n" in str(caught.value)


def test_tables_are_written_as_structures_if_that_changes_nothing(tmp_path: Path) -> None:
    table = as_arrow(
        read_table(write(tmp_path / "rows.jsonl", [{"m": [{"a": 1}], "x": {"a": 1}}, {"m": [], "x": {"b": 2}}]))
    )
    assert str(table.schema.field("m").type) == "list<element: struct<a: int64>>" or pa.types.is_list(
        table.schema.field("m").type
    )
    assert str(table.schema.field("x").type) == "extension<arrow.json>"
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert rows_of(read_table(tmp_path / "rows.parquet")) == rows_of(read_table(tmp_path / "rows.jsonl"))


def test_shapes() -> None:
    column, field = make_column([[{"a": 1}], [{"a": "x"}]], "x")
    assert len(column) == 2
    assert str(field.type) == "extension<arrow.json>"
    assert str(shape_of([{"a": [1, 2.5]}, {"a": [], "b": None}])) == "struct<a: list<item: double>, b: null>"


def test_the_tools_of_each_row_are_its_own(tmp_path: Path) -> None:
    rows = [{"prompt": [user("a")], "tools": [CALC]}, {"prompt": [user("b")], "tools": [TIME]}, {"prompt": [user("c")]}]
    table = read_table(write(tmp_path / "rows.parquet", [{**row, "tools": row.get("tools")} for row in rows]))
    assert [row["tools"] for row in rows_of(table)] == [[CALC], [TIME], None]
