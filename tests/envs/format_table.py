"""The table of formats of tool calls in docs/how-to/tools.md, from what the functions do.

`EPISODES` says with what each format is used in episodes. tests/adapters checks it with official chat templates and
with the package `renderers`, and test_turn_laws.py with templates of the same structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from purerl.envs.protocol import ToolCall
from purerl.envs.tool_formats import ToolFormat, parse_calls, write_calls

from .families import TOOLS

__all__ = ["EPISODES", "Episodes", "table"]

Episodes = tuple[bool, tuple[str, ...]]
"""Whether a chat template has the format in episodes, and the families of the package `renderers` that have it."""

EPISODES: Mapping[ToolFormat, Episodes] = {
    "hermes": (True, ("qwen3",)),
    "qwen_xml": (True, ("qwen3.5", "nemotron-3")),
    "llama": (True, ("llama-3",)),
    "pythonic": (True, ()),
    "mistral": (True, ()),
    "deepseek": (False, ("deepseek-v3",)),
    "harmony": (True, ("gpt-oss",)),
    "glm": (True, ("glm-4.5", "glm-5")),
    "kimi": (False, ("kimi-k2",)),
}
_HEAD = "format | read | written | several calls in a turn | text before a call | text after it | in episodes"


def table() -> str:
    """The rows of all formats."""
    lines = [_HEAD, "|".join(["---"] * 7), *map(_row, get_args(ToolFormat))]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


def _row(tool_format: ToolFormat) -> str:
    calls = [ToolCall("calc", {"expression": "12 + 30"}), ToolCall("time", {"city": "Rome", "hours": 12})]
    texts = [write_calls(tool_format, calls[:count], TOOLS) for count in (1, 2)]
    start = "<|start|>assistant" if tool_format == "harmony" else ""
    cells = (
        parse_calls(tool_format, texts[0], TOOLS) == ("", (calls[0],)),
        "calc" in texts[0] and "12 + 30" in texts[0],
        parse_calls(tool_format, texts[1], TOOLS) == ("", tuple(calls)),
        parse_calls(tool_format, f"Text.{start}{texts[0]}", TOOLS) == ("Text.", (calls[0],)),
        parse_calls(tool_format, f"{texts[0]} Text.", TOOLS) == (" Text.", (calls[0],)),
    )
    return " | ".join([f"`{tool_format}`", *("yes" if cell else "no" for cell in cells), _episodes(tool_format)])


def _episodes(tool_format: ToolFormat) -> str:
    if tool_format == "plain":
        return "in plain text"
    by_template, families = EPISODES[tool_format]
    return ", or ".join(["by the chat template"] * by_template + ["by `renderers`"] * bool(families))
