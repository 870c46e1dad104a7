"""Arrow types and values that Python cannot represent: the types are converted, the values are refused."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path
from pickle import PickleError
from typing import TYPE_CHECKING, Any

from purerl.data.nested import decoded
from purerl.errors import DataError
from purerl.system.workers.connection import pack_request

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_names", "check_values", "simplify_types"]

_CHUNK_SIZE = 1024


def check_names(table: pa.Table, path: Path) -> None:
    """Raise DataError if two columns of `table`, the contents of the file at `path`, have the same name."""
    for name, count in Counter(table.column_names).items():
        if count > 1:
            got, do = f"{count} columns with this name", "rename or remove all but one of them"
            raise DataError(f"column {name!r} of {str(path)!r}", got=got, need="one", do=do)


def simplify_types(table: pa.Table, path: Path) -> pa.Table:
    """Cast `table`, the contents of the file at `path`, to types that all Arrow functions support.

    Dictionary types (pandas categories), run-end encoded types and views of text are replaced at any depth. Times in
    nanoseconds are truncated to microseconds, the resolution of Python's types.

    Raises: DataError for a column that cannot be cast.
    """
    import pyarrow as pa

    columns = dict(zip(table.column_names, table.columns, strict=True))
    types = ((field, _simplify_type(field.type)) for field in table.schema)
    changed = [(field, arrow_type) for field, arrow_type in types if field.type != arrow_type]
    for field, arrow_type in changed:
        try:
            columns[field.name] = columns[field.name].cast(arrow_type, safe=False)
        except pa.ArrowException as error:
            got, do = f"type {field.type}: {_first_line(error)}", "remove the column, or convert it to text"
            raise DataError(f"column {field.name!r} of {str(path)!r}", got=got, do=do) from error
    return pa.table(columns, metadata=table.schema.metadata)


@lru_cache  # a file may have many columns of one type
def _simplify_type(arrow_type: Any) -> pa.DataType:
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(arrow_type) or types.is_run_end_encoded(arrow_type):
        return _simplify_type(arrow_type.value_type)
    if types.is_struct(arrow_type):
        return pa.struct([field.with_type(_simplify_type(field.type)) for field in arrow_type])
    list_types = {
        types.is_fixed_size_list: lambda field: pa.list_(field, arrow_type.list_size),
        types.is_list: pa.list_,
        types.is_large_list: pa.large_list,
    }
    make_list_type = next((make for is_type, make in list_types.items() if is_type(arrow_type)), None)
    if make_list_type is not None:
        return make_list_type(arrow_type.value_field.with_type(_simplify_type(arrow_type.value_type)))
    return _simplify_flat_type(arrow_type)


def _simplify_flat_type(arrow_type: Any) -> pa.DataType:
    import pyarrow as pa
    from pyarrow import types

    if types.is_string_view(arrow_type) or types.is_binary_view(arrow_type):
        return pa.string() if types.is_string_view(arrow_type) else pa.binary()
    if getattr(arrow_type, "unit", None) != "ns":
        return arrow_type
    if types.is_timestamp(arrow_type):
        return pa.timestamp("us", arrow_type.tz)
    return pa.time64("us") if types.is_time(arrow_type) else pa.duration("us")


def check_values(table: pa.Table, path: Path) -> None:
    """Check that Python can represent every value of `table`, the contents of the file at `path`.

    Rows are sent to the processes of reward functions and environments, so that must be possible too.

    Raises: DataError that names the column and the row of the first one that it cannot, such as text that is not valid
    UTF-8, a time in an unknown time zone, or a date after the year 9999.
    """
    import pyarrow as pa

    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
            if not _is_plain(column.type):
                for start in range(0, len(column), _CHUNK_SIZE):
                    pack_request(decoded(column.slice(start, _CHUNK_SIZE), name))
        except (pa.ArrowException, ValueError, OverflowError, LookupError, TypeError, PickleError) as error:
            row, cause = _first_invalid_row(column, name) or (None, error)
            place = "" if row is None else f"row {row}: "
            need, do = "values that Python can represent", "correct the values, or remove the column"
            got = f"type {column.type}; {place}{_describe(cause)}"
            raise DataError(f"column {name!r} of {str(path)!r}", got=got, need=need, do=do) from error


@lru_cache
def _is_plain(arrow_type: Any) -> bool:
    """Whether Python has a value for every valid value of this type."""
    from pyarrow import types

    if types.is_struct(arrow_type):
        names = [field.name for field in arrow_type]
        return len(set(names)) == len(names) and all(_is_plain(field.type) for field in arrow_type)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        return _is_plain(arrow_type.value_type)
    tests = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(arrow_type) for test in (*tests, *texts))


def _first_invalid_row(column: pa.ChunkedArray, name: str) -> tuple[int, Exception] | None:
    for row in range(len(column)):
        try:
            pack_request(decoded(column.slice(row, 1), name))
        except Exception as error:  # noqa: BLE001 - it depends on the type; the caller has caught the first one
            return row, error
    return None


def _describe(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"text that is not valid UTF-8: {error.object[:40]!r}"
    if "zoneinfo" in str(error):  # Arrow's message for a time zone that Python does not have
        return "a time in an unknown time zone"
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
