"""Reading data sets as they are stored, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.data.files import read_table
from purerl.errors import DataError

from .made import write

ROWS = [{"prompt": f"p{k}", "answer": k} for k in range(5)]


def _saved_to_disk(folder: Path, rows: list[dict]) -> Path:
    """As `datasets.save_to_disk` lays it out: Arrow streams, and what they are called."""
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (rows[:2], rows[2:]), strict=True):
        table = pa.Table.from_pylist(part)
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def test_every_way_to_store_rows_gives_the_same_rows(tmp_path: Path) -> None:
    whole = [write(tmp_path / "one" / name, ROWS) for name in ("rows.parquet", "rows.jsonl")]
    for number, part in enumerate((ROWS[:3], ROWS[3:])):
        write(tmp_path / "shards" / f"train-0000{number}-of-00002.parquet", part)
        write(tmp_path / "lines" / f"{number}.jsonl", part)
    folders = [tmp_path / "shards", tmp_path / "lines", _saved_to_disk(tmp_path / "saved", ROWS)]
    for path in (*whole, *folders, tmp_path / "shards" / "train-*.parquet", tmp_path / "lines" / "?.jsonl"):
        assert read_table(path).to_pylist() == ROWS, path


def test_a_column_that_is_empty_in_one_shard_has_the_type_of_the_others(tmp_path: Path) -> None:
    write(tmp_path / "0.jsonl", [{"prompt": "a", "note": None}])
    write(tmp_path / "1.jsonl", [{"prompt": "b", "note": "x"}])
    assert read_table(tmp_path).column("note").to_pylist() == [None, "x"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"note": None}, {"note": "x"}),
        ({"note": None}, {"note": {"a": [1]}}),
        ({"note": []}, {"note": [{"a": 1}]}),
        ({"note": [{"a": None, "b": []}]}, {"note": [{"b": ["x"], "a": 1}]}),
    ],
)
def test_what_is_empty_inside_one_shard_has_the_type_of_the_others(one: dict, other: dict, tmp_path: Path) -> None:
    for order in ((one, other, one), (other, one, other)):
        for number, inside in enumerate(order):
            write(tmp_path / f"{number}.jsonl", [{"prompt": "a", "info": inside}])
        assert [row["info"] for row in read_table(tmp_path).to_pylist()] == list(order)


def test_shards_that_differ_from_a_later_one_than_the_first_are_named(tmp_path: Path) -> None:
    for number, note in enumerate((None, "x", None, 3)):
        write(tmp_path / f"{number}.jsonl", [{"info": {"note": note}}])
    with pytest.raises(DataError) as caught:
        read_table(tmp_path)
    assert str(caught.value).startswith(
        f"{str(tmp_path / '1.jsonl')!r} and '3.jsonl' are no parts of one data set\n"
        "  got:  column 'info' is struct<note: string> here, struct<note: int64> there\n"
    )


def test_blank_lines_and_the_mark_of_utf8_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('\ufeff\n{"prompt": "a"}\n \t\n{"prompt": "b"}\n\n', encoding="utf-8")
    assert read_table(tmp_path / "rows.jsonl").to_pylist() == [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize("place", ["column", "inside"])
@pytest.mark.parametrize("kind", ["category", "view", "binary view", "fixed list", "large list"])
def test_types_that_few_of_arrows_functions_take_are_read_as_plain_ones(kind: str, place: str, tmp_path: Path) -> None:
    text = pa.array(["a", None, "a"])
    made, plain = {
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
    if place == "inside":
        made = pa.ListArray.from_arrays([0, 1, 1, 3], pa.StructArray.from_arrays([made], ["x"]))
        plain = pa.list_(pa.struct([("x", plain)]))
    table = pa.table({"rows": made})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    column = read_table(tmp_path / "rows.arrow").column("rows")
    assert (column.type, column.to_pylist()) == (plain, made.to_pylist())
    assert column.take([2]).to_pylist() == made.to_pylist()[2:]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["prompt", "answer", "prompt"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / "rows.parquet")
    assert str(caught.value) == (
        f"column 'prompt' of {str(tmp_path / 'rows.parquet')!r}\n  got:  2 columns of that name\n  need: one\n"
        "  do:   rename all but one of them, or leave them out"
    )


def test_nested_columns_come_back_as_they_are(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "a"}], "reward_model": {"style": "rule", "ground_truth": "1"}}
    for name in ("rows.parquet", "rows.jsonl"):
        assert read_table(write(tmp_path / name, [row])).to_pylist() == [row]


def test_one_directory_of_several_splits_is_none(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / "hub" / f"{split}-00000-of-00001.parquet", ROWS)
        write(tmp_path / "plain" / f"{split}.jsonl", ROWS)
        _saved_to_disk(tmp_path / "dict" / split, ROWS)
    (tmp_path / "dict" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for folder, one in (("hub", "train-00000-of-00001.parquet"), ("plain", "train.jsonl"), ("dict", "train")):
        with pytest.raises(DataError) as caught:
            read_table(tmp_path / folder)
        assert "several splits: " in str(caught.value)
        assert f"such as {tmp_path / folder / one}" in str(caught.value)
        assert read_table(tmp_path / folder / one).num_rows == 5


@pytest.mark.parametrize(
    ("files", "splits", "one"),
    [
        (["gsm8k_train", "gsm8k_test"], "test, train", "gsm8k_train.jsonl"),
        (["train-0-of-2-a09b", "train-1-of-2-b3ee", "test-0-of-1-c4"], "test, train", "train*.jsonl"),
        (["0000_train", "0001_train", "0000.Test"], "test, train", "*train*.jsonl"),
        (["a_train", "ab_train", "a_val"], "train, val", "*train*.jsonl"),
        (["train0", "train1", "train-dev"], "train, train-dev", "train0.jsonl"),
        (["val.0", "val.1", "testing"], "testing, val", "testing.jsonl"),
        (["extra", "train"], "train, files that name none", "train.jsonl"),
        (["rows-0", "rows-1", "more-0"], "more, rows", "more-0.jsonl"),
    ],
)
def test_a_split_is_a_word_of_the_name_however_shards_are_numbered(
    files: list[str], splits: str, one: str, tmp_path: Path
) -> None:
    for name in files:
        write(tmp_path / f"{name}.jsonl", ROWS)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path)
    assert str(caught.value) == (
        f"data set {str(tmp_path)!r}\n  got:  several splits: {splits}\n  need: one of them\n"
        f"  do:   name it, such as {tmp_path / one}"
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
        ("rows.csv", "prompt\nx\n", "data set 'rows.csv'\n  got:  a file that ends in '.csv'\n"),
        ("empty.jsonl", "", "data set 'empty.jsonl'\n  got:  no rows\n  need: at least one"),
        ("damaged.parquet", "no", "'damaged.parquet' cannot be read\n  got:  Parquet file size is 2 bytes"),
        ("damaged.arrow", "no", "'damaged.arrow' cannot be read\n"),
        ("broken.jsonl", '{"prompt": "a"}\n{"prompt": \n', "line 2 of 'broken.jsonl'\n  got:  Expecting value: line 2"),
        ("scalar.jsonl", "3\n", "line 1 of 'scalar.jsonl'\n  got:  a int\n  need: a JSON object"),
        (
            "mixed.jsonl",
            '{"prompt": null}\n{"prompt": "a"}\n{"prompt": [{"role": "user"}]}\n',
            (
                "column 'prompt' of 'mixed.jsonl'\n  got:  values of mixed types: str in row 1, list in row 2\n"
                "  need: one type in every row"
            ),
        ),
        (
            "inside.jsonl",
            '{"truth": {"a": 1}}\n{"truth": {"a": "b"}}\n',
            "column 'truth.a' of 'inside.jsonl'\n  got:  values of mixed types: int in row 0, str in row 1\n",
        ),
        (
            "parts.jsonl",
            '{"x": [{"a": null}]}\n\n{"x": [{"a": "b"}]}\n{"x": [null, {"a": [{"b": 1}]}]}\n',
            "column 'x[].a' of 'parts.jsonl'\n  got:  values of mixed types: str in row 1, list in row 2\n",
        ),
        (
            "great.jsonl",
            '{"x": 1}\n{"x": null}\n{"x": 9223372036854775808}\n{"x": 2}\n',
            (
                "column 'x' of 'great.jsonl'\n  got:  too large an integer in row 2\n"
                "  need: integers of 64 bits, or of 53 beside fractions\n  do:   write all of them as texts"
            ),
        ),
        (
            "great_beside.jsonl",
            '{"x": {"y": 1.5}}\n{"x": {"y": 9007199254740993}}\n',
            "column 'x' of 'great_beside.jsonl'\n  got:  too large an integer in row 1\n",
        ),
        ("digits.jsonl", '{"x": ' + "9" * 5000 + "}\n", "line 1 of 'digits.jsonl'\n  got:  Exceeds the limit"),
        ("deep.jsonl", "[" * 100_000, "line 1 of 'deep.jsonl'\n  got:  "),
        (
            "half.jsonl",
            '\n{"x": "\\ud83d\\ude00"}\n{"x": "\\ud83d"}\n',
            (
                "line 3 of 'half.jsonl'\n  got:  half of a character: '\\ud83d'\n"
                "  need: texts of whole characters\n  do:   write it whole, or take it out"
            ),
        ),
    ],
)
def test_a_file_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(DataError) as caught:
        read_table(name)
    assert str(caught.value).startswith(message)


def test_a_name_that_is_nearly_right(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", ROWS)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / "trian.parquet")
    assert str(caught.value) == (
        f"data set {str(tmp_path / 'trian.parquet')!r}\n"
        "  got:  no such file\n"
        "  need: a .parquet or .jsonl file, a pattern of such, or a directory of them\n"
        "  do:   did you mean 'train.parquet'?"
    )


def test_shards_that_differ_are_no_data_set(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", [{"prompt": "a", "answer": 1, "level": 1}])
    write(tmp_path / "1.parquet", [{"prompt": "b", "answer": "c"}])
    with pytest.raises(DataError) as caught:
        read_table(tmp_path)
    assert str(caught.value) == (
        f"{str(tmp_path / '0.parquet')!r} and '1.parquet' are no parts of one data set\n"
        "  got:  column 'answer' is int64 here, string there; column 'level' is int64 here, missing there\n"
        "  need: the same columns, of the same types\n"
        "  do:   name them one by one, as several files"
    )


def test_a_directory_of_two_formats_or_of_none(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"got:  a directory without \.parquet and \.jsonl files"):
        read_table(tmp_path / "none")
    write(tmp_path / "two" / "a.parquet", ROWS)
    write(tmp_path / "two" / "b.jsonl", ROWS)
    with pytest.raises(DataError, match="got:  Parquet and JSON Lines files"):
        read_table(tmp_path / "two")
