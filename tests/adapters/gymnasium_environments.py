"""Gymnasium-style environments with text."""

from __future__ import annotations

import random
from typing import Any


class Guess:
    """Guess an integer from 0 to 9; 4 turns."""

    def __init__(self, limit: int = 4) -> None:
        self.limit = limit
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turns = 0
        self.number = (options or {}).get("number", random.Random(seed).randrange(10))
        return "Guess.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        found = action == str(self.number)
        text = "right" if found else "higher" if int(action) < self.number else "lower"
        return text, float(found), found, self.turns >= self.limit, {}

    def close(self) -> None:
        self.closed = True


class Numbers(Guess):
    """Its observations are numbers."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**arguments)
        return 0, {}


def spoken(observation: object) -> str:
    return f"You see {observation}."


def as_integer(text: str) -> int:
    return int(text)
