"""The quickstart is run as it is written: every block in its order, with a smaller recipe."""

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
FENCE = re.compile(r"^```(?:\{code-block\} )?(\w+)\n(?::caption: (\S+)\n\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: what it is written in, the file that it is, if it is one, and the code."""

    language: str
    file: str
    code: str


BLOCKS = [Block(*found) for found in FENCE.findall((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8"))]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, and a recipe that is over at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("purerl.recipes.addition.addition", small)
    other_process._process.cache_clear()  # one that is running knows nothing of this folder


@pytest.mark.usefixtures("desk")
def test_every_block_does_what_it_says():
    names = {"__name__": "__main__"}
    printed = ""
    for language, file, code in BLOCKS:
        if file:
            Path(file).parent.mkdir(exist_ok=True)
            Path(file).write_text(code, encoding="utf-8")
        elif language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(code, "quickstart.md", "exec"), names)
            printed = out.getvalue()
        elif language == "sh":
            printed = "".join(_shell(line) for line in code.splitlines())
        elif language == "text":
            assert printed == code
    assert {path.name for path in Path("runs").iterdir()} == {"addition", "dr_grpo", "digits", "bounded"}


def _shell(line: str) -> str:
    command, *arguments = shlex.split(line)
    if command != "purerl":
        return subprocess.run([command, *arguments], capture_output=True, text=True, check=True).stdout
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_no_block_is_left_out():
    assert [language for language, *_ in BLOCKS].count("bash") == 1, "installing alone is not tried out"
    assert {language for language, *_ in BLOCKS} == {"bash", "sh", "python", "text"}
    assert len(BLOCKS) == (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8").count("```") / 2


def test_it_installs_as_the_readme_does():
    install = next(code for language, _, code in BLOCKS if language == "bash").splitlines()[0]
    assert f"{install} && " in (ROOT / "README.md").read_text(encoding="utf-8")
