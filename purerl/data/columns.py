"""Detection of the example type and the prompt format of a table from its column names and types.

A text column holds strings. A messages column holds lists of structures with the fields `role` and `content`, as chat
templates take them. The role is a string, and so is the content, unless it is a list of parts, which are texts and
images. The data formats of verl and TRL are supported. Their other columns are passed to the reward functions without
changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from purerl.data.messages import find_problem
from purerl.data.nested import TYPES, is_json, iterate_values
from purerl.errors import DataError, listed, nearest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "EXAMPLE_FORMATS",
    "ColumnStyle",
    "ExampleFormat",
    "ExampleType",
    "PromptFormat",
    "all_begin_with",
    "check_rows",
    "column_format",
    "detect_formats",
    "detect_style",
    "find_ground_truth_column",
    "is_complete_message",
    "rename_columns",
    "select_format",
]

ExampleType = Literal["prompts", "demonstrations", "preferences", "labels"]
PromptFormat = Literal["text", "messages"]
ColumnStyle = Literal["verl", "TRL", "plain"]


class ExampleFormat(NamedTuple):
    """A supported set of columns.

    example_type   what the columns provide
    prompt_format  the format of all `columns`
    columns        the columns that are read. The first one is the prompt, or starts with the prompt. In a conversation
                   the prompt is every message before the first assistant turn. In a pair of conversations it is their
                   common prefix, up to the last turn that is learned. The column `text` has no prompt, see `is_whole`
    label          the column of booleans: whether the completion is desirable; empty if there is none
    has_parts      whether contents of messages are lists of parts
    has_images     whether messages have images, see `purerl.data.row_images`
    """

    example_type: ExampleType
    prompt_format: PromptFormat
    columns: tuple[str, ...]
    label: str = ""
    has_parts: bool = False
    has_images: bool = False

    def __str__(self) -> str:
        images = ", images" if self.has_images else ""
        return f"{self.example_type}: {', '.join(self.all_columns)} ({self.prompt_format}{images})"

    @property
    def is_whole(self) -> bool:
        """Whether the only column is plain text of which every token is learned."""
        return self.columns == ("text",)

    @property
    def has_text_prompts(self) -> bool:
        """Whether there are prompts of plain text, to which no chat template is applied."""
        return self.prompt_format == "text" and not self.is_whole

    @property
    def all_columns(self) -> tuple[str, ...]:
        """`columns`, and that of the label."""
        return (*self.columns, self.label) if self.label else self.columns


EXAMPLE_FORMATS = (
    ExampleFormat("prompts", "messages", ("prompt",)),
    ExampleFormat("prompts", "text", ("prompt",)),
    ExampleFormat("prompts", "text", ("question",)),
    ExampleFormat("prompts", "text", ("problem",)),
    ExampleFormat("demonstrations", "messages", ("prompt", "completion")),
    ExampleFormat("demonstrations", "text", ("prompt", "completion")),
    ExampleFormat("demonstrations", "messages", ("messages",)),
    ExampleFormat("preferences", "messages", ("prompt", "chosen", "rejected")),
    ExampleFormat("preferences", "text", ("prompt", "chosen", "rejected")),
    ExampleFormat("preferences", "messages", ("chosen", "rejected")),
    ExampleFormat("labels", "messages", ("prompt", "completion"), label="label"),
    ExampleFormat("labels", "text", ("prompt", "completion"), label="label"),
    ExampleFormat("demonstrations", "text", ("text",)),
)
"""All supported formats. If a table has several formats of one example type, the first one in this order is used."""

_GROUND_TRUTH_COLUMNS = ("answer", "reward_model.ground_truth")  # in the order of purerl.rewards.ground_truth


def rename_columns(table: pa.Table, names: Mapping[str, str], path: str) -> pa.Table:
    """`table` with other names of columns: {new name: name in the file at `path`}.

    Raises: DataError if the file does not have a column, or would have two with the same new name.
    """
    for new, old in names.items():
        if old not in table.column_names:
            got, need = listed(table.column_names), f"a column {old!r}, which data.columns calls {new!r}"
            do = nearest(old, table.column_names)
            raise DataError(f"data set {path!r} has no column {old!r}", got=got, need=need, do=do)
        if new in table.column_names and new not in names.values():
            need = f"one column {new!r}: data.columns gives {old!r} this name"
            do = f"give the other one a new name too: data.columns.other_{new}={new}"
            raise DataError(f"data set {path!r} has a column {new!r}", got="two columns", need=need, do=do)
    renamed = {old: new for new, old in names.items()}
    return table.rename_columns([renamed.get(name, name) for name in table.column_names])


def column_format(arrow_type: pa.DataType) -> PromptFormat | None:
    """The format of a column of this Arrow type, or None if it holds neither text nor messages."""
    from pyarrow import types

    if _is_text(arrow_type):
        return "text"
    is_list = any(test(arrow_type) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))
    if not is_list or not types.is_struct(arrow_type.value_type):
        return None
    fields = {field.name: field.type for field in arrow_type.value_type}
    are_calls = "tool_calls" in fields and ("content" not in fields or types.is_null(fields["content"]))
    is_content = _is_text(fields.get("content")) or _has_parts(fields.get("content")) or are_calls
    return "messages" if _is_text(fields.get("role")) and is_content else None


def _has_lists(arrow_type: Any) -> bool:
    """Whether the contents of messages in a column of this type are lists of parts."""
    fields = {field.name: field.type for field in _struct_fields(getattr(arrow_type, "value_type", None))}
    return _has_parts(fields.get("content"))


def _has_parts(arrow_type: Any) -> bool:
    """Whether a column of this type holds lists of parts: structures with their type, and text or images."""
    fields = {field.name: field.type for field in _struct_fields(getattr(arrow_type, "value_type", None))}
    return _is_text(fields.get("type"))


def _is_text(arrow_type: pa.DataType | None) -> bool:
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return arrow_type is not None and any(test(arrow_type) for test in tests)


def detect_formats(schema: pa.Schema) -> list[ExampleFormat]:
    """The formats of a table with this schema: at most one per example type."""
    columns = {field.name: column_format(field.type) for field in schema}
    matches = [
        candidate
        for candidate in EXAMPLE_FORMATS
        if all(columns.get(name) == candidate.prompt_format for name in candidate.columns)
        and (not candidate.label or _is_boolean(schema, candidate.label))
    ]
    return list({match.example_type: match for match in reversed(matches)}.values())[::-1]


def _is_boolean(schema: pa.Schema, name: str) -> bool:
    from pyarrow import types

    return name in schema.names and types.is_boolean(schema.field(name).type)


def select_format(schema: pa.Schema, example_type: ExampleType, path: str) -> ExampleFormat:
    """The format in which the file at `path` provides `example_type`.

    Raises: DataError if a column is missing or has an unsupported type, or if the columns mix text and messages.
    """
    for match in detect_formats(schema):
        if match.example_type == example_type:
            return match._replace(has_parts=any(_has_lists(schema.field(name).type) for name in match.columns))
    candidates = [candidate for candidate in EXAMPLE_FORMATS if candidate.example_type == example_type]
    closest = max(candidates, key=lambda candidate: sum(name in schema.names for name in candidate.columns))
    missing = [name for name in closest.all_columns if name not in schema.names]
    if missing:
        raise _missing_column(schema, example_type, missing[0], path)
    formats = {name: column_format(schema.field(name).type) for name in closest.columns}
    for name, prompt_format in formats.items():
        if prompt_format is None:
            arrow_type = schema.field(name).type
            need = "text, or messages: a list of {role, content}, strings or a list of parts as content"
            do, got = _fix_for_type(name, arrow_type), _name_of_type(schema.field(name))
            raise DataError(f"column {name!r} of {path!r}", got=got, need=need, do=do)
    if closest.label and not _is_boolean(schema, closest.label):
        got, do = f"type {schema.field(closest.label).type}", "true: the completion is desirable"
        raise DataError(f"column {closest.label!r} of {path!r}", got=got, need="true or false in every row", do=do)
    got = ", ".join(f"{name!r} holds {prompt_format}" for name, prompt_format in formats.items())
    need, do = "text in all of them, or messages in all of them", "convert them to one format"
    raise DataError(f"columns of {path!r}", got=got, need=need, do=do)


def _name_of_type(field: pa.Field) -> str:
    if is_json(field.type):
        return f"values of several types: {(field.metadata or {}).get(TYPES, b'').decode()}".removesuffix(": ")
    return f"type {str(field.type).replace('extension<arrow.json>', 'several types')}"


def _missing_column(schema: pa.Schema, example_type: ExampleType, name: str, path: str) -> DataError:
    supported = [match.example_type for match in detect_formats(schema)]
    similar = get_close_matches(name, schema.names, n=1)
    if similar:
        do = f"rename the column {similar[0]!r}"
    elif example_type == "prompts" and "text" in schema.names:
        do = "rename the column 'text' if it holds prompts; SFT learns all of it"
    elif supported:
        do = f"use an algorithm that trains on {' or '.join(supported)}: the file has those"
    else:
        do = _fix_for_schema(schema) or f"rename the column with this content to {name!r}"
    content = "true or false" if name == "label" else "text or messages"
    need = f"a column {name!r} of {content}, to use the file as {example_type}"
    return DataError(f"data set {path!r} has no column {name!r}", got=listed(schema.names), need=need, do=do)


def _fix_for_schema(schema: pa.Schema) -> str | None:
    """The remedy for columns in a common format that is not supported."""
    fixes = (_fix_for_conversations(field.name, field.type) for field in schema)
    renames = (f"rename the column {field.name!r}" for field in schema if column_format(field.type) == "messages")
    return next(filter(None, fixes), None) or next(renames, None)


def _fix_for_conversations(name: str, arrow_type: Any) -> str | None:
    """The remedy for a column of conversations in another format, such as ShareGPT."""
    fields = {field.name: field.type for field in _struct_fields(getattr(arrow_type, "value_type", None))}
    if {"from", "value"} <= fields.keys():
        names = "'from' to 'role' (human to user, gpt to assistant) and 'value' to 'content'"
        return f"in {name!r} rename {names}, and rename the column to 'messages'"
    if {"role", "content"} <= fields.keys() and _struct_fields(getattr(fields["content"], "value_type", None)):
        return f"give each part of a content in {name!r} a `type`, text or image"
    return None


def _fix_for_type(name: str, arrow_type: pa.DataType) -> str | None:
    """The remedy for a column of an unsupported type."""
    from pyarrow import types

    if types.is_null(arrow_type) or types.is_null(getattr(arrow_type, "value_type", arrow_type)):
        return f"fill {name!r}: it is empty in every row"
    if types.is_binary(arrow_type) or types.is_large_binary(arrow_type):
        return f"decode {name!r} from bytes to text"
    return _fix_for_conversations(name, arrow_type)


def find_ground_truth_column(schema: pa.Schema) -> str | None:
    """The first column that purerl's reward functions read the ground truth from, or None if the table has none.

    The name of a nested field has a dot.
    """
    nested = [f"{field.name}.{inner.name}" for field in schema for inner in _struct_fields(field.type)]
    return next((name for name in _GROUND_TRUTH_COLUMNS if name in [*schema.names, *nested]), None)


def detect_style(schema: pa.Schema) -> ColumnStyle:
    """The library whose column names the table follows. Only reports use it.

    "verl" has a column `data_source` or `reward_model`; "plain" has two columns, one of which is the ground truth;
    "TRL" is everything else.
    """
    if {"data_source", "reward_model"} & {*schema.names}:
        return "verl"
    return "plain" if len(schema.names) == 2 and find_ground_truth_column(schema) else "TRL"


def _struct_fields(arrow_type: pa.DataType | None) -> list[pa.Field]:
    from pyarrow import types

    return list(arrow_type) if arrow_type is not None and types.is_struct(arrow_type) else []


def check_rows(table: pa.Table, example_format: ExampleFormat, path: str) -> None:
    """Check every row of the columns of `example_format`.

    Raises: DataError with the index of the first row that has no value, an empty prompt, a message without a role or
    content, or one that `find_problem` refuses.
    """
    do = "remove such rows: `purerl data inspect` lists all of them"
    for name in example_format.all_columns:
        column, what = table.column(name), f"column {name!r} of {path!r}"
        if column.null_count:
            row = column.is_null().index(True).as_py()
            content = "true or false" if name == example_format.label else example_format.prompt_format
            need = f"{content} in every row"
            raise DataError(what, got=f"no value in row {row}", need=need, do=do)
        has_messages = example_format.prompt_format == "messages" and name != example_format.label
        for row, value in enumerate(iterate_values(table, name) if has_messages else ()):
            if not all(map(is_complete_message, value)):
                got, need = f"a message without a role or without content in row {row}", "both in every message"
                raise DataError(what, got=got, need=need, do=do)
            if problem := next(filter(None, map(find_problem, value)), None):
                raise DataError(f"row {row} of {what}", got=problem, do=do)
    first = example_format.columns[0]
    row = next((row for row, value in enumerate(iterate_values(table, first)) if not value), None)
    if row is not None:
        part, what = "text" if example_format.is_whole else "prompt", f"column {first!r} of {path!r}"
        raise DataError(what, got=f"an empty {part} in row {row}", need=f"a {part} in every row", do=do)


def is_complete_message(message: Mapping[str, Any] | None) -> bool:
    """Whether `message` has a role and content. An assistant message may have `tool_calls` instead of content."""
    if message is None or message.get("role") is None:
        return False
    return message.get("content") is not None or (message["role"] == "assistant" and bool(message.get("tool_calls")))


def all_begin_with(table: pa.Table, example_format: ExampleFormat, role: str) -> bool:
    """Whether the first message of every conversation in `table` has the role `role`."""
    return all(messages[0]["role"] == role for messages in iterate_values(table, example_format.columns[0]))
