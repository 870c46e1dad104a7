"""Reading data sets, what is refused, and the order of draws."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from purerl.data.examples import draws, read_examples, take
from purerl.errors import DataError

ROWS = [{"prompt": f"p{k}", "answer": k} for k in range(5)]


@pytest.fixture(params=["parquet", "jsonl"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_rows_come_back(file: Path) -> None:
    table = read_examples(file, ["prompt"])
    assert take(table, [3, 0]) == [ROWS[3], ROWS[0]]
    assert read_examples(file, ["prompt"], limit=2).num_rows == 2


def test_a_missing_column_is_named(file: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_examples(file, ["prompt", "completion"])
    assert str(caught.value) == (
        f"data set {str(file)!r} has no column 'completion'\n"
        "  got:  prompt, answer\n"
        "  need: a column 'completion' of text"
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.parquet", None, "no such file"),
        ("rows.csv", "prompt\nx\n", "a file that ends in '.csv'"),
        ("empty.jsonl", "", "no rows"),
        ("broken.jsonl", '{"prompt": "a"}\n{"prompt": \n', "line 2 of"),
        ("scalar.jsonl", "3\n", "line 1 of"),
        ("typed.jsonl", '{"prompt": 3}\n', "type int64"),
        ("mixed.jsonl", '{"prompt": "a"}\n{"prompt": 3}\n', "mixed"),
        ("gap.jsonl", '{"prompt": "a"}\n{"other": "b"}\n', "nothing in row 1"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_examples(tmp_path / name, ["prompt"])


def test_every_pass_is_a_permutation_and_passes_differ() -> None:
    first, second = draws(50, 3, 0, 50), draws(50, 3, 50, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert draws(50, 4, 0, 50) != first


def test_the_order_does_not_depend_on_how_it_is_cut() -> None:
    assert [*draws(7, 0, 0, 5), *draws(7, 0, 5, 11), *draws(7, 0, 16, 4)] == draws(7, 0, 0, 20)
