"""`purerl report`: what it prints, and how it refuses."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from purerl_cli.main import app
from tests.report.sample_runs import make_run


def test_it_tells_what_it_wrote(tmp_path: Path) -> None:
    runs = [str(make_run(tmp_path / name)) for name in ("one", "two")]
    done = CliRunner().invoke(app, ["report", *runs, "--output", str(tmp_path / "page.html"), "--megabytes", "1"])
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'page.html'}  0.1 MB, 16 completions\n")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_no_run_is_refused_without_a_traceback(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--output", str(tmp_path / "page.html")])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {str(tmp_path)!r} is not a run directory\n")
    assert "Traceback" not in done.output
    assert not (tmp_path / "page.html").exists()
