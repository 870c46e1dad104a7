"""Examples: rows of a Parquet or JSON Lines file, drawn in a shuffled order that is a pure function of the seed.

Columns that purerl reads, all of them texts: `prompt`; in demonstrations also `completion`; in preference pairs also
`chosen` and `rejected`. Every other column is the reward functions' business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from purerl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Example", "draws", "read_examples", "take"]

Example = dict[str, Any]


def read_examples(path: str | Path, texts: Sequence[str], *, limit: int | None = None) -> pa.Table:
    """The rows of the file at `path`, at most `limit`; `texts` are columns that it must have, of text in every row.

    Raises: DataError for a file that is missing, empty, of another format, or without one of `texts`.
    """
    table = _read(Path(path)).slice(0, limit)
    if table.num_rows == 0:
        raise DataError(f"data set {str(path)!r}", got="no rows", need="at least one")
    for name in texts:
        if name not in table.column_names:
            got = ", ".join(table.column_names)
            raise DataError(
                f"data set {str(path)!r} has no column {name!r}", got=got, need=f"a column {name!r} of text"
            )
        _check_text(table, name, path)
    return table


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        raise DataError(f"data set {str(path)!r}", got="no such file", need="a .parquet or .jsonl file")
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path)
    if path.suffix == ".jsonl":
        return _read_json_lines(path)
    raise DataError(f"data set {str(path)!r}", got=f"a file that ends in {path.suffix!r}", need=".parquet or .jsonl")


def _read_json_lines(path: Path) -> pa.Table:
    import pyarrow as pa

    rows = [_json_object(line, number, path) for number, line in enumerate(path.open(encoding="utf-8"), start=1)]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except pa.ArrowException as error:
            got = f"values of mixed types: {error}"
            raise DataError(f"column {name!r} of {str(path)!r}", got=got, need="one type in every row") from error
    return pa.table(columns)


def _json_object(line: str, number: int, path: Path) -> Example:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"line {number} of {str(path)!r}", got=str(error), need="one JSON object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"line {number} of {str(path)!r}", got=f"a {type(row).__name__}", need="a JSON object")
    return row


def _check_text(table: pa.Table, name: str, path: str | Path) -> None:
    import pyarrow as pa

    column = table.column(name)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"column {name!r} of {str(path)!r}", got=f"type {column.type}", need="text")
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise DataError(f"column {name!r} of {str(path)!r}", got=f"nothing in row {row}", need="text in every row")


def take(table: pa.Table, indices: Sequence[int]) -> list[Example]:
    """The rows at `indices`, in that order."""
    return table.take(list(indices)).to_pylist()


def draws(size: int, seed: int, first: int, count: int) -> list[int]:
    """Indices of the draws `first`, ..., `first + count - 1` from `size` examples.

    Every pass over the examples is a permutation of its own; a draw is known by its number alone, so the number of
    draws so far is all that a checkpoint holds.

    >>> sorted(draws(5, seed=0, first=5, count=5))
    [0, 1, 2, 3, 4]
    """
    return [_permutation(size, seed, draw // size)[draw % size] for draw in range(first, first + count)]


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator).tolist()
