"""Checks of environments and tools that are not imported: only their source code is read.

What cannot be seen there, such as the methods that a class inherits, is not checked.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from inspect import Signature
from pathlib import Path
from typing import Any

from purerl.envs.signatures import METHODS, check_kwargs, check_method, check_methods
from purerl.errors import ConfigError
from purerl.system.static_inspect import definition, find_source, signature_of

__all__ = ["check_factory_source", "check_tool_source"]


def check_factory_source(name: str, kwargs: Mapping[str, Any]) -> None:
    """Check the class or function `name`, which creates an environment, and `kwargs`. Raises ConfigError."""
    path, attribute, node = _found(name)
    if not isinstance(node, ast.ClassDef):
        _check_kwargs(name, path, attribute, kwargs)
    elif not node.bases and not node.keywords and not node.decorator_list:
        methods = _methods(node)
        check_methods(name, methods)
        for method in METHODS:
            if signature := signature_of(path, f"{attribute}.{method}"):
                check_method(name, method, signature)
        _check_init(name, path, attribute, kwargs, has_init="__init__" in methods)


def check_tool_source(name: str) -> None:
    """Check the function `name`, or the public methods of the class `name`. Raises ConfigError."""
    _, _, node = _found(name)
    if isinstance(node, ast.ClassDef):
        methods = [method for key, method in _methods(node).items() if not key.startswith("_")]
        if not methods and not node.bases:
            raise ConfigError(f"tools {name!r}", got="a class without public methods", need="at least one")
        for method in methods:
            _check_tool(method, skipped=1)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        _check_tool(node, skipped=0)


def _found(name: str) -> tuple[Path, str, ast.stmt | None]:
    module, _, attribute = name.partition(":")
    path = find_source(module)
    return path or Path(), attribute, definition(path, attribute) if path and attribute else None


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {one.name: one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def _check_kwargs(name: str, path: Path, attribute: str, kwargs: Mapping[str, Any]) -> None:
    if path.is_file() and (signature := signature_of(path, attribute)):
        check_kwargs(name, signature, kwargs)


def _check_init(name: str, path: Path, attribute: str, kwargs: Mapping[str, Any], *, has_init: bool) -> None:
    signature = signature_of(path, f"{attribute}.__init__") if has_init else Signature()
    if signature is not None:
        without_self = list(signature.parameters.values())[1:]
        check_kwargs(name, signature.replace(parameters=without_self), kwargs)


def _check_tool(node: ast.FunctionDef | ast.AsyncFunctionDef, *, skipped: int) -> None:
    """Check the parameters of a tool from the one with the number `skipped` on."""
    if node.decorator_list:
        return
    if not ast.get_docstring(node):
        raise ConfigError(f"the tool {node.name!r} has no description", need="a docstring that says what it does")
    for parameter in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs][skipped:]:
        if parameter.annotation is None:
            what = f"the parameter {parameter.arg!r} of the tool {node.name!r}"
            raise ConfigError(what, need="a type hint, such as str")
