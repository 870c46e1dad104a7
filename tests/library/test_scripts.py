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
PATTERNS = ("*.md", "docs/*.md", "docs/[!_]*/*.md", "docs/how-to/skills/*.md", "docs/**/*.template")
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def _imports(code: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name` of modules in this repository, also inside of functions."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("purerl", "benchmarks"):
            yield from ((node.module, alias.name) for alias in node.names)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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


def _missing_of_page(path: Path) -> list[str]:
    blocks = [textwrap.dedent(block) for _, block in BLOCK.findall(path.read_text(encoding="utf-8"))]
    return [line for block in blocks for line in _missing(block)]


def test_scripts_import_names_that_exist() -> None:
    missing = {_name(path): _missing(path.read_text(encoding="utf-8")) for path in SCRIPTS}
    assert {name: lines for name, lines in missing.items() if lines} == {}


def test_pages_import_names_that_exist() -> None:
    missing = {_name(path): _missing_of_page(path) for path in PAGES if path.name != "algorithms_in_trl.md"}
    assert {name: lines for name, lines in missing.items() if lines} == {}


def test_page_about_trl_imports_names_that_exist() -> None:
    pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
    [path] = [path for path in PAGES if path.name == "algorithms_in_trl.md"]
    assert _missing_of_page(path) == []


def test_missing_names_are_found() -> None:
    code = "def f():\n    from purerl.seeds import derive_seed, no_such_name\n    from purerl.no_such_module import x\n"
    first, second = _missing(code)
    assert first.startswith("from purerl.seeds import no_such_name: ")
    assert second.startswith("from purerl.no_such_module import x: ")
