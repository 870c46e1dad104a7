"""Planted errors of engines: each replaces one function of a fake engine, and one check has to report it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Planted(NamedTuple):
    """`function` replaces `owner.name`. Its first argument is the original function.

    check      the check that has to detect it
    words      a part of the message, if the message has to say more than the name of the check
    """

    check: Callable
    owner: object
    name: str
    function: Callable
    words: str = ""

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(self.owner, self.name)
        monkeypatch.setattr(self.owner, self.name, lambda *args, **kwargs: self.function(original, *args, **kwargs))

    @property
    def description(self) -> str:
        """The name of the function in words, and its docstring."""
        words = self.function.__name__.replace("_", " ")
        return f"{words}. {inspect.getdoc(self.function) or ''}".strip()


class PlantedErrors(dict[str, Planted]):
    """Planted errors by the name of their function."""

    def register(self, check: Callable, owner: object, name: str, words: str = "") -> Callable[[Callable], Callable]:
        """A decorator of the function that replaces `owner.name`."""

        def decorator(function: Callable) -> Callable:
            assert function.__name__ not in self
            self[function.__name__] = Planted(check, owner, name, function, words)
            return function

        return decorator
