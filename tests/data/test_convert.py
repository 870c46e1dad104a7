"""Conversion of published data sets: on small examples, and on the complete data sets if they are available."""

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

from .made import assistant, user, write

PUBLISHED = Path(os.environ.get("PURERL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))

GSM8K = [
    {"question": "Two boxes of 600 pens. How many pens?", "answer": "2 * 600 = <<2*600=1200>>1200\n#### 1,200"},
    {"question": "5 birds, 2 leave. How many stay?", "answer": "5 - 2 = 3\n#### 3"},
]
HUMANEVAL = {
    "task_id": "Made/0",
    "prompt": 'def twice(x):\n    """Twice x."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def test_gsm8k_as_messages_has_the_columns_of_verl(tmp_path: Path) -> None:
    target = tmp_path / "new" / "train.parquet"
    assert convert("gsm8k", write(tmp_path / "train.jsonl", GSM8K), str(target)) == {str(target): 2}
    instruction = 'Reason step by step. Give the answer on the last line, as a number after "#### ".'
    assert read_table(target).to_pylist()[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [user(f"{GSM8K[0]['question']}\n\n{instruction}")],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1200"},
        "completion": [assistant("2 * 600 = 1200\n#### 1,200")],
        "extra_info": {"split": "train", "index": 0, **GSM8K[0]},
    }


def test_gsm8k_as_text_has_prompt_answer_and_completion(tmp_path: Path) -> None:
    convert("gsm8k", write(tmp_path / "train.jsonl", GSM8K), str(tmp_path / "t.parquet"), prompt_format="text")
    rows = read_table(tmp_path / "t.parquet").to_pylist()
    assert [(row["prompt"], row["answer"], row["completion"]) for row in rows] == [
        (GSM8K[0]["question"], "1200", "\n2 * 600 = 1200\n#### 1,200"),
        (GSM8K[1]["question"], "3", "\n5 - 2 = 3\n#### 3"),
    ]


def test_math_as_messages_and_as_text_says_where_the_result_goes(tmp_path: Path) -> None:
    row = {"problem": "What is $\\frac{1}{2}+\\frac{1}{2}$?", "answer": "1", "level": 1}
    source = write(tmp_path / "test.jsonl", [row])
    convert("math", source, str(tmp_path / "messages.parquet"))
    [message] = read_table(tmp_path / "messages.parquet").to_pylist()
    assert message["prompt"] == [
        user(f"{row['problem']}\n\nReason step by step. Put the result of the problem into \\boxed{{}}.")
    ]
    assert message["data_source"] == "DigitalLearningGmbH/MATH-lighteval"
    assert message["reward_model"] == {"style": "rule", "ground_truth": "1"}
    convert("math", source, str(tmp_path / "text.parquet"), prompt_format="text")
    [text] = read_table(tmp_path / "text.parquet").to_pylist()
    frame = "Solve the problem. Put the result into \\boxed{}.\n\nProblem:\n"
    assert (text["prompt"], text["answer"]) == (f"{frame}{row['problem']}\n\nSolution:\n", "1")


def test_ground_truth_of_reverse_text_is_the_reversed_prompt(tmp_path: Path) -> None:
    convert("reverse_text", write(tmp_path / "train.jsonl", [{"prompt": "a {b} c"}]), str(tmp_path / "t.parquet"))
    [row] = read_table(tmp_path / "t.parquet").to_pylist()
    assert row["reward_model"]["ground_truth"] == "c }b{ a"
    assert row["prompt"][0]["content"].endswith("</reversed_text>.\n\na {b} c")


@pytest.mark.parametrize("prompt_format", ["messages", "text"])
def test_humaneval_keeps_the_columns_that_its_tests_need(prompt_format: Any, tmp_path: Path) -> None:
    convert(
        "humaneval",
        write(tmp_path / "test.jsonl", [HUMANEVAL]),
        str(tmp_path / "t.parquet"),
        prompt_format=prompt_format,
    )
    (row,) = read_table(tmp_path / "t.parquet").to_pylist()
    for name in ("task_id", "entry_point", "canonical_solution", "test"):
        assert row[name] == HUMANEVAL[name]
    if prompt_format == "text":
        assert row["prompt"] == row["extra_info"]["prompt"] == HUMANEVAL["prompt"]
        assert "answer" not in row
    else:
        assert f"```python\n{HUMANEVAL['prompt']}\n```" in row["prompt"][0]["content"]
        assert row["reward_model"]["ground_truth"] == HUMANEVAL["test"]


def test_directory_of_splits_is_converted_to_a_directory(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / "in" / f"{split}.jsonl", GSM8K)
    row_counts = convert("gsm8k", str(tmp_path / "in"), str(tmp_path / "out"))
    assert row_counts == {str(tmp_path / "out" / f"{split}.parquet"): 2 for split in ("test", "train")}
    assert read_table(tmp_path / "out" / "test.parquet").to_pylist()[1]["extra_info"]["split"] == "test"


def test_other_data_set_is_refused_and_no_file_is_written(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", GSM8K)
    path = write(tmp_path / "in" / "b.jsonl", [{"question": "a", "answers": "b"}])
    with pytest.raises(DataError) as caught:
        convert("gsm8k", str(tmp_path / "in"), str(tmp_path / "out"))
    assert str(caught.value) == (
        f"{path!r} is not openai/gsm8k: it has no column 'answer'\n  got:  question, answers\n  need: question, answer"
    )
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="unknown data set 'gsm8'\n  do:   did you mean 'gsm8k'?"):
        convert("gsm8", path, str(tmp_path / "out"))


INVALID_ANSWERS = {
    "null": (None, "no value in column 'answer'", "a string"),
    "number": (3, "a value of type int in column 'answer'", "a string"),
    "no marker": ("It is 3", "no ground truth in column 'answer': 'It is 3'", "a solution that ends with #### and the"),
    "empty": ("It is 3\n#### ", "no ground truth in column 'answer': 'It is 3\\n#### '", "a solution that ends with "),
}


@pytest.mark.parametrize("name", INVALID_ANSWERS)
def test_gsm8k_row_without_ground_truth_is_named(name: str, tmp_path: Path) -> None:
    answer, got, need = INVALID_ANSWERS[name]
    row = {**GSM8K[0], "answer": answer}
    rows = [row] if isinstance(answer, int) else [*GSM8K, row]
    path = write(tmp_path / "train.jsonl", rows)
    with pytest.raises(DataError) as caught:
        convert("gsm8k", path, str(tmp_path / "t.parquet"))
    assert str(caught.value).startswith(f"row {len(rows) - 1} of {path!r}\n  got:  {got}\n  need: {need}")
    assert str(caught.value).endswith("\n  do:   fix that row, or remove it")
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize(("name", "got"), [("prompt", "no value in column 'prompt'"), ("test", "no ground truth in")])
def test_humaneval_row_with_missing_value_is_named(name: str, got: str, tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", [HUMANEVAL, {**HUMANEVAL, name: " " if name == "test" else None}])
    with pytest.raises(DataError) as caught:
        convert("humaneval", path, str(tmp_path / "t.parquet"))
    assert str(caught.value).startswith(f"row 1 of {path!r}\n  got:  {got}")


def test_invalid_target_is_refused_before_the_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("in/train.jsonl", "in/test.parquet", "file"):
        (tmp_path / name).write_text("never read")
    (tmp_path / "out" / "train.parquet").mkdir(parents=True)
    for source, target, message in (
        ("in/train.jsonl", "out", f"target '{tmp_path}/out'\n  got:  a directory\n"),
        ("in", "out", f"target '{tmp_path}/out/train.parquet'\n  got:  a directory\n"),
        ("in", "file", f"target '{tmp_path}/file/train.parquet'\n  got:  '{tmp_path}/file', which is a file\n"),
        ("in/train.jsonl", "file/t", f"target '{tmp_path}/file/t'\n  got:  '{tmp_path}/file', which is a file\n"),
        ("in", "in", f"target '{tmp_path}/in/test.parquet'\n  got:  the source file\n"),
    ):
        with pytest.raises(ConfigError) as caught:
            convert("gsm8k", str(tmp_path / source), str(tmp_path / target))
        assert str(caught.value).startswith(message)
        assert "\n  do:   use " in str(caught.value)
    assert not list(tmp_path.rglob("*.partial"))


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    for name in ("test.jsonl", "test.parquet", "train.jsonl"):
        write(tmp_path / "in" / name, GSM8K)
    with pytest.raises(DataError) as caught:
        convert("gsm8k", str(tmp_path / "in"), str(tmp_path / "out"))
    assert str(caught.value) == (
        f"data set {str(tmp_path / 'in')!r}\n"
        "  got:  test.jsonl and test.parquet, which would both be converted to test.parquet\n"
        "  need: one file per split\n"
        "  do:   remove one of them, or convert each file with its own command"
    )
    assert not (tmp_path / "out").exists()


def test_failed_write_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        convert("gsm8k", write(tmp_path / "in" / "train.jsonl", GSM8K), str(tmp_path / "out" / "t.parquet"))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not (PUBLISHED / "gsm8k").is_dir(), reason="GSM8K is not available: set PURERL_TEST_DATA")
def test_complete_gsm8k_is_converted(tmp_path: Path) -> None:
    row_counts = convert("gsm8k", str(PUBLISHED / "gsm8k"), str(tmp_path))
    assert [(Path(path).name, count) for path, count in row_counts.items()] == [
        ("test.parquet", 1319),
        ("train.parquet", 7473),
    ]
    for path in row_counts:
        rows = read_table(path).to_pylist()
        assert all(re.fullmatch(r"-?\d+(\.\d+)?", row["reward_model"]["ground_truth"]) for row in rows)
    assert inspect(str(tmp_path / "test.parquet")).problems == ()


@pytest.mark.skipif(not (PUBLISHED / "humaneval").is_dir(), reason="HumanEval is not available: set PURERL_TEST_DATA")
def test_complete_humaneval_is_converted(tmp_path: Path) -> None:
    row_counts = convert("humaneval", str(PUBLISHED / "humaneval"), str(tmp_path))
    rows = read_table(*row_counts).to_pylist()
    assert all(f"def {row['entry_point']}(" in row["prompt"][0]["content"] for row in rows)
    for row in rows[:5]:
        scope: dict[str, Any] = {}
        exec(row["extra_info"]["prompt"] + row["canonical_solution"] + row["test"], scope)
        scope["check"](scope[row["entry_point"]])
