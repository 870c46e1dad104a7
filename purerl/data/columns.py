"""What the columns of a table are: prompts, demonstrations or preference pairs, as texts or as chat messages.

Columns are recognized by their names and types, before a row is looked at. A text is a string. Messages are a list of
structures with a `role` and a `content`, as chat templates take them. verl's files and TRL's are both covered: they
differ in columns that are the reward functions' business, and those stay in the example as the file has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from purerl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "LAYOUTS",
    "Form",
    "Layout",
    "Purpose",
    "Style",
    "all_begin_with",
    "check_rows",
    "form_of",
    "ground_truth",
    "is_whole",
    "layouts_of",
    "recognize",
    "style_of",
]

Purpose = Literal["prompts", "demonstrations", "preferences"]
Form = Literal["text", "messages"]
Style = Literal["verl", "TRL", "plain"]


class Layout(NamedTuple):
    """One way in which a table says what a purpose needs: these columns, all of one form.

    The first column is the prompt, or begins with it: in a conversation everything before the assistant's first turn,
    in a pair of conversations what both begin with.
    """

    purpose: Purpose
    form: Form
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.purpose}: {', '.join(self.columns)} ({self.form})"


LAYOUTS = (
    Layout("prompts", "messages", ("prompt",)),
    Layout("prompts", "text", ("prompt",)),
    Layout("prompts", "text", ("question",)),
    Layout("prompts", "text", ("problem",)),
    Layout("demonstrations", "messages", ("prompt", "completion")),
    Layout("demonstrations", "text", ("prompt", "completion")),
    Layout("demonstrations", "messages", ("messages",)),
    Layout("preferences", "messages", ("prompt", "chosen", "rejected")),
    Layout("preferences", "text", ("prompt", "chosen", "rejected")),
    Layout("preferences", "messages", ("chosen", "rejected")),
)
"""Every layout. Where a table has several for one purpose, the first in this order counts."""

_TRUTHS = ("reward_model.ground_truth", "answer", "ground_truth", "solution")


def form_of(kind: pa.DataType) -> Form | None:
    """What a column of this Arrow type holds; None where that is neither text nor messages."""
    from pyarrow import types

    if _is_text(kind):
        return "text"
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not types.is_struct(kind.value_type):
        return None
    fields = {field.name: field.type for field in kind.value_type}
    return "messages" if all(_is_text(fields.get(name)) for name in ("role", "content")) else None


def _is_text(kind: pa.DataType | None) -> bool:
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return kind is not None and any(test(kind) for test in tests)


def layouts_of(schema: pa.Schema) -> list[Layout]:
    """Every layout that a table with this schema has, one for each purpose at most."""
    forms = {field.name: form_of(field.type) for field in schema}
    found = [one for one in LAYOUTS if all(forms.get(name) == one.form for name in one.columns)]
    return list({layout.purpose: layout for layout in reversed(found)}.values())[::-1]


def recognize(schema: pa.Schema, purpose: Purpose, path: str) -> Layout:
    """The layout in which the file at `path` has what `purpose` needs.

    Raises: DataError where a column is missing, has another type, or where texts and messages stand side by side.
    """
    found = [layout for layout in layouts_of(schema) if layout.purpose == purpose]
    if found:
        return found[0]
    wanted = [layout for layout in LAYOUTS if layout.purpose == purpose]
    nearest_one = max(wanted, key=lambda layout: sum(name in schema.names for name in layout.columns))
    missing = [name for name in nearest_one.columns if name not in schema.names]
    if missing:
        raise _missing(schema, purpose, missing[0], path)
    forms = {name: form_of(schema.field(name).type) for name in nearest_one.columns}
    for name, form in forms.items():
        if form is None:
            need = "text, or messages: a list of {role, content}, both text"
            kind = schema.field(name).type
            raise DataError(f"column {name!r} of {path!r}", got=f"type {kind}", need=need, do=_mend(name, kind))
    got = ", ".join(f"{name!r} holds {form}" for name, form in forms.items())
    raise DataError(f"columns of {path!r}", got=got, need="text in all of them, or messages in all of them")


def _missing(schema: pa.Schema, purpose: Purpose, name: str, path: str) -> DataError:
    others = [layout.purpose for layout in layouts_of(schema)]
    near = get_close_matches(name, schema.names, n=1)
    do = f"it holds {' and '.join(others)}: choose an algorithm that learns from those" if others else None
    do = f"rename the column {near[0]!r}" if near else do or _known(schema) or "rename the column that holds it"
    need = f"a column {name!r} of text or messages, for {purpose}"
    return DataError(f"data set {path!r} has no column {name!r}", got=", ".join(schema.names), need=need, do=do)


def _known(schema: pa.Schema) -> str | None:
    """The remedy where a column is one that other software names or writes in its own manner."""
    talks = (_mend_talk(field.name, field.type) for field in schema)
    named = (f"rename the column {field.name!r}" for field in schema if form_of(field.type) == "messages")
    text = "rename the column 'text' if it is what to continue, or split it into 'prompt' and 'completion'"
    return next(filter(None, talks), None) or next(named, text if "text" in schema.names else None)


def _mend_talk(name: str, kind: Any) -> str | None:
    """The remedy for a column of conversations in another manner than ours."""
    fields = {field.name: field.type for field in _inside(getattr(kind, "value_type", None))}
    if {"from", "value"} <= fields.keys():
        names = "'from' to 'role' (human to user, gpt to assistant) and 'value' to 'content'"
        return f"in {name!r} rename {names}, and the column to 'messages'"
    if {"role", "content"} <= fields.keys() and _inside(getattr(fields["content"], "value_type", None)):
        return f"make each content in {name!r} one text: join the texts of its parts"
    return None


def _mend(name: str, kind: pa.DataType) -> str | None:
    """The remedy for a column of the wrong type."""
    from pyarrow import types

    if types.is_null(kind) or types.is_null(getattr(kind, "value_type", kind)):
        return f"fill {name!r}: it is empty in every row"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return f"decode {name!r} from bytes to text"
    return _mend_talk(name, kind)


def ground_truth(schema: pa.Schema) -> str | None:
    """The column of right answers, dotted where it lies in a structure; None where none has a name of that sort."""
    dotted = [*schema.names, *(f"{field.name}.{inner.name}" for field in schema for inner in _inside(field.type))]
    return next((name for name in _TRUTHS if name in dotted), None)


def style_of(schema: pa.Schema) -> Style:
    """Whose manner the columns are in; it makes no difference but to people.

    verl's files say where a row comes from and how it is judged; two plain columns are a question and its answer; what
    is left has TRL's names.
    """
    if {"data_source", "reward_model"} & {*schema.names}:
        return "verl"
    return "plain" if len(schema.names) == 2 and ground_truth(schema) else "TRL"


def _inside(kind: pa.DataType | None) -> list[pa.Field]:
    from pyarrow import types

    return list(kind) if kind is not None and types.is_struct(kind) else []


def check_rows(table: pa.Table, layout: Layout, path: str) -> None:
    """Refuse rows of `table` that miss a column of `layout`, a message's role or content, or have nothing to continue.

    Raises: DataError with the number of the first.
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute  # it makes its functions as it is imported, where types do not see them
    do = "purerl data inspect lists all such rows; take them out"
    for name in layout.columns:
        column, what = table.column(name), f"column {name!r} of {path!r}"
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise DataError(what, got=f"nothing in row {row}", need=f"{layout.form} in every row", do=do)
        row = _first_broken(column) if layout.form == "messages" else None
        if row is not None:
            got, need = f"a message without a role or without content in row {row}", "both in every message"
            raise DataError(what, got=got, need=need, do=do)
    first = table.column(layout.columns[0])
    lengths = pc.utf8_length(first) if layout.form == "text" else pc.list_value_length(first)
    row = lengths.index(0).as_py()
    if row >= 0:
        got, what = f"an empty one in row {row}", f"column {layout.columns[0]!r} of {path!r}"
        raise DataError(what, got=got, need="something to continue", do=do)


def _first_broken(column: pa.ChunkedArray) -> int | None:
    """The first row of conversations with a message that is not whole."""
    import pyarrow.compute

    pc: Any = pyarrow.compute
    begin = 0
    for chunk in column.chunks:
        messages = pc.list_flatten(chunk)
        missing = pc.or_(*(pc.is_null(pc.struct_field(messages, name)) for name in ("role", "content")))
        for place in pc.indices_nonzero(missing).to_pylist():
            if not is_whole(messages[place].as_py()):
                return begin + pc.list_parent_indices(chunk)[place].as_py()
        begin += len(chunk)
    return None


def is_whole(message: Mapping[str, Any] | None) -> bool:
    """Whether `message` has a role, and content; calls of tools do instead in a turn of the assistant's."""
    if message is None or message["role"] is None:
        return False
    return message["content"] is not None or (message["role"] == "assistant" and bool(message.get("tool_calls")))


def all_begin_with(table: pa.Table, layout: Layout, role: str) -> bool:
    """Whether every conversation of `table` begins with a message of `role`."""
    import pyarrow.compute

    pc: Any = pyarrow.compute
    first = pc.list_element(table.column(layout.columns[0]), 0)
    return bool(pc.all(pc.equal(pc.struct_field(first, "role"), role)).as_py())
