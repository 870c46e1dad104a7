"""The tests of a file of purerl, an algorithm, or any other module.

    python -m tests.find purerl/loop/window.py
    python -m tests.find dapo

First those with the name of the file, then those that import it or name it in a text. If there are none, those of the
modules that import it, and otherwise all of its package. Each with its first sentence.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

from tests.library.import_rules import imports
from tests.library.sources import nodes, shared

__all__ = ["tests_of"]

ROOT = Path(__file__).parents[1]
_FOLDERS = ("tests", "property_tests")


def tests_of(path: Path) -> list[Path]:
    """The files of tests of the module at `path`: of its name, and those that import it.

    If there are none, those of the modules that import it, and otherwise all of its package.
    """
    named = [test for test in _tests() if test.stem == f"test_{path.stem.strip('_')}"]
    direct = [test for test in _tests() if path.stem in _texts(test) & _kinds()]
    modules = {_module(path)}
    found = list(dict.fromkeys([*named, *direct, *_importing(_tests(), modules)]))
    while not found and modules:
        modules = {_module(each) for each in _importing(_files(), modules)} - modules
        found = list(_importing(_tests(), modules))
    return found or sorted((ROOT / "tests" / path.relative_to(ROOT).parts[1]).rglob("test_*.py"))


def _importing(files: Iterable[Path], modules: AbstractSet[str]) -> Iterator[Path]:
    yield from (path for path in files if modules & _names(path))


@cache
def _files() -> tuple[Path, ...]:
    return tuple(sorted((ROOT / "purerl").rglob("*.py")))


@cache
def _tests() -> tuple[Path, ...]:
    return tuple(sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("test_*.py")))


@cache
def _kinds() -> frozenset[str]:
    """The names of algorithms and modifiers, by which settings name them."""
    return frozenset(
        path.stem for folder in ("", "modifiers") for path in (ROOT / "purerl/algos" / folder).glob("*.py")
    )


def _module(path: Path) -> str:
    relative = path.relative_to(ROOT / "cli" if path.is_relative_to(ROOT / "cli") else ROOT).with_suffix("")
    return ".".join(relative.parts).removesuffix(".__init__")


@cache
def _names(path: Path) -> frozenset[str]:
    """The modules that a file imports, or names in a text."""
    return _contents(path)[0] | {text.partition(":")[0] for text in _texts(path)}


def _texts(path: Path) -> frozenset[str]:
    return _contents(path)[1]


@cache
def _contents(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The modules that a file imports, and the texts in it."""
    code, package = path.read_text(encoding="utf-8"), ".".join(path.relative_to(ROOT).parent.parts)
    with shared():
        imported = frozenset(each.module for each in imports(code, package))
        constants = [node.value for node in nodes(code) if isinstance(node, ast.Constant)]
    return imported, frozenset(value for value in constants if isinstance(value, str))


def _first_sentence(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def main(name: str) -> int:
    """Print the tests of the file or algorithm `name`."""
    path = ROOT / name if name.endswith(".py") else ROOT / "purerl/algos" / f"{name}.py"
    if not path.is_file():
        sys.stderr.write(
            f"{path.relative_to(ROOT)} does not exist: give the path of a file, or the name of an algorithm\n"
        )
        return 2
    for test in tests_of(path):
        print(f"{test.relative_to(ROOT)}  {_first_sentence(test)}")  # noqa: T201 -- the result
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    sys.exit(main(parser.parse_args().file))
