"""The result of grading a completion."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Grade"]


class Grade(NamedTuple):
    """A score from 0 to 1, and the first reason why it is not 1, in words."""

    score: float
    reason: str = ""
