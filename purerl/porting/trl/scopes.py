"""Assignments in a script: the value that a name has on a line, as far as it can be read without running the script."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Assignment", "Scope", "is_main_guard", "nodes_in_order", "options_of"]

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_SEPARATE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Assignment(NamedTuple):
    """An assignment to a name, or to an attribute of it.

    value           its right side; None if that is not a single value, as in a loop
    is_conditional  whether it may not be executed
    """

    line: int
    name: str
    attribute: str
    value: ast.expr | None
    is_conditional: bool


class Scope:
    """The assignments that hold at a place in a function: those of the function, and those of the module."""

    def __init__(self, tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef | None):
        self._of_module = [*_assignments(tree.body)]
        self._own = [] if function is None else [*_parameters(function), *_assignments(function.body)]

    def find(self, name: str, line: int) -> Assignment | None:
        """The assignment to `name` that holds on `line`; None if there is none in the script."""
        own = [each for each in self._own if each.name == name and not each.attribute]
        found = [each for each in own if each.line < line]
        if own:
            return found[-1] if found else None
        # A function is called after the module has been read.
        found = [each for each in self._of_module if each.name == name and not each.attribute]
        return ([each for each in found if self._own or each.line < line] or [None])[-1]

    def is_of_module(self, name: str) -> bool:
        """Whether `name` is a name of the module, and not of the function."""
        return not any(each.name == name and not each.attribute for each in self._own)

    def attributes(self, name: str, after: int, before: int) -> Iterator[Assignment]:
        """The assignments to attributes of `name` between two lines."""
        for each in self._own or self._of_module:
            if each.name == name and each.attribute and after < each.line < before:
                yield each


def is_main_guard(node: ast.stmt) -> bool:
    """Whether `node` is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and any(getattr(each, "id", "") == "__name__" for each in ast.walk(node.test))


def nodes_in_order(tree: ast.AST) -> list[ast.AST]:
    """All nodes below `tree` that have a line, in the order of the text."""
    nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset))  # pyright: ignore[reportAttributeAccessIssue]


def options_of(tree: ast.Module) -> dict[str, ast.expr]:
    r"""The defaults of the arguments that the script adds to parsers of argparse, by name.

    >>> tree = ast.parse("p.add_argument('-l', '--my-lr', default=2)\np.add_argument('--fast', action='store_true')")
    >>> {name: ast.unparse(default) for name, default in options_of(tree).items()}
    {'my_lr': '2', 'fast': 'False'}
    """
    found: dict[str, ast.expr] = {}
    for node in nodes_in_order(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        dest = given.get("dest", ast.Constant(next((n for n in names if n.startswith("--")), "".join(names[:1]))))
        action = getattr(given.get("action"), "value", "")
        flag = ast.copy_location(ast.Constant(action == "store_false"), node)
        default = given.get("default", flag if "store_" in str(action) else None)
        if default is not None and isinstance(dest, ast.Constant):
            found[str(dest.value).lstrip("-").replace("-", "_")] = default
    return found


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Assignment]:
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield Assignment(function.lineno, each.arg, "", None, is_conditional=True)


def _assignments(body: Iterable[ast.stmt], *, is_conditional: bool = False) -> Iterator[Assignment]:
    for node in body:
        if isinstance(node, _SEPARATE):
            continue
        yield from _of_statement(node, is_conditional=is_conditional)
        inner = is_conditional or not (isinstance(node, ast.With | ast.AsyncWith) or is_main_guard(node))
        for name in _BLOCKS:
            for part in getattr(node, name, ()):
                block = part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part]
                yield from _assignments(block, is_conditional=inner)


def _of_statement(node: ast.stmt, *, is_conditional: bool) -> Iterator[Assignment]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _of_target(target, node.value, is_conditional=is_conditional)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _of_target(node.target, node.value, is_conditional=is_conditional)
    elif isinstance(node, ast.AugAssign):
        yield from _of_target(node.target, None, is_conditional=is_conditional)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _of_target(node.target, None, is_conditional=True)


def _of_target(target: ast.expr, value: ast.expr | None, *, is_conditional: bool) -> Iterator[Assignment]:
    match target:
        case ast.Name(id=name):
            yield Assignment(target.lineno, name, "", value, is_conditional)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            yield Assignment(target.lineno, name, attribute, value, is_conditional)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            parts = values if len(values) == len(targets) else [None] * len(targets)
            for each, part in zip(targets, parts, strict=True):
                yield from _of_target(each, part, is_conditional=is_conditional)
