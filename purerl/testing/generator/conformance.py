"""The result of a conformance suite."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

__all__ = ["Conformance"]


@frozen
class Conformance:
    """The names of the checks that have passed, and of those that were left out, with the reason.

    >>> print(Conformance(("polling_makes_progress",), {"seed_determines_tokens": "capabilities.seeded not stated"}))
    1 check passed, 1 left out
      seed_determines_tokens: capabilities.seeded not stated
    """

    passed: tuple[str, ...]
    left_out: Mapping[str, str]

    def __str__(self) -> str:
        count = f"{len(self.passed)} check{'' if len(self.passed) == 1 else 's'} passed, {len(self.left_out)} left out"
        return "\n".join([count, *(f"  {name}: {reason}" for name, reason in self.left_out.items())])
