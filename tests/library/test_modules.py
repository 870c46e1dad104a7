"""Rules for every module: its size, its `__all__`, and, in `algos`, no side effects."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import purerl
import purerl_cli

ROOTS = (Path(purerl.__file__).parent, Path(purerl_cli.__file__).parent)
FILES = [path for root in ROOTS for path in sorted(root.rglob("*.py"))]
ALGORITHM_FILES = [path for path in FILES if path.is_relative_to(ROOTS[0] / "algos")]
FUNCTION_TYPES = ast.FunctionDef | ast.AsyncFunctionDef


def _module_name(path: Path) -> str:
    root = next(root for root in ROOTS if path.is_relative_to(root))
    return ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, FUNCTION_TYPES)]


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "__main__.py"], ids=_module_name)
def test_all_is_sorted_and_its_names_exist(path: Path) -> None:
    module = import_module(_module_name(path))
    exported = getattr(module, "__all__", None)
    if exported is None:
        assert path.name == "__init__.py", "a module must define __all__"
        assert not _functions(path)
        return
    assert [name for name in exported if not hasattr(module, name)] == []
    assert len(set(exported)) == len(exported)
    assert list(exported) == sorted(exported, key=_sort_key)


def _sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts them (RUF022)."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


@pytest.mark.parametrize("path", FILES, ids=_module_name)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    lengths = {node.name: node.end_lineno - node.lineno + 1 for node in _functions(path) if node.end_lineno}
    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}


@pytest.mark.parametrize("path", ALGORITHM_FILES, ids=_module_name)
def test_algorithm_code_has_no_device_transfer_no_print_and_no_bool_argument(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = {ast.unparse(node.func).split(".")[-1] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert calls & {"item", "cpu", "tolist", "numpy", "print"} == set()
    arguments = [a for f in _functions(path) for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)]
    assert [a.arg for a in arguments if a.annotation and ast.unparse(a.annotation) == "bool"] == []
