"""Limits of the structure: how a configuration is passed on, and how large the loop and its modules may become.

A limit is a decision. Who needs more changes it here, with a reason in the commit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

from purerl.loop.run import Run
from tests.guards.import_graph import circles, import_graph

ROOT = Path(__file__).parents[2]
PURERL = ROOT / "purerl"
OPENED = ("loop", "opening", "runs")  # packages that open a configuration and use it


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders or ("",) for path in (PURERL / folder).rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _is_of_config(annotation: ast.expr | None) -> bool:
    """Whether a value of this type may be a RunConfig; not whether it may be a mapping or a function of some."""
    if isinstance(annotation, ast.BinOp):
        return _is_of_config(annotation.left) or _is_of_config(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id == "RunConfig"


def _functions_of_configs(path: Path) -> Iterator[str]:
    for node in _nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            if any(_is_of_config(argument.annotation) for argument in arguments):
                yield node.name


def _classes_with_configs(path: Path) -> Iterator[str]:
    for node in _nodes(path):
        if isinstance(node, ast.ClassDef):
            fields = (each.annotation for each in node.body if isinstance(each, ast.AnnAssign))
            if any(map(_is_of_config, fields)):
                yield node.name


# --- a configuration is opened once --------------------------------------------------------------------------------


def test_few_functions_take_a_whole_configuration() -> None:
    """Others take its sections, its requirements, or what was opened."""
    found = {_name(path): [*_functions_of_configs(path)] for path in _files()}
    found = {name: functions for name, functions in found.items() if functions}
    assert sum(map(len, found.values())) <= 80, found
    assert len(found) <= 30, sorted(found)


def test_objects_have_no_configuration() -> None:
    """Except a configuration, which has an initial run, and a recording, which has that of its run."""
    found = {(_name(path), name) for path in _files() for name in _classes_with_configs(path)}
    assert found == {("purerl/config/schema.py", "RunConfig"), ("purerl/replay/recording.py", "Recording")}


def test_open_run_has_five_parts() -> None:
    assert [each.name for each in attrs.fields(Run)] == ["task", "engines", "learner", "source", "measures"]


def test_at_most_six_values_are_passed_by_position() -> None:
    calls = ((path, node) for path in _files(*OPENED) for node in _nodes(path) if isinstance(node, ast.Call))
    assert [f"{_name(path)}:{node.lineno}" for path, node in calls if len(node.args) > 6] == []


# --- sizes ---------------------------------------------------------------------------------------------------------


def test_purerl_has_27_packages_and_13_modules() -> None:
    packages = [path.parent.name for path in PURERL.glob("*/__init__.py")]
    modules = [path.stem for path in PURERL.glob("*.py") if path.stem != "__init__"]
    assert (len(packages), len(modules)) == (27, 13), (sorted(packages), sorted(modules))


@pytest.mark.parametrize(
    ("folder", "files", "lines"), [("loop", 16, 2100), ("loop/metrics", 5, 500), ("loop/callbacks", 3, 450)]
)
def test_loop_is_small(folder: str, files: int, lines: int) -> None:
    found = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in (PURERL / folder).glob("*.py")}
    assert len(found) <= files, sorted(found)
    assert sum(found.values()) <= lines, found


# --- imports -------------------------------------------------------------------------------------------------------


def test_modules_that_open_and_run_import_few_others() -> None:
    imported = import_graph()
    names = [name for name in imported if name.startswith(tuple(f"purerl.{package}" for package in OPENED))]
    assert {name: len(imported[name]) for name in names if len(imported[name]) > 32} == {}


def test_no_modules_import_each_other() -> None:
    """Every import counts, also in functions and for annotations."""
    assert circles(import_graph()) == []


def test_no_subpackages_of_an_engine_import_each_other() -> None:
    """The files of `backends/hf` are on the lines of one order: each imports from its own subpackage, or from above."""
    prefix = "purerl.backends.hf."
    graph = {name: imported for name, imported in import_graph().items() if name.startswith(prefix)}
    parts = {name: name.removeprefix(prefix).partition(".")[0] for name in graph}
    arrows: dict[str, set[str]] = {part: set() for part in parts.values()}
    for name, imported in graph.items():
        arrows[parts[name]] |= {parts[other] for other in imported if other in parts} - {parts[name]}
    assert circles(arrows) == []
    assert arrows["decoder"] == set()


# --- the rules find what breaks them -------------------------------------------------------------------------------


def test_functions_and_classes_with_a_configuration_are_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "def f(a, *, b: RunConfig | None = None): ...\n"
        "async def g(a: RunConfig): ...\n"
        "def h(a: Mapping[str, RunConfig]) -> RunConfig: ...\n"
        "class A:\n    config: RunConfig\n    def i(self, c: str | RunConfig): ...\n"
        "class B:\n    name: str\n"
    )
    assert sorted(_functions_of_configs(path)) == ["f", "g", "i"]
    assert [*_classes_with_configs(path)] == ["A"]
