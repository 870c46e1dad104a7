"""Files with many columns: what is read of them, and how long it takes."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from purerl.data.examples import read_examples, rendered_at, rows_at
from purerl.data.inspect import inspect
from purerl_cli.tables import show_report

ROWS, COLUMNS = 50, 20_000


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of prompts with 20,000 columns; the prompt is the last one."""
    path = tmp_path_factory.mktemp("wide") / "rows.parquet"
    others = {f"feature{k}": [k + row for row in range(ROWS)] for k in range(COLUMNS - 2)}
    own = {"answer": [str(2 * k) for k in range(ROWS)], "prompt": [f"{k}+{k}=" for k in range(ROWS)]}
    parquet.write_table(pa.table(others | own), path)
    return str(path)


def test_twenty_thousand_columns_are_inspected_in_five_seconds(wide: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    report = inspect(wide)
    show_report(report)
    assert time.process_time() - start < 5.0
    assert len(report.columns) == COLUMNS
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "large_string" in line or "string" in line] == [
        ["answer", "string", "0"],
        ["prompt", "string", "0"],
    ], "the columns that are used come first"
    assert sum("feature" in line for line in lines) == 198
    assert "  and 19,800 more columns" in lines


def test_report_of_a_file_with_few_columns_has_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "rows.parquet")
    parquet.write_table(pa.table({"first": [1], "prompt": ["a"]}), path)
    show_report(inspect(path))
    printed = capsys.readouterr().out
    names = [line.split()[0] for line in printed.splitlines() if line.rstrip().endswith(" 0")]
    assert names == ["first", "prompt"], "in the order of the file"
    assert "more columns" not in printed


def test_checks_read_only_what_is_rendered(wide: str) -> None:
    data = read_examples([wide], "prompts")
    start = time.process_time()
    rows = [row for _ in range(20) for row in rendered_at(data, data.indices)]
    assert time.process_time() - start < 2.0
    assert rows[3] == {"prompt": "3+3="}
    assert len(rows_at(data, [3])[0]) == COLUMNS


def test_columns_that_a_rendered_row_has(tmp_path: Path) -> None:
    """The settings of its template, its images and its label are rendered; its answer is for reward functions."""
    path = str(tmp_path / "rows.parquet")
    row = {
        "prompt": [{"role": "user", "content": "2+2=?"}],
        "completion": [{"role": "assistant", "content": "4"}],
        "label": True,
        "tools": '[{"name": "add"}]',
        "chat_template_kwargs": {"a": 1},
        "enable_thinking": False,
        "answer": "4",
    }
    parquet.write_table(pa.Table.from_pylist([row]), path)
    data = read_examples([path], "labels")
    [rendered], [whole] = rendered_at(data, [0]), rows_at(data, [0])
    assert rendered == {name: value for name, value in whole.items() if name != "answer"}
