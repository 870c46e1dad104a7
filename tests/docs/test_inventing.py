"""The page "Inventing an algorithm": its blocks run in order, with a smaller recipe, and print what the page shows."""

from __future__ import annotations

import io
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from purerl.testing import other_process
from purerl_cli.main import app
from tests.loop.small import small

from .test_quickstart import FENCE, ROOT, Block

PAGE = (ROOT / "docs" / "tutorials" / "inventing.md").read_text(encoding="utf-8")
BLOCKS = [Block(*match) for match in FENCE.findall(PAGE)]


@pytest.mark.slow
def test_blocks_run_in_order_and_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("purerl.recipes.addition.addition", small)
    other_process._process.cache_clear()  # a process that is already running has another sys.path
    namespace: dict[str, Any] = {"__name__": "__main__"}
    output = ""
    with torch.random.fork_rng():
        for language, file, code in BLOCKS:
            if file:
                Path(file).write_text(code, encoding="utf-8")
            elif language == "python":
                with redirect_stdout(io.StringIO()) as stdout:
                    exec(compile(code, "inventing.md", "exec"), namespace)
                output = stdout.getvalue()
            elif language == "sh":
                output = "".join(_run(line) for line in code.splitlines())
            else:
                assert output == code
    assert Path("curves.html").stat().st_size > 100_000


def _run(line: str) -> str:
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_block_is_run() -> None:
    assert {language for language, *_ in BLOCKS} == {"sh", "python", "text"}
    assert len(BLOCKS) == PAGE.count("```") / 2


def test_the_advantages_that_the_text_names() -> None:
    from purerl.algos import group_normalized_advantage

    for correct, advantage in ((1, "2.47"), (4, "0.94")):
        score = (torch.arange(8) < correct).double()
        values = group_normalized_advantage(score, torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.bool))
        assert f"{values[0]:.2f}" == advantage
        assert f"advantage {advantage}" in PAGE or f"are, {advantage}" in PAGE
