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
    """Import the names that the modules of `package` import below ``if TYPE_CHECKING``.

    Sphinx evaluates annotations in the module of a function, all of a signature or none. A name that is not there
    becomes a link to any object whose name ends with it, and `Config` is the name of many classes. A class of a
    library that is not installed becomes an empty class of this name.
    """
    for info in walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith("__main__"):
            _import_into(import_module(info.name))


def _import_into(module: ModuleType) -> None:
    for origin, name, alias in _names(ast.parse(inspect.getsource(module))):
        if not hasattr(module, alias):
            try:
                value = _value(origin, name)
            except ImportError:
                value = type(alias, (), {"__module__": origin})
            setattr(module, alias, value)


def _names(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """(module, name, name in this module) of each import below ``if TYPE_CHECKING``; a module itself has no name."""
    blocks = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for node in (statement for block in blocks for statement in block.body):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name, alias.asname or alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            modules = ((alias.name, alias.asname) for alias in node.names)
            yield from ((name, "", own) if own else (root := name.partition(".")[0], "", root) for name, own in modules)


def _value(module: str, name: str) -> object:
    """A name of a module, its submodule of this name, or the module itself."""
    value = getattr(import_module(module), name, None) if name else import_module(module)
    return import_module(f"{module}.{name}") if value is None else value
