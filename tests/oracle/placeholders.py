"""Empty modules in place of packages that a library imports, and that the compared functions do not use."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["add_placeholders"]


class _Placeholder(ModuleType):
    """A module in which every public name is an empty class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None), []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def add_placeholders(names: Iterable[str]) -> None:
    """Add an empty module for each of `names` that is not imported yet."""
    for name in names:
        sys.modules.setdefault(name, _Placeholder(name))
