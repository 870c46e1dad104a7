"""`purerl data values`, from the evaluation of a model to the column of a data set."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.data.convert import write_parquet
from purerl.data.files import read_table
from purerl.recipes.addition import prepare
from purerl_cli.main import app

_SMALL_DIGIT = "tests.cli.rewards:starts_with_small_digit"


def _purerl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"})


def test_an_evaluation_of_the_reference_gives_the_values_of_its_prompts(tmp_path: Path) -> None:
    """The command line from the reference model to the data of A*-PO."""
    prepare(tmp_path, seed=0)
    rows = read_table(tmp_path / "held_out.parquet").slice(0, 6)
    write_parquet(tmp_path / "rows.parquet", rows)
    evaluated = _purerl(
        "eval", tmp_path / "model", "--data", tmp_path / "rows.parquet", "--reward", _SMALL_DIGIT,
        "--samples-per-prompt", 4, "--temperature", 1, "--max-tokens", 4, "--json", tmp_path / "all.json",
    )  # fmt: skip
    assert evaluated.exit_code == 0, evaluated.output
    files = tmp_path / "rows.parquet", tmp_path / "all.json", tmp_path / "values.parquet"
    result = _purerl("data", "values", *files, "--beta", "0.25")
    assert result.exit_code == 0, result.output
    values = read_table(tmp_path / "values.parquet")["optimal_value"].to_pylist()
    assert result.stdout == (
        f"{tmp_path}/values.parquet: 6 rows, optimal_value from {min(values):.3f} to {max(values):.3f}, "
        f"of 24 completions of {tmp_path}/model\n"
    )
    problems = json.loads((tmp_path / "all.json").read_text())["data"]["rows"]["problems"]
    fractions = [sum(attempt["reward"] for attempt in problem["attempts"]) / 4 for problem in problems]
    assert len({*fractions}) > 1
    assert values == pytest.approx([math.log(1 - p + p * math.exp(4)) / 4 for p in fractions])
