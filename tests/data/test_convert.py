"""Published data sets as files, on rows of their kind and, where they lie beside the repository, on all of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from purerl.data.convert import convert
from purerl.data.files import read_table
from purerl.data.inspect import inspect
from purerl.errors import ConfigError, DataError

from .made import user, write

PUBLISHED = Path(os.environ.get("PURERL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))

SUMS = [
    {"question": "Two boxes of 600 pens. How many pens?", "answer": "2 * 600 = <<2*600=1200>>1200\n#### 1,200"},
    {"question": "5 birds, 2 leave. How many stay?", "answer": "5 - 2 = 3\n#### 3"},
]
CODE = {
    "task_id": "Made/0",
    "prompt": 'def twice(x):\n    """Twice x."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def test_sums_as_messages_have_verls_columns(tmp_path: Path) -> None:
    target = tmp_path / "made" / "train.parquet"
    assert convert("gsm8k", write(tmp_path / "train.jsonl", SUMS), str(target)) == {str(target): 2}
    asked = 'Reason step by step. Give the answer on the last line, as a number after "#### ".'
    assert read_table(target).to_pylist()[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [user(f"{SUMS[0]['question']}\n\n{asked}")],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1200"},
        "extra_info": {"split": "train", "index": 0, **SUMS[0]},
    }


def test_sums_as_texts_have_two_columns_of_their_own(tmp_path: Path) -> None:
    convert("gsm8k", write(tmp_path / "train.jsonl", SUMS), str(tmp_path / "t.parquet"), form="text")
    rows = read_table(tmp_path / "t.parquet").to_pylist()
    assert [(row["prompt"], row["answer"]) for row in rows] == [
        (SUMS[0]["question"], "1200"),
        (SUMS[1]["question"], "3"),
    ]


@pytest.mark.parametrize("form", ["messages", "text"])
def test_code_keeps_what_its_tests_need(form: Any, tmp_path: Path) -> None:
    convert("humaneval", write(tmp_path / "test.jsonl", [CODE]), str(tmp_path / "t.parquet"), form=form)
    (row,) = read_table(tmp_path / "t.parquet").to_pylist()
    for name in ("task_id", "entry_point", "canonical_solution", "test"):
        assert row[name] == CODE[name]
    if form == "text":
        assert row["prompt"] == row["extra_info"]["prompt"] == CODE["prompt"]
        assert "answer" not in row
    else:
        assert f"```python\n{CODE['prompt']}\n```" in row["prompt"][0]["content"]
        assert row["reward_model"]["ground_truth"] == CODE["test"]


def test_a_directory_of_splits_becomes_one(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / "in" / f"{split}.jsonl", SUMS)
    found = convert("gsm8k", str(tmp_path / "in"), str(tmp_path / "out"))
    assert found == {str(tmp_path / "out" / f"{split}.parquet"): 2 for split in ("test", "train")}
    assert read_table(tmp_path / "out" / "test.parquet").to_pylist()[1]["extra_info"]["split"] == "test"


def test_what_is_no_such_data_set_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", SUMS)
    path = write(tmp_path / "in" / "b.jsonl", [{"question": "a", "answers": "b"}])
    with pytest.raises(DataError) as caught:
        convert("gsm8k", str(tmp_path / "in"), str(tmp_path / "out"))
    assert str(caught.value) == (
        f"{path!r} is not openai/gsm8k: no column 'answer'\n  got:  question, answers\n  need: question, answer"
    )
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="no data set is called 'gsm8'\n  do:   did you mean 'gsm8k'?"):
        convert("gsm8", path, str(tmp_path / "out"))


BAD_SUMS = {
    "null": (None, "nothing in column 'answer'", "a text"),
    "a number": (3, "a value of type int in column 'answer'", "a text"),
    "no mark": ("It is 3", "no right answer in column 'answer': 'It is 3'", "a solution, #### and the result"),
    "nothing after it": ("It is 3\n#### ", "no right answer in column 'answer': 'It is 3\\n#### '", "a solution, "),
}


@pytest.mark.parametrize("name", BAD_SUMS)
def test_a_row_that_says_no_right_answer_is_named(name: str, tmp_path: Path) -> None:
    answer, got, need = BAD_SUMS[name]
    sums = [{"question": "a", "answer": answer}] if isinstance(answer, int) else [*SUMS, {**SUMS[0], "answer": answer}]
    path = write(tmp_path / "train.jsonl", sums)
    with pytest.raises(DataError) as caught:
        convert("gsm8k", path, str(tmp_path / "t.parquet"))
    assert str(caught.value).startswith(f"row {len(sums) - 1} of {path!r}\n  got:  {got}\n  need: {need}")
    assert str(caught.value).endswith("\n  do:   mend that row, or take it out")
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize(("name", "got"), [("prompt", "nothing in column 'prompt'"), ("test", "no right answer in")])
def test_a_row_of_code_that_misses_something_is_named(name: str, got: str, tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", [CODE, {**CODE, name: " " if name == "test" else None}])
    with pytest.raises(DataError) as caught:
        convert("humaneval", path, str(tmp_path / "t.parquet"))
    assert str(caught.value).startswith(f"row 1 of {path!r}\n  got:  {got}")


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("in/train.jsonl", "in/test.parquet", "file"):
        (tmp_path / name).write_text("never read")
    (tmp_path / "out" / "train.parquet").mkdir(parents=True)
    for source, target, message in (
        ("in/train.jsonl", "out", f"target '{tmp_path}/out'\n  got:  a directory\n"),
        ("in", "out", f"target '{tmp_path}/out/train.parquet'\n  got:  a directory\n"),
        ("in", "file", f"target '{tmp_path}/file/train.parquet'\n  got:  '{tmp_path}/file', a file\n"),
        ("in/train.jsonl", "file/t", f"target '{tmp_path}/file/t'\n  got:  '{tmp_path}/file', a file\n"),
        ("in", "in", f"target '{tmp_path}/in/test.parquet'\n  got:  the file that is read\n"),
    ):
        with pytest.raises(ConfigError) as caught:
            convert("gsm8k", str(tmp_path / source), str(tmp_path / target))
        assert str(caught.value).startswith(message)
        assert "\n  do:   name " in str(caught.value)
    assert not list(tmp_path.rglob("*.partial"))


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    for name in ("test.jsonl", "test.parquet", "train.jsonl"):
        write(tmp_path / "in" / name, SUMS)
    with pytest.raises(DataError) as caught:
        convert("gsm8k", str(tmp_path / "in"), str(tmp_path / "out"))
    assert str(caught.value) == (
        f"data set {str(tmp_path / 'in')!r}\n"
        "  got:  test.jsonl and test.parquet, which would both become test.parquet\n"
        "  need: one file for each split\n"
        "  do:   take one of them out, or convert them one by one"
    )
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        convert("gsm8k", write(tmp_path / "in" / "train.jsonl", SUMS), str(tmp_path / "out" / "t.parquet"))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not (PUBLISHED / "gsm8k").is_dir(), reason="GSM8K is not there: set PURERL_TEST_DATA to its folder")
def test_all_of_gsm8k(tmp_path: Path) -> None:
    found = convert("gsm8k", str(PUBLISHED / "gsm8k"), str(tmp_path))
    assert [(Path(path).name, count) for path, count in found.items()] == [
        ("test.parquet", 1319),
        ("train.parquet", 7473),
    ]
    for path in found:
        rows = read_table(path).to_pylist()
        assert all(re.fullmatch(r"-?\d+(\.\d+)?", row["reward_model"]["ground_truth"]) for row in rows)
    assert inspect(str(tmp_path / "test.parquet")).problems == ()


@pytest.mark.skipif(not (PUBLISHED / "humaneval").is_dir(), reason="HumanEval is not there: set PURERL_TEST_DATA")
def test_all_of_humaneval_that_is_there(tmp_path: Path) -> None:
    found = convert("humaneval", str(PUBLISHED / "humaneval"), str(tmp_path))
    rows = read_table(*found).to_pylist()
    assert all(f"def {row['entry_point']}(" in row["prompt"][0]["content"] for row in rows)
    for row in rows[:5]:
        scope: dict[str, Any] = {}
        exec(row["extra_info"]["prompt"] + row["canonical_solution"] + row["test"], scope)
        scope["check"](scope[row["entry_point"]])
