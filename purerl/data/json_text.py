"""Columns that hold JSON text in place of objects: conversations, as files that cannot nest values have them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from purerl.data.nested import MESSAGE_COLUMNS, decoded, make_column, parse_json
from purerl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["count_conversations", "with_conversations"]

_START = r"(?s)^\s*(array\(|list\(|\()?\[?\s*(dict\()?\{"
_KEYS = (r""".*['"](role|from)['"]\s*:""", r""".*['"](content|value)['"]\s*:""")
"""A part of each text of a list of messages, or of one message, such as ``[{'content': '', 'role': 'user'}]``."""


def with_conversations(table: pa.Table, path: str) -> pa.Table:
    """`table`, of the file at `path`, with messages in place of JSON text, in the columns that may hold conversations.

    A column of text is read as messages if each of its values is JSON text of a list of messages. Otherwise it is plain
    text, except for a column `messages`.

    Raises: DataError for text in a column `messages` that is not such a list.
    """
    for index, name in enumerate(table.column_names):
        if name not in MESSAGE_COLUMNS or not _may_be_json(table.column(index), need_all=name != "messages"):
            continue
        texts = decoded(table.column(index), name)
        values = [None if text is None else _parsed(text) for text in texts]
        others = [row for row, text in enumerate(texts) if text is not None and values[row] is None]
        if others and name == "messages":
            got, need = (f"other text in row {others[0]}: {texts[others[0]]!r:.100}", "JSON text of a list of messages")
            raise DataError(f"column {name!r} of {path!r}", got=got, need=need, do="correct the row, or remove it")
        if not others and any(value is not None for value in values):
            column, field = make_column(values, name)
            table = table.set_column(index, field, column)
    return table


def count_conversations(table: pa.Table, name: str) -> int:
    """The number of values of a text column that are messages, or one message, as JSON or Python writes them."""
    import pyarrow.compute
    from pyarrow import types

    pc: Any = pyarrow.compute
    column = table.column(name)
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return 0
    has_keys = (pc.match_substring_regex(column, _START + key) for key in _KEYS)
    return pc.sum(reduce(pc.and_, has_keys)).as_py() or 0


def _may_be_json(column: pa.ChunkedArray, *, need_all: bool) -> bool:
    """Whether a value of `column`, or every one, is text that starts as a JSON list."""
    import pyarrow.compute
    from pyarrow import types

    pc: Any = pyarrow.compute
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return False
    starts = pc.starts_with(pc.utf8_ltrim_whitespace(column), "[")
    return bool((pc.all if need_all else pc.any)(starts).as_py())


def _parsed(text: str) -> list[Any] | None:
    try:
        value = parse_json(text)
    except ValueError:
        return None
    is_list = isinstance(value, list) and bool(value)
    return value if is_list and all(isinstance(each, Mapping) and "role" in each for each in value) else None
