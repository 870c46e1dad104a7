"""Formats of tool calls, a module for each, with two functions.

    read(text, first, tools)   the calls in `text` after the position `first`, each with its place: `Found`
    write(calls, tools)        the text of `calls` in one turn, as the official chat template writes it

`purerl.envs.tool_formats` chooses the module.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["ToolFormat"]

ToolFormat = Literal[
    "hermes", "qwen_xml", "llama", "pythonic", "mistral", "deepseek", "harmony", "glm", "kimi", "plain"
]
