"""The page "Ten complaints": each of them names tests, and all of these exist."""

from __future__ import annotations

import ast
import re

import pytest

from .test_quickstart import ROOT

PAGE = ROOT / "docs" / "explanation" / "complaints.md"
TEST = re.compile(r"\[`(test_\w+)`\]\((\S+)\)")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:])


def _functions(path: str) -> set[str]:
    tree = ast.parse((PAGE.parent / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _missing(text: str) -> list[str]:
    return [name for name, path in TEST.findall(text) if name not in _functions(path)]


def test_there_are_ten() -> None:
    assert len(SECTIONS) == 10


@pytest.mark.parametrize("section", SECTIONS)
def test_every_test_that_is_named_exists(section: str) -> None:
    assert len(TEST.findall(SECTIONS[section])) >= 2
    assert _missing(SECTIONS[section]) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    path = "../../tests/docs/test_complaints.py"
    text = f"- [`test_there_are_ten`]({path})\n- [`test_there_are_eleven`]({path}), of the same file"
    assert _missing(text) == ["test_there_are_eleven"]
