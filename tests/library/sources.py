"""The syntax trees of files, which many rules read."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["nodes", "parse", "shared"]

_SHARED: list[dict[str, Sequence[ast.AST]]] = []
"""The nodes by the code of their file, in the block of `shared`."""


@contextmanager
def shared() -> Iterator[None]:
    """In the block, the syntax tree of each file is made once. Those of all files need 200 MB.

    Without the collection of garbage, which looks at all trees again and again, that takes a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    _SHARED.append({})
    try:
        yield
    finally:
        _SHARED.pop()
        if was_enabled:
            gc.enable()


def parse(code: str) -> ast.AST:
    """The syntax tree of `code`."""
    return nodes(code)[0] if _SHARED else ast.parse(code)


def nodes(code: str) -> Sequence[ast.AST]:
    """All nodes of the syntax tree of `code`, beginning with the module."""
    if not _SHARED:
        return tuple(ast.walk(ast.parse(code)))
    if code not in _SHARED[-1]:
        _SHARED[-1][code] = tuple(ast.walk(ast.parse(code)))
    return _SHARED[-1][code]
