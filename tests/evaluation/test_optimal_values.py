"""The column `optimal_value`, from an evaluation of the reference model."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from purerl.data.files import read_table
from purerl.errors import ConfigError, DataError
from purerl.evaluation.optimal_values import add_optimal_values
from tests.data.made import write

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}, {"prompt": "3+3=", "answer": "6"}]
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, None, 0.0, 0.0], [0.0, 1.0, None, None]]


def _evaluation(folder: Path, **changes: Any) -> str:
    """A file of `purerl eval --json`, with the problems in reverse order."""
    problems = [
        {"index": k, "ground_truth": row["answer"], "attempts": [{"reward": reward} for reward in rewards]}
        for k, (row, rewards) in enumerate(zip(ROWS, REWARDS, strict=True))
    ]
    content = {"model": "reference", "settings": {"temperature": 1.0}, "data": {"train": {"problems": problems[::-1]}}}
    path = folder / "evaluation.json"
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return str(path)


def _changed(folder: Path, problem: int, **changes: Any) -> str:
    """The same, with `changes` of one problem."""
    content = json.loads(Path(_evaluation(folder)).read_text(encoding="utf-8"))
    content["data"]["train"]["problems"][problem] |= changes
    return _evaluation(folder, data=content["data"])


def _add(folder: Path, evaluation: str, rows: list[dict[str, Any]] = ROWS, **options: Any) -> Any:
    options = {"beta": 0.5, "data_set": None} | options
    return add_optimal_values(
        write(folder / "rows.jsonl", rows), evaluation, str(folder / "out" / "values.parquet"), **options
    )


def test_each_row_gets_the_value_of_its_completions_that_have_a_reward(tmp_path: Path) -> None:
    added = _add(tmp_path, _evaluation(tmp_path))
    expected = [0.5 * math.log((1 + math.exp(2)) / 2), 0.0, 0.5 * math.log((1 + math.exp(2)) / 2)]
    assert added.values == pytest.approx(expected)
    assert (added.model, added.completions) == ("reference", 9)
    rows = read_table(tmp_path / "out" / "values.parquet").to_pylist()
    assert [row.pop("optimal_value") for row in rows] == list(added.values)
    assert rows == ROWS


def test_beta_chooses_between_the_mean_and_the_best_reward(tmp_path: Path) -> None:
    evaluation = _evaluation(tmp_path)
    assert _add(tmp_path, evaluation, beta=1e4).values == pytest.approx([0.5, 0, 0.5], abs=1e-4)
    assert _add(tmp_path, evaluation, beta=1e-4).values == pytest.approx([1, 0, 1], abs=1e-3)


def test_one_of_several_data_sets_is_named(tmp_path: Path) -> None:
    problems = json.loads(Path(_evaluation(tmp_path)).read_text(encoding="utf-8"))["data"]["train"]
    evaluation = _evaluation(tmp_path, data={"train": problems, "test": {"problems": []}})
    with pytest.raises(ConfigError, match="got:  the data sets train, test\n  need: one of them\n  do:   name it: --"):
        _add(tmp_path, evaluation)
    with pytest.raises(ConfigError, match="--data-set 'trian'\n  got:  only train, test\n  do:   did you mean 'train'"):
        _add(tmp_path, evaluation, data_set="trian")
    assert len(_add(tmp_path, evaluation, data_set="train").values) == 3


def _message(folder: Path, evaluation: str, **options: Any) -> str:
    with pytest.raises((ConfigError, DataError)) as error:
        _add(folder, evaluation, **options)
    assert not (folder / "out").exists(), "nothing is written"
    return str(error.value).replace(str(folder), "DIR")


def test_an_evaluation_of_other_rows_is_refused(tmp_path: Path) -> None:
    evaluation, do = _evaluation(tmp_path), "  do:   evaluate all rows of 'DIR/rows.jsonl', without --max-examples"
    assert _message(tmp_path, evaluation, rows=[*ROWS, ROWS[0]]) == (
        "evaluation 'DIR/evaluation.json'\n"
        "  got:  3 problems\n"
        "  need: the 4 rows of 'DIR/rows.jsonl'\n" + do
    )  # fmt: skip
    assert _message(tmp_path, evaluation, rows=[ROWS[0], ROWS[2], ROWS[1]]) == (
        "evaluation 'DIR/evaluation.json': ground truth of row 1\n"
        "  got:  '4'\n"
        "  need: '6', as in 'DIR/rows.jsonl'\n" + do
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "got:  greedy decoding\n  need: completions that the model has sampled\n  do:   evaluate"),
        (None, "got:  another content\n  need: a file of `purerl eval --json`"),
    ],
)
def test_an_evaluation_without_samples_is_refused(tmp_path: Path, settings: Any, message: str) -> None:
    evaluation = _evaluation(tmp_path, settings=settings)
    if settings is None:
        Path(evaluation).write_text('{"settings": 1}', encoding="utf-8")
    assert message in _message(tmp_path, evaluation)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    evaluation = tmp_path / "evaluation.json"
    assert "got:  FileNotFoundError" in _message(tmp_path, str(evaluation))
    evaluation.write_text("{", encoding="utf-8")
    assert "got:  JSONDecodeError" in _message(tmp_path, str(evaluation))


def test_a_row_without_any_reward_is_refused(tmp_path: Path) -> None:
    evaluation = _changed(tmp_path, 1, attempts=[{"reward": None}])
    assert _message(tmp_path, evaluation) == (
        "evaluation 'DIR/evaluation.json': row 1\n"
        "  got:  no completion with a reward\n"
        "  need: at least one\n"
        "  do:   remove the row, or evaluate again"
    )


def test_a_column_is_not_replaced(tmp_path: Path) -> None:
    rows = [{**row, "optimal_value": 0.0} for row in ROWS]
    assert "got:  a column 'optimal_value'\n" in _message(tmp_path, _evaluation(tmp_path), rows=rows)


@pytest.mark.parametrize("beta", [0.0, -1.0, math.inf, math.nan])
def test_beta_is_a_finite_number_above_0(tmp_path: Path, beta: float) -> None:
    message = _message(tmp_path, _evaluation(tmp_path), beta=beta)
    assert message == f"beta\n  got:  {beta}\n  need: a finite number above 0"


def test_a_target_that_is_no_parquet_file_or_the_evaluation_is_refused(tmp_path: Path) -> None:
    rows, evaluation = write(tmp_path / "rows.jsonl", ROWS), _evaluation(tmp_path)
    for target, message in (
        (tmp_path / "out.jsonl", "got:  the suffix '.jsonl'\n  need: a file .parquet"),
        (tmp_path / "evaluation.parquet", "got:  the evaluation"),
    ):
        results = shutil.copy(evaluation, tmp_path / "evaluation.parquet")
        with pytest.raises(ConfigError, match=message):
            add_optimal_values(rows, str(results), str(target), beta=0.5, data_set=None)


@pytest.mark.parametrize("changes", [{"settings": {}}, {"settings": 1}, {"data": {}}, {"data": []}])
def test_an_evaluation_with_another_structure_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert "got:  no temperature or no data" in _message(tmp_path, _evaluation(tmp_path, **changes))
