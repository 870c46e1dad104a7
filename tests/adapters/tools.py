"""OpenAI-style tools and their functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two integers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
    {"type": "function", "name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
]


def add(a: int, b: int) -> int:
    return a + b


async def now() -> str:
    return "noon"


def is_target(completion: str, example: Mapping[str, Any]) -> float:
    return float(completion == str(example["target"]))


ONLY_ADD = {"add": add}
EMPTY: list[object] = []
TWICE = [TOOLS[0], TOOLS[0]]
CUSTOM = [{"type": "custom", "name": "shell"}]
NAMELESS = [{"type": "function", "function": {"parameters": {"type": "object"}}}]
NO_OBJECT = [{"type": "function", "function": {"name": "add", "parameters": {"type": "array"}}}]
