"""Names in annotations that only type checkers import. Sphinx needs them to link the names in signatures."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import purerl

__all__ = ["import_annotations"]


def import_annotations(package: ModuleType = purerl) -> None:
    """Import the names of `package` that its modules import below ``if TYPE_CHECKING``.

    Sphinx evaluates annotations in the module of a function. A name that is not there becomes a link to any object
    whose name ends with it, and `Config` is the name of many classes.
    """
    for info in walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith("__main__"):
            _import_into(import_module(info.name), package.__name__)


def _import_into(module: ModuleType, package: str) -> None:
    for origin, name, alias in _names(ast.parse(inspect.getsource(module)), package):
        if not hasattr(module, alias):
            setattr(module, alias, _value(origin, name))


def _names(tree: ast.Module, package: str) -> Iterator[tuple[str, str, str]]:
    """(module, name, name in this module) of each import from `package` below ``if TYPE_CHECKING``."""
    blocks = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for node in (statement for block in blocks for statement in block.body):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
            yield from ((node.module or "", alias.name, alias.asname or alias.name) for alias in node.names)


def _value(module: str, name: str) -> object:
    """A name of a module, or its submodule of this name."""
    value = getattr(import_module(module), name, None)
    return import_module(f"{module}.{name}") if value is None else value
