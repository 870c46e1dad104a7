"""Reading of data sets from files and directories, and the errors for files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.data.files import read_table
from purerl.data.nested import rows_of
from purerl.errors import DataError

from .made import write

ROWS = [{"prompt": f"p{k}", "answer": k} for k in range(5)]


def _save_to_disk(directory: Path, rows: list[dict]) -> Path:
    """Write `rows` as `datasets.save_to_disk` does: Arrow streams, and a JSON file with their names."""
    directory.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (rows[:2], rows[2:]), strict=True):
        table = pa.Table.from_pylist(part)
        with pa.OSFile(str(directory / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    (directory / "dataset_info.json").write_text("{}")
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return directory


def test_all_storage_formats_give_the_same_rows(tmp_path: Path) -> None:
    files = [write(tmp_path / "one" / name, ROWS) for name in ("rows.parquet", "rows.jsonl")]
    for number, part in enumerate((ROWS[:3], ROWS[3:])):
        write(tmp_path / "shards" / f"train-0000{number}-of-00002.parquet", part)
        write(tmp_path / "lines" / f"{number}.jsonl", part)
    directories = [tmp_path / "shards", tmp_path / "lines", _save_to_disk(tmp_path / "saved", ROWS)]
    for path in (*files, *directories, tmp_path / "shards" / "train-*.parquet", tmp_path / "lines" / "?.jsonl"):
        assert read_table(path).to_pylist() == ROWS, path


def test_column_that_is_empty_in_one_shard_gets_its_type_from_the_others(tmp_path: Path) -> None:
    write(tmp_path / "0.jsonl", [{"prompt": "a", "note": None}])
    write(tmp_path / "1.jsonl", [{"prompt": "b", "note": "x"}])
    assert read_table(tmp_path).column("note").to_pylist() == [None, "x"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"note": None}, {"note": "x"}),
        ({"note": None}, {"note": {"a": [1]}}),
        ({"note": []}, {"note": [{"a": 1}]}),
        ({"note": [{"a": None, "b": []}]}, {"note": [{"b": ["x"], "a": 1}]}),
    ],
)
def test_nested_field_that_is_empty_in_one_shard_gets_its_type_from_the_others(
    first: dict, second: dict, tmp_path: Path
) -> None:
    for order in ((first, second, first), (second, first, second)):
        for number, info in enumerate(order):
            write(tmp_path / f"{number}.jsonl", [{"prompt": "a", "info": info}])
        assert [row["info"] for row in rows_of(read_table(tmp_path))] == list(order)


def test_shards_with_different_types_are_named_if_the_first_shard_is_compatible_with_both(tmp_path: Path) -> None:
    for number, note in enumerate((None, "x", None, 3)):
        write(tmp_path / f"{number}.parquet", [{"info": {"note": note}}])
    with pytest.raises(DataError) as caught:
        read_table(tmp_path)
    assert str(caught.value).startswith(
        f"{str(tmp_path / '1.parquet')!r} and '3.parquet' are not parts of one data set\n"
        "  got:  column 'info' is struct<note: string> in the first, struct<note: int64> in the second\n"
    )


def test_blank_lines_and_the_byte_order_mark_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('\ufeff\n{"prompt": "a"}\n \t\n{"prompt": "b"}\n\n', encoding="utf-8")
    assert read_table(tmp_path / "rows.jsonl").to_pylist() == [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize("level", ["column", "nested"])
@pytest.mark.parametrize("kind", ["category", "view", "binary view", "fixed list", "large list"])
def test_dictionary_and_view_types_are_read_as_simple_types(kind: str, level: str, tmp_path: Path) -> None:
    text = pa.array(["a", None, "a"])
    stored, simple = {
        "category": (text.dictionary_encode(), pa.string()),
        "view": (text.cast(pa.string_view()), pa.string()),
        "binary view": (text.cast(pa.binary()).cast(pa.binary_view()), pa.binary()),
        "fixed list": (
            pa.FixedSizeListArray.from_arrays(pa.array(list("abcaba")).dictionary_encode(), 2),
            pa.list_(pa.string(), 2),
        ),
        "large list": (
            pa.LargeListArray.from_arrays([0, 1, 1, 3], text.dictionary_encode()),
            pa.large_list(pa.string()),
        ),
    }[kind]
    if level == "nested":
        stored = pa.ListArray.from_arrays([0, 1, 1, 3], pa.StructArray.from_arrays([stored], ["x"]))
        simple = pa.list_(pa.struct([("x", simple)]))
    table = pa.table({"rows": stored})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    column = read_table(tmp_path / "rows.arrow").column("rows")
    assert (column.type, column.to_pylist()) == (simple, stored.to_pylist())
    assert column.take([2]).to_pylist() == stored.to_pylist()[2:]


def test_duplicate_column_names_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["prompt", "answer", "prompt"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / "rows.parquet")
    assert str(caught.value) == (
        f"column 'prompt' of {str(tmp_path / 'rows.parquet')!r}\n  got:  2 columns with this name\n  need: one\n"
        "  do:   rename or remove all but one of them"
    )


def test_nested_columns_are_read_without_changes(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "a"}], "reward_model": {"style": "rule", "ground_truth": "1"}}
    for name in ("rows.parquet", "rows.jsonl"):
        assert rows_of(read_table(write(tmp_path / name, [row]))) == [row]


def test_directory_of_several_splits_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / "hub" / f"{split}-00000-of-00001.parquet", ROWS)
        write(tmp_path / "plain" / f"{split}.jsonl", ROWS)
        _save_to_disk(tmp_path / "dict" / split, ROWS)
    (tmp_path / "dict" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for directory, path in (("hub", "train-00000-of-00001.parquet"), ("plain", "train.jsonl"), ("dict", "train")):
        with pytest.raises(DataError) as caught:
            read_table(tmp_path / directory)
        assert "several splits: " in str(caught.value)
        assert f"for example {tmp_path / directory / path}" in str(caught.value)
        assert read_table(tmp_path / directory / path).num_rows == 5


@pytest.mark.parametrize(
    ("files", "splits", "suggestion"),
    [
        (["gsm8k_train", "gsm8k_test"], "test, train", "gsm8k_train.jsonl"),
        (["train-0-of-2-a09b", "train-1-of-2-b3ee", "test-0-of-1-c4"], "test, train", "train*.jsonl"),
        (["0000_train", "0001_train", "0000.Test"], "test, train", "*train*.jsonl"),
        (["a_train", "ab_train", "a_val"], "train, val", "*train*.jsonl"),
        (["train0", "train1", "train-dev"], "train, train-dev", "train0.jsonl"),
        (["val.0", "val.1", "testing"], "testing, val", "testing.jsonl"),
        (["extra", "train"], "train, files without a split in their name", "train.jsonl"),
        (["rows-0", "rows-1", "more-0"], "more, rows", "more-0.jsonl"),
    ],
)
def test_split_is_found_in_file_names_with_any_shard_numbering(
    files: list[str], splits: str, suggestion: str, tmp_path: Path
) -> None:
    for name in files:
        write(tmp_path / f"{name}.jsonl", ROWS)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path)
    assert str(caught.value) == (
        f"data set {str(tmp_path)!r}\n  got:  several splits: {splits}\n  need: one split\n"
        f"  do:   use one of them, for example {tmp_path / suggestion}"
    )


@pytest.mark.parametrize(
    "files",
    [
        ["latest", "contest"],
        ["gsm8k_train", "math_train"],
        ["0000_train", "0001_train"],
        ["test-0-of-2-a0", "test-1-of-2-b"],
    ],
    ids=" ".join,
)
def test_files_of_one_split_are_one_data_set(files: list[str], tmp_path: Path) -> None:
    for name in files:
        write(tmp_path / f"{name}.jsonl", ROWS)
    assert read_table(tmp_path).num_rows == 10


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.csv", "prompt\nx\n", "data set 'rows.csv'\n  got:  a file with the extension '.csv'\n"),
        ("rows.json", "[]", "data set 'rows.json'\n  got:  a file with the extension '.json'\n"),
        ("empty.jsonl", "", "data set 'empty.jsonl'\n  got:  no rows\n  need: at least one"),
        ("damaged.parquet", "no", "'damaged.parquet' cannot be read\n  got:  Parquet file size is 2 bytes"),
        ("damaged.arrow", "no", "'damaged.arrow' cannot be read\n"),
        ("broken.jsonl", '{"prompt": "a"}\n{"prompt": \n', "line 2 of 'broken.jsonl'\n  got:  Expecting value: line 2"),
        ("scalar.jsonl", "3\n", "line 1 of 'scalar.jsonl'\n  got:  a value of type int\n  need: a JSON object"),
        (
            "twice.jsonl",
            '{"x": 1}\n{"x": {"a": [{"b": 1, "b": 2}]}}\n',
            "line 2 of 'twice.jsonl'\n  got:  an object with two values of the key 'b'\n  need: one JSON object",
        ),
        ("digits.jsonl", '{"x": ' + "9" * 5000 + "}\n", "line 1 of 'digits.jsonl'\n  got:  Exceeds the limit"),
        ("deep.jsonl", "[" * 100_000, "line 1 of 'deep.jsonl'\n  got:  "),
        (
            "half.jsonl",
            '\n{"x": "\\ud83d\\ude00"}\n{"x": "\\ud83d"}\n',
            (
                "line 3 of 'half.jsonl'\n  got:  half of a surrogate pair: '\\ud83d'\n"
                "  need: valid Unicode text\n  do:   complete or remove this character"
            ),
        ),
    ],
)
def test_file_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(DataError) as caught:
        read_table(name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "do"), [("a.csv", "convert it: from pyarrow import csv"), ("a.json", "write each row")]
)
def test_other_formats_are_refused_with_a_way_to_convert_them(tmp_path: Path, name: str, do: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(DataError, match=f"\n  do:   {do}"):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        '{"x": {"a": 1}}\n{"x": {"a": "b"}}\n',
        '{"x": [{"a": null}]}\n\n{"x": [{"a": "b"}]}\n{"x": [null, {"a": [{"b": 1}]}]}\n',
        '{"x": 1}\n{"x": null}\n{"x": 9223372036854775808}\n{"x": 2}\n',
        '{"x": {"y": 1.5}}\n{"x": {"y": 9007199254740993}}\n',
        '{"x": 1}\n{"x": 2.5}\n{"x": true}\n{"x": {}}\n',
        '{"x": [1, 2]}\n{"x": ["a", null, []]}\n',
    ],
)
def test_values_of_several_types_and_large_integers_are_read_as_they_are(text: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    rows = rows_of(read_table(tmp_path / "rows.jsonl"))
    assert list(map(repr, rows)) == [repr(json.loads(line)) for line in text.splitlines() if line]


def test_similar_file_name_is_suggested(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", ROWS)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / "trian.parquet")
    assert str(caught.value) == (
        f"data set {str(tmp_path / 'trian.parquet')!r}\n"
        "  got:  no such file\n"
        "  need: a .parquet or .jsonl file, a glob pattern, or a directory of such files\n"
        f"  do:   did you mean {str(tmp_path / 'train.parquet')!r}?"
    )


def test_shards_with_different_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", [{"prompt": "a", "answer": 1, "level": 1}])
    write(tmp_path / "1.parquet", [{"prompt": "b", "answer": "c"}])
    with pytest.raises(DataError) as caught:
        read_table(tmp_path)
    assert str(caught.value) == (
        f"{str(tmp_path / '0.parquet')!r} and '1.parquet' are not parts of one data set\n"
        "  got:  column 'answer' is int64 in the first, string in the second; "
        "column 'level' is int64 in the first, missing in the second\n"
        "  need: the same columns with the same types\n"
        "  do:   list them as separate files"
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("value", [1, "x", [1], {"a": 1}, [{"a": [1]}]])
def test_a_column_that_a_shard_does_not_have_is_named(suffix: str, value: Any, tmp_path: Path) -> None:
    for first, second in (({"answer": value}, {"more": value}), ({"more": 1}, {"answer": value})):
        write(tmp_path / f"0{suffix}", [{"prompt": "a", **first}])
        write(tmp_path / f"1{suffix}", [{"prompt": "b", **second}])
        with pytest.raises(
            DataError, match=r"not parts of one data set\n  got:  column '.*, missing in the second; col"
        ):
            read_table(tmp_path)


def test_directory_with_two_formats_or_without_data_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"got:  a directory without \.parquet and \.jsonl files"):
        read_table(tmp_path / "none")
    write(tmp_path / "two" / "a.parquet", ROWS)
    write(tmp_path / "two" / "b.jsonl", ROWS)
    with pytest.raises(DataError, match="got:  Parquet and JSON Lines files"):
        read_table(tmp_path / "two")
