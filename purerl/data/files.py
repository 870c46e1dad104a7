"""Reading a data set from the disk into an Arrow table: whatever it is stored as, the same table.

    rows.parquet, rows.jsonl        one file
    folder/train-*.parquet          a pattern: every file that it matches, in the order of their names
    folder/                         its .parquet or its .jsonl files; or a data set as `datasets.save_to_disk` wrote it

Rows are counted from 0, on through all the files of one data set.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.errors import DataError, nearest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["digests", "read_table"]

_NEED = "a .parquet or .jsonl file, a pattern of such, or a directory of them"
_WORD = "(?:train(?:ing)?|test(?:ing)?|validation|valid|val|dev|eval(?:uation)?)"
_SPLIT = re.compile(rf"(?<![a-z]){_WORD}(?:[-_.]{_WORD})*(?![a-z])")


def read_table(path: str | Path) -> pa.Table:
    """The rows that are stored at `path`.

    Raises: DataError where nothing can be read: no such file, another format, no rows, several splits in one
    directory, a line that is no JSON object, files or rows that differ in their types.
    """
    shards = _shards(Path(path))
    table = _joined([_read(shard) for shard in shards], shards)
    if table.num_rows == 0:
        raise DataError(f"data set {str(path)!r}", got="no rows", need="at least one", do="name a file that has some")
    return table


def digests(path: str | Path) -> dict[str, str]:
    """The SHA-256 of each file of the data set at `path`, by the file's path. Raises DataError where there is none."""
    found = {}
    for shard in _shards(Path(path)):
        with shard.open("rb") as file:
            found[str(shard)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


# --- which files -------------------------------------------------------------------------------------------------


def _shards(path: Path) -> list[Path]:
    """The files that `path` names."""
    if path.is_file():
        return [path]
    if path.is_dir():
        return _of_directory(path)
    found = _matching(path) if re.search(r"[*?\[]", path.name) else []
    if not found:
        raise DataError(f"data set {str(path)!r}", got="no such file", need=_NEED, do=_neighbor(path))
    return found


def _matching(path: Path) -> list[Path]:
    return sorted(found for found in path.parent.glob(path.name) if found.is_file())


def _neighbor(path: Path) -> str | None:
    """The remedy where a file beside it has nearly the same name."""
    folder = path.parent
    names = [found.name for found in folder.iterdir()] if folder.is_dir() else []
    remedy = nearest(path.name, names)
    return remedy if remedy.startswith("did you mean") else None


def _of_directory(path: Path) -> list[Path]:
    if (path / "dataset_dict.json").is_file():
        splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        raise _several_splits(path, {split: path / split for split in splits})
    if (path / "state.json").is_file():
        files = json.loads((path / "state.json").read_text(encoding="utf-8"))["_data_files"]
        return [path / file["filename"] for file in files]
    found = [sorted(path.glob(f"*{suffix}")) for suffix in (".parquet", ".jsonl")]
    kinds = [files for files in found if files]
    if len(kinds) != 1:
        got = "Parquet and JSON Lines files" if kinds else "a directory without .parquet and .jsonl files"
        raise DataError(f"data set {str(path)!r}", got=got, need="files of one format")
    splits: dict[str, list[Path]] = {}
    for file in kinds[0]:
        splits.setdefault(_split_of(file), []).append(file)
    if len(splits) > 1:
        raise _several_splits(path, {split: _naming(split, files) for split, files in sorted(splits.items())})
    return kinds[0]


def _split_of(file: Path) -> str:
    """The split that a file's name speaks of, as in gsm8k_test.jsonl, wherever in the name a shard's number stands.

    Without such a word it is what stands before the number, as in rows-00000-of-00002.parquet; or nothing.
    """
    if word := _SPLIT.search(file.stem.lower()):
        return word[0]
    numbered = re.fullmatch(r"(.*?)[-_.]?\d+(-of-\d+)?", file.stem)
    return numbered[1] if numbered else ""


def _naming(split: str, files: Sequence[Path]) -> Path:
    """A name for `files`, all of a directory that are of `split`: a pattern that matches no others, if there is one."""
    if len(files) == 1:
        return files[0]
    begin = files[0].stem[: files[0].stem.lower().find(split.lower()) + len(split)]
    patterns = [files[0].with_name(f"{name}*{files[0].suffix}") for name in (begin, f"*{split}")]
    return next((pattern for pattern in patterns if _matching(pattern) == files), files[0])


def _several_splits(path: Path, splits: Mapping[str, Path]) -> DataError:
    """`splits` of the directory at `path`, each with what names it."""
    named = [split for split in splits if split]
    got = "several splits: " + ", ".join([*named, *["files that name none"][: len(splits) - len(named)]])
    one = next((split for split in named if split.startswith("train")), named[0])
    return DataError(f"data set {str(path)!r}", got=got, need="one of them", do=f"name it, such as {splits[one]}")


# --- one file ----------------------------------------------------------------------------------------------------


def _read(path: Path) -> pa.Table:
    table = _reader(path)(path)
    for name, count in Counter(table.column_names).items():
        if count > 1:
            got, do = f"{count} columns of that name", "rename all but one of them, or leave them out"
            raise DataError(f"column {name!r} of {str(path)!r}", got=got, need="one", do=do)
    return _plain(table)


def _reader(path: Path) -> Callable[[Path], pa.Table]:
    readers = {".parquet": _parquet, ".jsonl": _json_lines, ".arrow": _arrow}
    if path.suffix not in readers:
        raise DataError(f"data set {str(path)!r}", got=f"a file that ends in {path.suffix!r}", need=_NEED)
    return readers[path.suffix]


def _plain(table: pa.Table) -> pa.Table:
    """`table` with types that all of Arrow's functions take: see `_plain_type`."""
    import pyarrow as pa

    schema = pa.schema([field.with_type(_plain_type(field.type)) for field in table.schema])
    return table if table.schema.equals(schema) else table.cast(schema)


def _plain_type(kind: Any) -> pa.DataType:
    """The Arrow type `kind` without dictionaries, as pandas' categories have, and without views of strings."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)), kind.list_size)
    for is_such, made in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if is_such(kind):
            return made(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def _parquet(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error, "a Parquet file") from error


def _arrow(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error, "an Arrow stream, as datasets.save_to_disk writes it") from error


def _damaged(path: Path, error: Exception, need: str) -> DataError:
    return DataError(f"{str(path)!r} cannot be read", got=str(error).splitlines()[0], need=need)


def _json_lines(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        with path.open(encoding="utf-8-sig") as lines:
            numbered = enumerate(lines, start=1)
            rows = [_json_object(line, number, path) for number, line in numbered if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error, "JSON objects, one a line, in UTF-8") from error
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _json_column([row.get(name) for row in rows], name, path) for name in names})


def _json_object(line: str, number: int, path: Path) -> Mapping[str, Any]:
    what = f"line {number} of {str(path)!r}"
    try:
        row = json.loads(line)
        if "\\ud" in line or "\\uD" in line:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        got, do = f"half of a character: {error.object[error.start]!r}", "write it whole, or take it out"
        raise DataError(what, got=got, need="texts of whole characters", do=do) from error
    except (ValueError, RecursionError) as error:
        raise DataError(what, got=str(error), need="one JSON object a line") from error
    if not isinstance(row, dict):
        raise DataError(what, got=f"a {type(row).__name__}", need="a JSON object")
    return row


def _json_column(values: Sequence[Any], name: str, path: Path) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise _mixed(values, name, path) or _too_large(values, name, path) from error


def _mixed(values: Sequence[Any], name: str, path: Path) -> DataError | None:
    """Told of the first row that has a value of another type than a row before it, be it deep inside; None without."""
    found: dict[str, tuple[type, int]] = {}
    for row, value in enumerate(values):
        for where, kind in _kinds(value, name):
            before, first = found.setdefault(where, (kind, row))
            if kind is not before and {kind, before} != {int, float}:
                got = f"values of mixed types: {before.__name__} in row {first}, {kind.__name__} in row {row}"
                need, do = "one type in every row", "write all of them as texts, say"
                return DataError(f"column {where!r} of {str(path)!r}", got=got, need=need, do=do)
    return None


def _kinds(value: Any, where: str) -> Iterator[tuple[str, type]]:
    """The types of a value and of all that is in it, each with its place."""
    if value is not None:
        yield where, type(value)
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _kinds(inner, f"{where}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _kinds(inner, f"{where}[]")


def _too_large(values: Sequence[Any], name: str, path: Path) -> DataError:
    """Told of the first row with which Arrow fails: where types agree, it takes all but great integers."""
    import pyarrow as pa

    def fails(count: int) -> bool:
        try:
            pa.array(values[:count])
        except (pa.ArrowException, OverflowError):
            return True
        return False

    row = bisect_left(range(1, len(values)), 1, key=fails)
    need, do = "integers of 64 bits, or of 53 beside fractions", "write all of them as texts"
    return DataError(f"column {name!r} of {str(path)!r}", got=f"too large an integer in row {row}", need=need, do=do)


# --- several files -----------------------------------------------------------------------------------------------


def _joined(tables: Sequence[pa.Table], paths: Sequence[Path]) -> pa.Table:
    """The rows of all `tables`; what is empty throughout one of them, be it deep inside, may have any type in it."""
    import pyarrow as pa

    plain = [table.replace_schema_metadata(None) for table in tables]
    whole = plain[0].schema
    for number, table in enumerate(plain):
        if any(_differences(whole, table.schema)):
            raise _no_parts([one.schema for one in plain[: number + 1]], paths)
        whole = pa.unify_schemas([whole, table.schema], promote_options="permissive")
    return pa.concat_tables(plain, promote_options="permissive") if len(plain) > 1 else plain[0]


def _no_parts(schemas: Sequence[pa.Schema], paths: Sequence[Path]) -> DataError:
    """Told of the last of `schemas`, and of the first that it differs from."""
    every = ((path, "; ".join(_differences(one, schemas[-1]))) for path, one in zip(paths, schemas, strict=False))
    path, differing = next((path, text) for path, text in every if text)
    what = f"{str(path)!r} and {paths[len(schemas) - 1].name!r} are no parts of one data set"
    do = "name them one by one, as several files"
    return DataError(what, got=differing, need="the same columns, of the same types", do=do)


def _differences(one: pa.Schema, other: pa.Schema) -> Iterator[str]:
    for name in dict.fromkeys([*one.names, *other.names]):
        here, there = (schema.field(name).type if name in schema.names else "missing" for schema in (one, other))
        if not _agree(here, there):
            yield f"column {name!r} is {here} here, {there} there"


def _agree(one: Any, other: Any) -> bool:
    """Whether a column can be of both Arrow types: where one is null, the other may be any."""
    from pyarrow import types

    if "null" in (str(one), str(other)):
        return True
    for are_lists in (types.is_list, types.is_large_list):
        if are_lists(one) and are_lists(other):
            return _agree(one.value_type, other.value_type)
    if types.is_struct(one) and types.is_struct(other):
        fields = [{field.name: field.type for field in kind} for kind in (one, other)]
        return fields[0].keys() == fields[1].keys() and all(_agree(fields[0][k], fields[1][k]) for k in fields[0])
    return one == other
