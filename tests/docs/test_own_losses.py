"""The page "Testing your own loss": its files pass or fail as it says, and its commands run."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from purerl.testing import check_objective
from purerl.testing.losses.conventions import CONVENTIONS
from purerl_cli.main import app

from .test_quickstart import FENCE, ROOT, Block

PAGE = (ROOT / "docs" / "how-to" / "own_losses.md").read_text(encoding="utf-8")
BLOCKS = [Block(*match) for match in FENCE.findall(PAGE)]


@pytest.mark.slow
def test_files_and_commands_give_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    output, statuses, tests = "", [], []
    for language, file, code in BLOCKS:
        if file:
            Path(file).write_text(code, encoding="utf-8")
        if language == "python" and (not file or file.startswith("test_")):
            namespace: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(code, file or "own_losses.md", "exec"), namespace)
            tests += [call for name, call in namespace.items() if name.startswith("test_")]
        if language == "sh":
            result = CliRunner().invoke(app, shlex.split(code)[1:])
            output = result.stdout
            statuses.append(result.exit_code)
        if language == "text":
            assert _words(output)[: len(_words(code))] == _words(code)
    assert statuses == [1, 0, 0, 0, 0]
    assert [test.__name__ for test in tests] == ["test_clipped_has_the_errors_that_this_page_shows"]
    tests[0]()


def _words(text: str) -> list[str]:
    """The words of a table, whose widths depend on all of its rows."""
    return re.sub(r"─+", "", text).split()


def test_the_table_has_every_parameter() -> None:
    rows = [line for line in PAGE.partition("## Parameters")[2].splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)[`.]", row)}
    known = {name for convention in CONVENTIONS.values() for name in convention.arguments}
    assert known <= named


def test_the_table_has_every_option() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `--")]
    arguments = {row.split("|")[1].rsplit("`")[-2] for row in rows}
    assert arguments == set(inspect.signature(check_objective).parameters) - {"loss", "seed"}
