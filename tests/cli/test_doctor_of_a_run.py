"""`purerl doctor RUN`: its output and exit statuses, for runs in any state."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl_cli.main import app
from tests.report.sample_runs import make_metrics, make_run


def _doctor(path: Path) -> Result:
    return CliRunner().invoke(app, ["doctor", str(path)], env={"COLUMNS": "40"})


def _metrics(step: int) -> dict[str, float]:
    return make_metrics(step) | {"policy/learning_rate": float(step > 6)}


@pytest.mark.parametrize("is_finished", [False, True])
def test_present_warning_is_printed_with_its_remedy_and_exits_with_status_1(tmp_path: Path, is_finished: bool) -> None:
    path = make_run(tmp_path / "run", steps=8, metrics=_metrics)
    if is_finished:
        (path / "summary.json").write_text("{}")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    result = _doctor(path)
    assert result.exit_code == 1
    assert (
        result.stdout
        == f"""\
{path}: step 8, 1 warning

zero_learning_rate  since step 5
         the learning rate was 0 in the last 5 steps
  cause  the schedule of the learning rate has ended, or never starts
  try    check trainer.lr, trainer.lr_scheduler, trainer.warmup_steps and trainer.min_lr_ratio
"""
    )
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_warning_that_has_ended_exits_with_status_0(tmp_path: Path) -> None:
    result = _doctor(make_run(tmp_path / "run", steps=20, metrics=_metrics))
    assert result.exit_code == 0
    assert "\nzero_learning_rate  steps 5 to 16\n" in result.stdout


def test_run_in_progress_with_an_incomplete_line_has_no_warnings(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", steps=3)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward/me')
    result = _doctor(path)
    assert (result.exit_code, result.stdout) == (0, f"{path}: step 3, no warnings\n")


def test_directory_that_is_no_run_exits_with_status_2(tmp_path: Path) -> None:
    result = _doctor(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {str(tmp_path)!r} is not a run directory\n")
