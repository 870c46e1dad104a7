"""Nested values of rows as each row has them: no key of another row, no null that it does not have, no change of type.

Arrow gives all structures of a column the same keys, and their values one type. So a column of JSON Lines that has
nested values, or values of several types, is stored as JSON text in the type ``arrow.json``. The metadata of its field
hold its *shape*: the type that Arrow would give to the column, with ``arrow.json`` where values have no common type.

A file in a format of Arrow (Parquet, `datasets.save_to_disk`) has added keys already: each is null in the rows that do
not have it. In the columns of `CLEANED`, a key of a structure whose value is null is left out, at any depth. Only the
contents of messages stay. In other columns nothing is left out: reward functions read them as Arrow has them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from purerl.system.nesting import read_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CLEANED",
    "MESSAGE_COLUMNS",
    "SHAPE",
    "TYPES",
    "as_arrow",
    "common_shape",
    "count_added_keys",
    "decoded",
    "is_json",
    "iterate_values",
    "json_column",
    "make_column",
    "parse_json",
    "rows_of",
    "shape_of",
    "shaped",
    "shaped_schema",
    "uniform_contents",
    "with_shape",
]

MESSAGE_COLUMNS = ("prompt", "completion", "messages", "chosen", "rejected")
"""The columns that may hold conversations."""
CLEANED = (*MESSAGE_COLUMNS, "tools", "chat_template_kwargs")
"""The columns in which a key of a structure is left out if its value is null, of files in a format of Arrow."""
SHAPE = b"purerl.shape"
"""The key of the shape in the metadata of a field."""
TYPES = b"purerl.types"
"""The key of the types of the values of a column, if they have no common one, each with its first row."""

_MAX_DEPTH = 12  # of a shape
_CHUNK_SIZE = 1024

Decoder = Callable[[Any], Any]


def parse_json(text: str) -> Any:
    """The value of `text`. Raises ValueError also for an object with two values of one key: one would be lost."""
    return read_json(text, object_pairs_hook=_to_object)


def _to_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"an object with two values of the key {twice!r}")
    return value


def is_json(arrow_type: Any) -> bool:
    """Whether values of this Arrow type are JSON text."""
    return getattr(arrow_type, "extension_name", None) == "arrow.json"


def _json_type() -> pa.DataType:
    import pyarrow as pa

    return pa.json_(pa.large_string())


def json_column(values: Sequence[Any]) -> pa.Array:
    """A column of `values`, stored as JSON. Raises TypeError for values that JSON does not have, such as bytes."""
    import pyarrow as pa

    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pa.ExtensionArray.from_storage(_json_type(), pa.array(texts, pa.large_string()))  # type: ignore[arg-type]


def make_column(values: Sequence[Any], name: str) -> tuple[pa.Array, pa.Field]:
    """The column of `values`, and its field: of scalars or lists of scalars of one type, or of JSON.

    Raises: TypeError as `json_column`.
    """
    import pyarrow as pa

    shape = shape_of(uniform_contents(values))
    if not re.search("struct|arrow.json", str(shape)):
        with suppress(OverflowError, pa.ArrowException):  # integers of more than 64 bits
            column = pa.array(values, shape)
            if "double" not in str(shape) or repr(column.to_pylist()) == repr([*values]):  # integers beside floats
                return column, pa.field(name, column.type)
    return json_column(values), with_shape(name, shape, values)


def with_shape(name: str, shape: pa.DataType, values: Sequence[Any] = ()) -> pa.Field:
    """The field of a column of JSON with this shape; if `values` have several types, with the first row of each."""
    import pyarrow as pa

    stored = pa.schema([pa.field("shape", shape)]).serialize().to_pybytes()
    rows = {type(value).__name__: row for row, value in reversed([*enumerate(values)]) if value is not None}
    types = ", ".join(f"{name} in row {row}" for name, row in reversed(rows.items())) if is_json(shape) else ""
    return pa.field(name, _json_type(), metadata={SHAPE: stored, TYPES: types})


def shaped(field: pa.Field) -> pa.DataType:
    """The type of the values of a column: of one of JSON, its shape."""
    import pyarrow as pa

    stored = (field.metadata or {}).get(SHAPE) if is_json(field.type) else None
    return field.type if stored is None else pa.ipc.read_schema(pa.py_buffer(stored)).field(0).type


def shaped_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with the shapes of columns of JSON as their types."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, shaped(field), metadata=field.metadata) for field in schema])


def shape_of(values: Sequence[Any], depth: int = 0) -> pa.DataType:
    """The Arrow type of `values`; ``arrow.json`` where they have no common type.

    >>> str(shape_of([{"a": 1}, {"b": [None, "x"]}]))
    'struct<a: int64, b: list<item: string>>'
    >>> str(shape_of([1, "x"]))
    'extension<arrow.json>'
    """
    import pyarrow as pa

    present = [value for value in values if value is not None]
    types = {type(value) for value in present}
    if depth == _MAX_DEPTH:
        return _json_type()
    if types == {dict}:
        fields: dict[str, list[Any]] = {}
        for value in present:
            for key, item in value.items():
                fields.setdefault(key, []).append(item)
        return pa.struct([(key, shape_of(items, depth + 1)) for key, items in fields.items()])
    if types == {list}:
        return pa.list_(shape_of([item for value in present for item in value], depth + 1))
    scalars = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return reduce(common_shape, (scalars.get(each, _json_type()) for each in types), pa.null())


def common_shape(first: Any, second: Any) -> pa.DataType:
    """The shape of a column with values of both shapes."""
    import pyarrow as pa
    from pyarrow import types

    if first == second or types.is_null(second):
        return first
    if types.is_null(first):
        return second
    if types.is_struct(first) and types.is_struct(second):
        fields = [{field.name: field.type for field in struct} for struct in (first, second)]
        names = dict.fromkeys([*fields[0], *fields[1]])
        return pa.struct([(name, common_shape(*(each.get(name, pa.null()) for each in fields))) for name in names])
    if types.is_list(first) and types.is_list(second):
        return pa.list_(common_shape(first.value_type, second.value_type))
    are_numbers = all(types.is_integer(each) or types.is_floating(each) for each in (first, second))
    return pa.float64() if are_numbers else _json_type()


def uniform_contents(values: Sequence[Any]) -> Sequence[Any]:
    """`values` of a column; if the content of any message is a list of parts, with such a list in every message.

    >>> uniform_contents([[{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "image"}]}]])[0][0]
    {'role': 'system', 'content': [{'type': 'text', 'text': 'a'}]}
    """
    messages = (message for value in values if isinstance(value, list) for message in value)
    if not any(isinstance(message, dict) and isinstance(message.get("content"), list) for message in messages):
        return values
    return [[_with_parts(message) for message in value] if isinstance(value, list) else value for value in values]


def _with_parts(message: Any) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def as_arrow(table: pa.Table) -> pa.Table:
    """`table` for a file: columns of JSON become structures of Arrow if that changes no row, or stay JSON."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if is_json(field.type):
            values, column = decoded(table.column(index), field.name), table.column(index)
            with suppress(pa.ArrowException, OverflowError):
                plain = pa.chunked_array([pa.array(values)])
                column = plain if repr(plain.to_pylist()) == repr(values) else column
            table = table.set_column(index, field.name, column)
    return table


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of `table`, as each has them."""
    names = table.column_names
    columns = [decoded(column, name) for column, name in zip(table.columns, names, strict=True)]
    rows = zip(*columns, strict=True) if columns else [()] * table.num_rows
    return [dict(zip(names, values, strict=True)) for values in rows]


def decoded(column: pa.ChunkedArray | pa.Array, name: str) -> list[Any]:
    """The values of the column `name` as each row has them.

    Raises: ValueError for JSON text that is not valid, and for a map with two values of one key.
    """
    decode = _decoder(column.type, is_cleaned=name in CLEANED, kept=("role", "content"))
    values = column.to_pylist()
    return values if decode is None else [None if value is None else decode(value) for value in values]


def iterate_values(table: pa.Table, name: str) -> Iterator[Any]:
    """The values of a column, decoded in chunks, so that not all of them are Python objects at one time."""
    for start in range(0, table.num_rows, _CHUNK_SIZE):
        yield from decoded(table.column(name).slice(start, _CHUNK_SIZE), name)


def _decoder(arrow_type: Any, *, is_cleaned: bool, kept: tuple[str, ...] = ()) -> Decoder | None:
    """The function from pyarrow's object to the value of a row; None: it is this object. `kept` stay if null."""
    from pyarrow import types

    if is_json(arrow_type):
        return parse_json
    if types.is_map(arrow_type):
        return partial(_decode_map, _decoder(arrow_type.item_type, is_cleaned=is_cleaned))
    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        decode = _decoder(arrow_type.value_type, is_cleaned=is_cleaned, kept=kept)
        return decode and partial(_decode_list, decode)
    if types.is_struct(arrow_type):
        decoders = {field.name: _decoder(field.type, is_cleaned=is_cleaned) for field in arrow_type}
        needed = {key: decode for key, decode in decoders.items() if decode is not None}
        if is_cleaned:
            return partial(_decode_struct, needed, kept)
        return partial(_decode_fields, needed) if needed else None
    return None


def _decode_map(decode: Decoder | None, value: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    pairs = {key: item if item is None or decode is None else decode(item) for key, item in value}
    if len(pairs) < len(value):
        raise ValueError(f"a map with two values of one key, among {', '.join(map(str, pairs))}")
    return pairs


def _decode_list(decode: Decoder, value: Sequence[Any]) -> list[Any]:
    return [None if item is None else decode(item) for item in value]


def _decode_fields(decoders: Mapping[str, Decoder], value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: decoders[key](item) if item is not None and key in decoders else item for key, item in value.items()}


def _decode_struct(decoders: Mapping[str, Decoder], kept: Sequence[str], value: Mapping[str, Any]) -> dict[str, Any]:
    present = {key: item for key, item in value.items() if item is not None or key in kept}
    return _decode_fields(decoders, present)


def count_added_keys(column: Any) -> int:
    """The number of keys that `decoded` leaves out of the structures in `column`, one of `CLEANED`."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    return sum(_count_nulls(chunk, ("role", "content")) for chunk in chunks)


def _count_nulls(array: Any, kept: Sequence[str] = ()) -> int:
    import pyarrow.compute
    from pyarrow import types

    pc: Any = pyarrow.compute
    if types.is_struct(array.type):
        fields = [(field.name, pc.struct_field(array, k)) for k, field in enumerate(array.type)]
        nulls = sum(child.null_count - array.null_count for name, child in fields if name not in kept)
        return nulls + sum(_count_nulls(child) for _, child in fields)
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        return _count_nulls(pc.list_flatten(array), kept)
    return 0
