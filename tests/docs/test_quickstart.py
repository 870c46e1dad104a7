"""The quickstart works: its blocks run in order, with a smaller recipe."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from purerl.testing import other_process
from purerl_cli.main import app
from tests.loop.small import small

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "quickstart.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(?:\{code-block\} )?(\w+)\n(?::caption: (\S+)\n\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: its language, the name of the file that it is the content of, if any, and the code."""

    language: str
    file: str
    code: str


BLOCKS = [Block(*match) for match in FENCE.findall(PAGE)]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and a recipe of a few seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("purerl.recipes.addition.addition", small)
    other_process._process.cache_clear()  # a process that is already running has another sys.path


@pytest.mark.slow
@pytest.mark.usefixtures("workspace")
def test_blocks_run_in_order_and_print_what_the_page_shows():
    namespace = {"__name__": "__main__"}
    output = ""
    for language, file, code in BLOCKS:
        if file:
            Path(file).parent.mkdir(exist_ok=True)
            Path(file).write_text(code, encoding="utf-8")
        elif language == "python":
            with redirect_stdout(io.StringIO()) as stdout:
                exec(compile(code, "quickstart.md", "exec"), namespace)
            output = stdout.getvalue()
        elif language == "sh":
            output = "".join(_run(line) for line in code.splitlines())
        elif language == "text":
            assert output == code
    assert {path.name for path in Path("runs").iterdir()} == {"addition", "dr_grpo", "digits", "bounded"}


def _run(line: str) -> str:
    command, *arguments = shlex.split(line)
    if command != "purerl":
        return subprocess.run([command, *arguments], capture_output=True, text=True, check=True).stdout
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_block_is_run_except_the_installation():
    assert [language for language, *_ in BLOCKS].count("bash") == 1, "only the installation is not run"
    assert {language for language, *_ in BLOCKS} == {"bash", "sh", "python", "text"}
    assert len(BLOCKS) == PAGE.count("```") / 2


def test_installation_is_the_first_command_of_the_readme():
    install = next(code for language, _, code in BLOCKS if language == "bash").splitlines()[0]
    assert f"{install} && " in (ROOT / "README.md").read_text(encoding="utf-8")
