"""`purerl report`: its output, and the refusal of a directory that is not a run."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from purerl_cli.main import app
from tests.report.sample_runs import make_run


def test_report_prints_path_size_and_number_of_completions(tmp_path: Path) -> None:
    runs = [str(make_run(tmp_path / name)) for name in ("first", "second")]
    result = CliRunner().invoke(app, ["report", *runs, "--output", str(tmp_path / "page.html"), "--megabytes", "1"])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'page.html'}  0.1 MB, 16 completions\n")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_directory_without_a_run_is_refused_without_a_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--output", str(tmp_path / "page.html")])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {str(tmp_path)!r} is not a run directory\n")
    assert "Traceback" not in result.output
    assert not (tmp_path / "page.html").exists()
