"""examples/notebooks: stored without outputs, with links that exist. `nox -s notebooks` executes all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.library.test_scripts import _missing

from .test_links import LINK, _exists
from .test_quickstart import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def _cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def _code(path: Path) -> str:
    return "\n\n".join("".join(cell["source"]) for cell in _cells(path, "code"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_text_and_code_without_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = _cells(path, "code")
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
    assert "".join(_cells(path, "markdown")[0]["source"]).startswith("# ")
    assert "assert " in "".join(code[-1]["source"]), "the last cell checks what the text says"
    assert _missing(_code(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_notebooks_exist(path: Path) -> None:
    text = "\n".join("".join(cell["source"]) for cell in _cells(path, "markdown"))
    links = LINK.findall(text)
    assert links
    assert [link for link in links if not _exists(link, path.relative_to(ROOT).as_posix())] == []


def test_every_notebook_is_in_the_tutorials_and_in_the_readme() -> None:
    page = (ROOT / "docs" / "tutorials" / "notebooks.md").read_text(encoding="utf-8")
    listed = {Path(link).name for link in LINK.findall(page) if link.endswith(".ipynb")}
    assert listed == {path.name for path in NOTEBOOKS}
    assert len(NOTEBOOKS) == 3
    assert "docs/tutorials/notebooks.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_eight_algorithms_use_only_algos_and_print_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    [path] = [path for path in NOTEBOOKS if path.stem == "eight_algorithms"]
    modules = set(re.findall(r"^from (purerl[\w.]*) import", _code(path), re.MULTILINE))
    assert modules == {"purerl.algos", "purerl.algos.algebra"}
    exec(compile(_code(path), str(path), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    advantage = {" ".join(line.split()[:-12]): line.split()[-12:] for line in lines[1:10]}
    assert advantage["GRPO"][:4] == ["1.50", "-0.50", "-0.50", "-0.50"]
    assert advantage["RLOO"][:4] == ["1.00", "-0.33", "-0.33", "-0.33"]
    assert [line.split()[-4:] for line in lines if "tokens" in line and "GSPO" in line] == [["7", "of", "37", "tokens"]]
