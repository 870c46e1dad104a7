"""Read the files of stored completions, and check everything that the report assumes about their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.data.values import check_names, check_values, simplify_types
from purerl.errors import DataError
from purerl.monitoring.console.messages import parse_messages
from purerl.report.thumbnails import parse_images
from purerl.store.rollouts import token_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_evaluation", "read_rollouts"]

_MAX_TOKEN = 2**31 - 1
_ROW_TYPES = dict.fromkeys(("group", "row", "example", "episode", "role"), "integer")
_ROW_TYPES |= {"temperature": "number", "truncated": "bool"}
_TEXT_TYPES = dict.fromkeys(("prompt", "completion", "finish", "ground_truth", "messages", "images"), "text")
_EVALUATION_TYPES = {
    **_TEXT_TYPES,
    "data_set": "text",
    "index": "integer",
    "attempt": "integer",
    "tokens": "integer",
    "answer": "text",
    "correct": "bool",
    "reward": "number",
}


def read_rollouts(path: Path) -> pa.Table:
    """Read the rollouts of a step.

    Raises: DataError that names the file, and the column and the row if possible, for anything that is not the rollouts
    of a step.
    """
    table = _read(path)
    _check_columns(table, path, required=("tokens", "action", "group"), types=_TEXT_TYPES | _ROW_TYPES)
    lengths = _lengths(table, "tokens", path)
    for name in token_columns(table.column_names):
        for row, (values, tokens) in enumerate(zip(_lengths(table, name, path), lengths, strict=True)):
            if values != tokens:
                raise _error(path, name, f"{values} values for {tokens} tokens in row {row}", "a value for each token")
    _check_tokens(table["tokens"], path)
    _check_texts(table, path)
    return table


def read_evaluation(path: Path) -> pa.Table:
    """Read the completions of an evaluation. Raises: DataError as `read_rollouts`."""
    table = _read(path)
    components = {name: "number" for name in table.column_names if name.startswith("reward/")}
    required = ("data_set", "index", "prompt", "completion")
    _check_columns(table, path, required=required, types=_EVALUATION_TYPES | components)
    _check_texts(table, path)
    return table


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
        check_names(table, path)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        got = next(iter(str(error).splitlines()), repr(error))
        raise DataError(f"{str(path)!r} cannot be read", got=got, need="a complete Parquet file") from error
    table = simplify_types(table, path)
    check_values(table, path)
    return table


def _error(path: Path, column: str, got: str, need: str) -> DataError:
    return DataError(f"column {column!r} of {str(path)!r}", got=got, need=need)


def _check_columns(table: pa.Table, path: Path, *, required: tuple[str, ...], types: Mapping[str, str]) -> None:
    """Check that the `required` columns exist and have a value in every row, and that columns have their `types`."""
    for name in required:
        if name not in table.column_names:
            got = f"the columns {', '.join(table.column_names)}"
            raise DataError(f"{str(path)!r} has no column {name!r}", got=got, need="a file that a run has written")
        if table[name].null_count:
            row = table[name].is_null().index(value=True).as_py()
            raise _error(path, name, f"no value in row {row}", "a value in every row")
    tests = _type_tests()
    for name, kind in types.items():
        if name in table.column_names and not tests[kind](table[name].type):
            raise _error(path, name, f"type {table[name].type}", kind)


def _type_tests() -> dict[str, Callable[[Any], bool]]:
    from pyarrow import types

    return {
        "integer": lambda kind: types.is_integer(kind) or types.is_null(kind),
        "number": lambda kind: any(test(kind) for test in (types.is_integer, types.is_floating, types.is_null)),
        "text": lambda kind: any(test(kind) for test in (types.is_string, types.is_large_string, types.is_null)),
        "bool": lambda kind: types.is_boolean(kind) or types.is_null(kind),
    }


def _lengths(table: pa.Table, name: str, path: Path) -> list[int]:
    """The number of values in each row of the column `name`, which has lists of numbers."""
    import pyarrow.compute
    from pyarrow import types

    pc: Any = pyarrow.compute
    column, need = table[name], "a list of numbers in every row"
    is_list = types.is_list(column.type) or types.is_large_list(column.type)
    tests = (types.is_integer, types.is_floating, types.is_boolean)
    if not is_list or not any(test(column.type.value_type) for test in tests):
        raise _error(path, name, f"type {column.type}", need)
    if column.null_count or pc.list_flatten(column).null_count:
        row = next(row for row, values in enumerate(column.to_pylist()) if values is None or None in values)
        raise _error(path, name, f"a missing value in row {row}", need)
    return pc.list_value_length(column).to_pylist()


def _check_texts(table: pa.Table, path: Path) -> None:
    """Check that each conversation is a JSON list of messages, and the images of each row a JSON list of ids."""
    parts = (
        ("messages", parse_messages, "conversation", "a JSON list of messages"),
        ("images", parse_images, "images", "a JSON list of content ids"),
    )
    for name, parse, what, need in parts:
        for row, text in enumerate(table[name].to_pylist() if name in table.column_names else []):
            try:
                parse(text or "[]")
            except DataError as error:
                raise _error(path, name, f"no {what} in row {row}: {error}", need) from error


def _check_tokens(column: pa.ChunkedArray, path: Path) -> None:
    from pyarrow import types

    if not types.is_integer(column.type.value_type):
        raise _error(path, "tokens", f"type {column.type}", "lists of token ids")
    for row, ids in enumerate(column.to_pylist()):
        if ids and not 0 <= min(ids) <= max(ids) <= _MAX_TOKEN:
            raise _error(path, "tokens", f"a number that is not a token id in row {row}", f"from 0 to {_MAX_TOKEN}")
