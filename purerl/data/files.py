"""Reading of data sets from disk into Arrow tables.

    rows.parquet, rows.jsonl        one file
    folder/train-*.parquet          a glob pattern: all matching files, sorted by name
    folder/                         all .parquet or all .jsonl files in it; or a data set of `datasets.save_to_disk`

Row indices start at 0 and continue through all files of a data set.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.data.nested import common_shape, decoded, is_json, json_column, make_column, parse_json, shaped, with_shape
from purerl.data.values import check_names, check_values, simplify_types
from purerl.errors import DataError
from purerl.system.nesting import read_json
from purerl.system.similar_paths import similar_path

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["digests", "read_table"]

_SUPPORTED = "a .parquet or .jsonl file, a glob pattern, or a directory of such files"
_CONVERSIONS = {
    ".csv": "convert it: from pyarrow import csv, parquet; parquet.write_table(csv.read_csv(FILE), 'data.parquet')",
    ".json": "write each row as a JSON object in a line of its own, to a file .jsonl",
}
_SPLIT_WORD = "(?:train(?:ing)?|test(?:ing)?|validation|valid|val|dev|eval(?:uation)?)"
_SPLIT = re.compile(rf"(?<![a-z]){_SPLIT_WORD}(?:[-_.]{_SPLIT_WORD})*(?![a-z])")


def read_table(path: str | Path) -> pa.Table:
    """Read the rows of the data set at `path`.

    Raises: DataError if there is no such file, the format is not supported or the file is damaged, there are no rows, a
    directory has several splits, a line is not a JSON object, or files or rows have different types.
    """
    shards = _find_shards(Path(path))
    table = _concatenate([_read_shard(shard) for shard in shards], shards)
    if table.num_rows == 0:
        raise DataError(f"data set {str(path)!r}", got="no rows", need="at least one", do="use a file that has rows")
    return table


def digests(path: str | Path) -> dict[str, str]:
    """The SHA-256 digest of each file of the data set at `path`, by file path. Raises DataError if there is no file."""
    results = {}
    for shard in _find_shards(Path(path)):
        with shard.open("rb") as file:
            results[str(shard)] = hashlib.file_digest(file, "sha256").hexdigest()
    return results


def _find_shards(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        return _find_in_directory(path)
    matches = _glob_files(path) if re.search(r"[*?\[]", path.name) else []
    if not matches:
        raise DataError(f"data set {str(path)!r}", got="no such file", need=_SUPPORTED, do=_suggest_name(path))
    return matches


def _glob_files(path: Path) -> list[Path]:
    return sorted(match for match in path.parent.glob(path.name) if match.is_file())


def _suggest_name(path: Path) -> str | None:
    """Suggest a file with a similar path, if there is one."""
    near = similar_path(path)
    return f"did you mean {str(near)!r}?" if near else None


def _find_in_directory(path: Path) -> list[Path]:
    if (path / "dataset_dict.json").is_file():
        names = _read_list(path / "dataset_dict.json", lambda content: map(str, content["splits"]))
        raise _several_splits(path, {split: path / split for split in names})
    if (path / "state.json").is_file():
        names = _read_list(path / "state.json", lambda content: [file["filename"] for file in content["_data_files"]])
        return [path / name for name in names]
    files_by_format = [sorted(path.glob(f"*{suffix}")) for suffix in (".parquet", ".jsonl")]
    formats = [files for files in files_by_format if files]
    if len(formats) != 1:
        got = "Parquet and JSON Lines files" if formats else "a directory without .parquet and .jsonl files"
        raise DataError(f"data set {str(path)!r}", got=got, need="files of one format")
    splits: dict[str, list[Path]] = {}
    for file in formats[0]:
        splits.setdefault(_split_of(file), []).append(file)
    if len(splits) > 1:
        raise _several_splits(path, {split: _path_of_split(split, files) for split, files in sorted(splits.items())})
    return formats[0]


def _read_list(path: Path, select: Callable[[Any], Iterable[str]]) -> list[str]:
    """The names that `select` finds in a JSON file of `datasets.save_to_disk`. Raises DataError if there are none."""
    need, do = "a file that datasets.save_to_disk has written, with at least one entry", "save the data set again"
    try:
        names = [*select(read_json(path.read_text(encoding="utf-8")))]
    except (OSError, ValueError, LookupError, TypeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise DataError(f"{str(path)!r} cannot be read", got=got, need=need, do=do) from error
    if not names:
        raise DataError(f"{str(path)!r} cannot be read", got="no entry", need=need, do=do)
    return names


def _split_of(file: Path) -> str:
    """The split in a file name, such as "test" in gsm8k_test.jsonl; else the name before the shard number."""
    if word := _SPLIT.search(file.stem.lower()):
        return word[0]
    numbered = re.fullmatch(r"(.*?)[-_.]?\d+(-of-\d+)?", file.stem)
    return numbered[1] if numbered else ""


def _path_of_split(split: str, files: Sequence[Path]) -> Path:
    """A path, or a simple pattern, that selects exactly `files` of `split`; the first file if there is none."""
    if len(files) == 1:
        return files[0]
    prefix = files[0].stem[: files[0].stem.lower().find(split.lower()) + len(split)]
    patterns = [files[0].with_name(f"{name}*{files[0].suffix}") for name in (prefix, f"*{split}")]
    return next((pattern for pattern in patterns if _glob_files(pattern) == files), files[0])


def _several_splits(path: Path, splits: Mapping[str, Path]) -> DataError:
    """The error for a directory with several splits. `splits` maps each split to a path that selects it."""
    named = [split for split in splits if split]
    unnamed = ["files without a split in their name"] if len(named) < len(splits) else []
    got = "several splits: " + ", ".join([*named, *unnamed])
    example = next((split for split in named if split.startswith("train")), named[0])
    do = f"use one of them, for example {splits[example]}"
    return DataError(f"data set {str(path)!r}", got=got, need="one split", do=do)


def _read_shard(path: Path) -> pa.Table:
    table = _select_reader(path)(path)
    if path.suffix == ".jsonl":
        return table  # its types are simple, and Python has all of its values
    check_names(table, path)
    table = simplify_types(table, path)
    check_values(table, path)
    return _with_objects(table)


def _with_objects(table: pa.Table) -> pa.Table:
    """`table` with columns of JSON in place of those with text of the type ``arrow.json``, unless they have bytes."""
    for index, field in enumerate(table.schema):
        if "extension<arrow.json>" in str(field.type):
            with suppress(TypeError):
                column, new = make_column(decoded(table.column(index), field.name), field.name)
                table = table.set_column(index, new, column)
    return table


def _select_reader(path: Path) -> Callable[[Path], pa.Table]:
    readers = {".parquet": _read_parquet, ".jsonl": _read_json_lines, ".arrow": _read_arrow}
    if path.suffix not in readers:
        got = f"a file with the extension {path.suffix!r}"
        raise DataError(f"data set {str(path)!r}", got=got, need=_SUPPORTED, do=_CONVERSIONS.get(path.suffix))
    return readers[path.suffix]


def _read_parquet(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _unreadable(path, error, "a Parquet file") from error


def _read_arrow(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _unreadable(path, error, "an Arrow stream, as datasets.save_to_disk writes it") from error


def _unreadable(path: Path, error: Exception, need: str) -> DataError:
    return DataError(f"{str(path)!r} cannot be read", got=next(iter(str(error).splitlines()), repr(error)), need=need)


def _read_json_lines(path: Path) -> pa.Table:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            numbered = enumerate(lines, start=1)
            rows = [_parse_json_object(line, number, path) for number, line in numbered if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error, "one JSON object per line, in UTF-8") from error
    names = dict.fromkeys(name for row in rows for name in row)
    return _table_of({name: [row.get(name) for row in rows] for name in names})


def _parse_json_object(line: str, number: int, path: Path) -> Mapping[str, Any]:
    what = f"line {number} of {str(path)!r}"
    try:
        row = parse_json(line)
        if "\\ud" in line or "\\uD" in line:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        got, do = f"half of a surrogate pair: {error.object[error.start]!r}", "complete or remove this character"
        raise DataError(what, got=got, need="valid Unicode text", do=do) from error
    except ValueError as error:
        raise DataError(what, got=str(error), need="one JSON object per line") from error
    if not isinstance(row, dict):
        raise DataError(what, got=f"a value of type {type(row).__name__}", need="a JSON object")
    return row


def _table_of(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    import pyarrow as pa

    pairs = [make_column(values, name) for name, values in columns.items()]
    return pa.Table.from_arrays([column for column, _ in pairs], schema=pa.schema([field for _, field in pairs]))


def _concatenate(tables: Sequence[pa.Table], paths: Sequence[Path]) -> pa.Table:
    """The rows of all `tables`. A field, at any depth, that is always null in a table gets the type of the others."""
    import pyarrow as pa

    tables = _with_equal_shapes([table.replace_schema_metadata(None) for table in tables])
    schema = tables[0].schema
    for number, table in enumerate(tables):
        if any(_find_differences(schema, table.schema)):
            raise _different_schemas([table.schema for table in tables[: number + 1]], paths)
        schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
    return pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]


def _with_equal_shapes(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """`tables` in which a column that is JSON in one of them is JSON in all, with the same shape."""
    if len(tables) == 1:
        return [*tables]
    names = {field.name for table in tables for field in table.schema if is_json(field.type)}
    common = [name for name in tables[0].column_names if name in names and all(name in t.column_names for t in tables)]
    for name in common:
        shape = reduce(common_shape, (shaped(table.schema.field(name)) for table in tables))
        tables = [_with_json(table, name, shape) for table in tables]
    return [*tables]


def _with_json(table: pa.Table, name: str, shape: pa.DataType) -> pa.Table:
    column = table.column(name)
    stored = column if is_json(column.type) else json_column(column.to_pylist())
    return table.set_column(table.column_names.index(name), with_shape(name, shape), stored)


def _different_schemas(schemas: Sequence[pa.Schema], paths: Sequence[Path]) -> DataError:
    """The error for the last of `schemas` and the first one that it does not match."""
    last = paths[len(schemas) - 1]
    differences = ("; ".join(_find_differences(schema, schemas[-1])) for schema in schemas)
    path, got = next((path, text) for path, text in zip(paths, differences, strict=False) if text)
    what = f"{str(path)!r} and {last.name!r} are not parts of one data set"
    return DataError(what, got=got, need="the same columns with the same types", do="list them as separate files")


def _find_differences(first: pa.Schema, second: pa.Schema) -> Iterator[str]:
    if first.equals(second):
        return
    by_name = [{field.name: field.type for field in schema} for schema in (first, second)]
    for name in dict.fromkeys([*by_name[0], *by_name[1]]):
        types = [known.get(name, "missing") for known in by_name]
        is_compatible = "missing" not in types and _are_compatible(*types)
        if not is_compatible and "null" not in map(str, types):
            yield f"column {name!r} is {types[0]} in the first, {types[1]} in the second"


def _are_compatible(first: Any, second: Any) -> bool:
    """Whether a column can have both Arrow types. The null type is compatible with every type."""
    from pyarrow import types

    if "null" in (str(first), str(second)):
        return True
    for is_list_type in (types.is_list, types.is_large_list):
        if is_list_type(first) and is_list_type(second):
            return _are_compatible(first.value_type, second.value_type)
    if types.is_struct(first) and types.is_struct(second):
        fields = [{field.name: field.type for field in struct} for struct in (first, second)]
        same_names = fields[0].keys() == fields[1].keys()
        return same_names and all(_are_compatible(fields[0][name], fields[1][name]) for name in fields[0])
    return first == second
