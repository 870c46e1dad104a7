"""Reward functions and an answer extractor for `purerl eval` and `purerl sample`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def starts_with_small_digit(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the first character is a digit below 5. A model with random weights is sometimes correct."""
    return float(completion[:1].isdecimal() and completion[:1] < "5")


def raises_key_error(completion: str, example: Mapping[str, Any]) -> float:
    """Raises KeyError: the examples have no such column."""
    return float(example["index"])


def first_two_characters(completion: str) -> str | None:
    """The answer in a completion."""
    return completion[:2] or None


def brevity(completion: str, example: Mapping[str, Any]) -> float:
    """A reward that is never 1."""
    return 0.5
