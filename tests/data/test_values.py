"""Odd types and values in data files: they are converted, or refused with the file, the column and the row."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.data.files import read_table
from purerl.errors import DataError


def _invalid_text(*values: bytes) -> pa.Array:
    """A string array with these bytes. Arrow does not check them."""
    binary = pa.array([*values], pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binary.buffers())


INVALID = _invalid_text(b"a", b"b", b"c\xff\xfe")
DUPLICATE = pa.StructArray.from_arrays([pa.array([1, 2, 3]), pa.array([4, 5, 6])], names=["a", "a"])


def _write(path: Path, **columns: Any) -> Path:
    prompts = {"prompt": [str(k) for k in range(len(next(iter(columns.values()))))]}
    parquet.write_table(pa.table(prompts | columns), path)
    return path


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (INVALID, "type string; row 2: text that is not valid UTF-8: b'c\\xff\\xfe'"),
        (INVALID.dictionary_encode(), "type string; row 2: text that is not valid UTF-8: b'c\\xff\\xfe'"),
        (
            pa.StructArray.from_arrays([INVALID], names=["content"]),
            "type struct<content: string>; row 2: text that is not valid UTF-8: b'c\\xff\\xfe'",
        ),
        (
            pa.array([None, None, 0], pa.timestamp("us", "Mars/Phobos")),
            "type timestamp[us, tz=Mars/Phobos]; row 2: a time in an unknown time zone",
        ),
        (
            pa.array([[0], [], [0, 10**17]], pa.list_(pa.duration("s"))),
            "type list<element: duration[s]>; row 2: OverflowError: ",
        ),
        (pa.array([0, 2**31 - 1], pa.date32()), "type date32[day]; row 1: OverflowError: "),
        (DUPLICATE, "type struct<a: int64, a: int64>; row 0: ValueError: "),
    ],
    ids=["text", "category", "nested text", "time zone", "duration", "date", "duplicate fields"],
)
def test_value_that_python_cannot_represent_is_refused_with_its_row(
    column: pa.Array, expected: str, tmp_path: Path
) -> None:
    path = _write(tmp_path / "rows.parquet", note=column)
    with pytest.raises(DataError) as caught:
        read_table(path)
    first, got, *others = str(caught.value).splitlines()
    assert first == f"column 'note' of {str(path)!r}"
    assert got.startswith(f"  got:  {expected}")
    assert others == [
        "  need: values that Python can represent",
        "  do:   correct the values, or remove the column",
    ]


def test_row_is_that_of_the_file_also_after_a_chunk(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.parquet", day=pa.array([0] * 3000 + [2**31 - 1], pa.date32()))
    with pytest.raises(DataError, match="row 3000: OverflowError"):
        read_table(path)


@pytest.mark.parametrize(
    "arrow_type", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.duration("ns")], ids=str
)
def test_nanoseconds_are_truncated_to_microseconds(arrow_type: pa.DataType, tmp_path: Path) -> None:
    values = pa.array([1_001, 1_999, 0], arrow_type)
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), values)
    table = read_table(_write(tmp_path / "rows.parquet", flat=values, nested=nested))
    flat = table.column("flat").combine_chunks()
    assert flat.cast(pa.int64()).to_pylist() == [1, 1, 0]
    assert table.column("nested").to_pylist() == [[value] for value in flat.to_pylist()]


def test_unusual_types_are_read(tmp_path: Path) -> None:
    columns = {
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "decimal": pa.array(["1.5"]).cast(pa.decimal128(10, 2)),
        "bytes": pa.array([b"\xff"]),
        "nan": pa.array([float("nan")]),
        "view": pa.array([["a"]], pa.list_view(pa.string())),
    }
    table = read_table(_write(tmp_path / "rows.parquet", **columns))
    assert table.select(["map", "bytes", "view"]).to_pylist() == [
        {"map": [("a", 1)], "bytes": b"\xff", "view": ["a"]},
    ]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"_data_files": []}', '{"_data_files": [1]}'])
def test_broken_list_of_files_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(DataError, match="state.json' cannot be read"):
        read_table(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", '{"splits": []}', '{"splits": 3}'])
def test_broken_list_of_splits_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text(content)
    with pytest.raises(DataError, match="dataset_dict.json' cannot be read"):
        read_table(tmp_path)


def test_file_without_rows_or_columns_is_refused(tmp_path: Path) -> None:
    for name, table in (("rows", pa.table({"prompt": pa.array([], pa.string())})), ("columns", pa.table({}))):
        parquet.write_table(table, tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match="no rows"):
            read_table(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize("seed", range(40))
def test_changed_bytes_of_a_file_are_a_data_error_or_no_error(seed: int, tmp_path: Path) -> None:
    rng, path = random.Random(seed), tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"prompt": ["1+1=", "2+2="], "answer": ["2", "4"]}), path, store_schema=False)
    content = bytearray(path.read_bytes())
    for _ in range(3):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)
    with suppress(DataError):  # any other exception is a failure
        read_table(path)


def test_value_that_cannot_be_sent_to_another_process_is_refused(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a"], "x": pa.array([pa.MonthDayNano([1, 2, 3])])})
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    with pytest.raises(DataError, match="row 0: PicklingError"):
        read_table(tmp_path)
