"""Code that no other test runs, benchmarks and examples in pages, imports only names that exist."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted(path for pattern in ("*.md", "docs/*.md", "docs/**/*.template") for path in ROOT.glob(pattern))
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def _imports(code: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name` of modules in this repository, also inside of functions."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("purerl", "benchmarks"):
            yield from ((node.module, alias.name) for alias in node.names)


def _missing(code: str) -> list[str]:
    missing = []
    for module, name in _imports(code):
        try:
            value = import_module(module)
            if not hasattr(value, name):
                import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            missing.append(f"from {module} import {name}: {error}")
    return missing


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_import_names_that_exist(path: Path) -> None:
    assert _missing(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_import_names_that_exist(path: Path) -> None:
    if path.name == "trl.md":
        pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
    blocks = [textwrap.dedent(block) for _, block in BLOCK.findall(path.read_text(encoding="utf-8"))]
    assert [line for block in blocks for line in _missing(block)] == []


def test_missing_names_are_found() -> None:
    code = "def f():\n    from purerl.seeds import derive_seed, no_such_name\n    from purerl.no_such_module import x\n"
    first, second = _missing(code)
    assert first.startswith("from purerl.seeds import no_such_name: ")
    assert second.startswith("from purerl.no_such_module import x: ")
