"""Files of completions that the report cannot read: each is left out, and a message names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from purerl.report.completions import select_completions
from purerl.report.page import write_report
from purerl_cli.main import app
from tests.report.sample_runs import make_evaluation, make_run

ROW = {"tokens": [1, 2], "action": [False, True], "group": 0, "reward": [0.0, 1.0]}


def _table(**changes: Any) -> pa.Table:
    return pa.Table.from_pylist([ROW | {"tokens": [1]} | {"action": [True], "reward": [1.0]}, ROW | changes])


def _without(name: str) -> pa.Table:
    return _table().drop_columns([name])


def _with(name: str, column: Any) -> pa.Table:
    return _table().append_column(name, column)


ODD: dict[str, tuple[pa.Table, str]] = {
    "no tokens": (_without("tokens"), "{path} has no column 'tokens'"),
    "no action": (_without("action"), "{path} has no column 'action'"),
    "no group": (_without("group"), "{path} has no column 'group'"),
    "no group in a row": (_table(group=None), "column 'group' of {path}\n  got:  no value in row 1"),
    "no tokens in a row": (_table(tokens=None), "column 'tokens' of {path}\n  got:  no value in row 1"),
    "no action of a token": (
        _table(action=[False, None]), "column 'action' of {path}\n  got:  a missing value in row 1"
    ),
    "tokens that are text": (_with("x", pa.array(["a", "b"])).drop_columns(["tokens"]).rename_columns(
        ["action", "group", "reward", "tokens"]), "column 'tokens' of {path}\n  got:  type string"),
    "too few rewards": (
        _table(reward=[1.0]), "column 'reward' of {path}\n  got:  1 values for 2 tokens in row 1"
    ),
    "negative token": (
        _table(tokens=[-1, 2]), "column 'tokens' of {path}\n  got:  a number that is not a token id in row 1"
    ),
    "prompt that is a number": (_with("prompt", pa.array([1, 2])), "column 'prompt' of {path}\n  got:  type int64"),
    "text that is not UTF-8": (
        _with("prompt", pa.Array.from_buffers(
            pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())), "column 'prompt' of {path}\n  got:  type string; row 1: text that is not valid UTF-8"  # noqa: E501
    ),
    "another table": (pa.table({"question": ["1+1="], "answer": ["2"]}), "{path} has no column 'tokens'"),
    "no columns": (pa.table({}), "{path} has no column 'tokens'"),
}  # fmt: skip


def _skipped(run: Path) -> list[str]:
    """The messages about the files of `run`, whose other steps are shown."""
    selection = select_completions(run, max_bytes=10**6)
    assert {group["step"] for group in selection["groups"]} == {1, 3}
    return selection["skipped"]


@pytest.mark.parametrize("name", ODD)
def test_odd_rollouts_are_left_out_with_a_message(name: str, tmp_path: Path) -> None:
    run, (table, message) = make_run(tmp_path / "run", steps=3), ODD[name]
    path = run / "rollouts" / "000002.parquet"
    parquet.write_table(table, path)
    [skipped] = _skipped(run)
    assert skipped.startswith(message.format(path=repr(str(path))))


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing", b"x" * 1000])
def test_broken_file_is_left_out_with_a_message(content: bytes, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    path = run / "rollouts" / "000002.parquet"
    path.write_bytes(content)
    [skipped] = _skipped(run)
    assert skipped.startswith(f"{str(path)!r} cannot be read\n  got:  ")
    assert skipped.endswith("  need: a complete Parquet file")


def test_truncated_file_is_left_out_and_a_file_with_another_name_is_ignored(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    path = run / "rollouts" / "000002.parquet"
    (run / "rollouts" / "notes.parquet").write_bytes(b"mine")
    path.write_bytes(path.read_bytes()[:-100])
    assert len(_skipped(run)) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["prompt"]),
        lambda table: table.drop_columns(["data_set"]),
        lambda table: table.set_column(0, "data_set", pa.array([1] * len(table))),
        lambda table: table.set_column(0, "data_set", pa.array(["a", None, "a", "a"])),
        lambda table: table.append_column("reward/x", pa.array(["high"] * len(table))),
    ],
)
def test_odd_evaluation_is_left_out_with_a_message(change: Callable[[pa.Table], pa.Table], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    for step in (0, 2):
        make_evaluation(run, step)
    path = run / "evaluations" / "000002.parquet"
    parquet.write_table(change(parquet.read_table(path)), path)
    selection = select_completions(run, max_bytes=10**6)
    [message] = selection["skipped"]
    assert str(path) in message.splitlines()[0]
    assert (selection["num_evaluations"], selection["num_stored_evaluations"]) == (1, 2)


def test_unusual_values_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    path = run / "rollouts" / "000001.parquet"
    table = parquet.read_table(path).replace_schema_metadata({b"pandas": b"not JSON", b"\xff": b"\xff"})
    nan = pa.array([[float("nan")] * len(tokens) for tokens in table["tokens"].to_pylist()])
    table = table.set_column(table.column_names.index("reward"), "reward", nan)
    table = table.append_column("day", pa.array([0] * len(table), pa.date32()))
    table = table.append_column("raw", pa.array([b"\xff"] * len(table)))
    parquet.write_table(table.drop_columns(["prompt", "completion", "finish", "row", "step", "advantage"]), path)
    selection = select_completions(run, max_bytes=10**6)
    json.dumps(selection, allow_nan=False)
    row = selection["groups"][0]["rows"][0]
    assert (row["reward"], row["extra"]["day"], row["extra"]["raw"]) == ("nan", "1970-01-01", "b'\\xff'")
    assert selection["skipped"] == []


def test_without_a_readable_tokenizer_the_ids_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    (run / "tokenizer" / "tokenizer.json").write_text("{")
    selection = select_completions(run, max_bytes=10**6)
    assert selection["skipped"][0].startswith(f"{str(run / 'tokenizer' / 'tokenizer.json')!r} cannot be read")
    assert selection["groups"][0]["prompt_tokens"]["text"][0].startswith("[")


def test_page_and_console_have_the_messages_and_the_page_keeps_its_size(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=40)
    for step in range(1, 40):
        (run / "rollouts" / f"{step:06d}.parquet").write_bytes(b"broken")
    report = write_report([run], tmp_path / "report.html", megabytes=0.2)
    assert (len(report.skipped), report.num_completions) == (39, 2)
    assert report.size <= 200_000
    assert "000007.parquet' cannot be read" in (tmp_path / "report.html").read_text()
    result = CliRunner().invoke(app, ["report", str(run), "--output", str(tmp_path / "report.html")])
    assert (result.exit_code, result.stderr.count("warning: left out: ")) == (0, 39)
    assert str(run / "rollouts" / "000007.parquet") in result.stderr
