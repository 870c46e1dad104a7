"""The rules of a comparison that can be chosen."""

from __future__ import annotations

import math
from typing import Any

from attrs import frozen

from purerl.errors import ConfigError

__all__ = ["EXACT", "Rules"]


@frozen
class Rules:
    """The accepted differences from the ground truth.

        |answer - ground truth| <= max(relative_tolerance |ground truth|, absolute_tolerance)

    evaluated  if the ground truth is a number, no arithmetic may remain to be done in the answer

    Raises: ConfigError if a tolerance is negative or not finite.
    """

    relative_tolerance: float = 0.0
    absolute_tolerance: float = 0.0
    evaluated: bool = True

    def __attrs_post_init__(self) -> None:
        for name in ("relative_tolerance", "absolute_tolerance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(name, got=getattr(self, name), need="a finite number, at least 0")

    def tolerance(self, number: Any) -> Any:
        """The largest difference from `number` that is accepted.

        >>> Rules(relative_tolerance=0.5, absolute_tolerance=2.0).tolerance(10)
        5.0
        """
        return max(self.relative_tolerance * abs(number), self.absolute_tolerance)


EXACT = Rules()
