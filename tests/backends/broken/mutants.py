"""Mutants: each replaces one function of the fake generator, and a check of the conformance suite has to detect it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest


class Mutant(NamedTuple):
    """`function` replaces `owner.name`. Its first argument is the original function. `check` has to detect it."""

    check: Callable
    owner: object
    name: str
    function: Callable

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(self.owner, self.name)
        monkeypatch.setattr(self.owner, self.name, lambda *args, **kwargs: self.function(original, *args, **kwargs))


class Mutants(dict[str, Mutant]):
    """Mutants by the name of their function."""

    def register(self, check: Callable, owner: object, name: str) -> Callable[[Callable], Callable]:
        """A decorator of the function that replaces `owner.name`."""

        def decorator(function: Callable) -> Callable:
            self[function.__name__] = Mutant(check, owner, name, function)
            return function

        return decorator
