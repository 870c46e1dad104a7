"""Rows of every kind on which a template is tried: one answer and several, thoughts, calls, pairs, prompts.

All texts differ, and none is part of another one, so that each is found in what a template renders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from purerl.data.columns import ExampleType, select_format
from purerl.data.examples import DataSet
from purerl.data.nested import make_column, shaped_schema

__all__ = ["ANSWER", "CALL", "QUESTION", "RESULT", "SECOND", "TOOL", "TRIALS", "Trial", "as_data"]

Message = dict[str, Any]

TOOL: Mapping[str, Any] = MappingProxyType({
    "type": "function",
    "function": {
        "name": "count_birds",
        "description": "Counts the birds of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
})  # fmt: skip


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


QUESTION, ANSWER = _user("Where do herons sleep?"), _assistant("They sleep in tall reeds.")
SECOND, LAST = _user("And in winter?"), _assistant("Then they move to the coast.")
SYSTEM = {"role": "system", "content": "You are a warden of the marsh."}
CALL = _assistant(
    "",
    tool_calls=[
        {
            "type": "function",
            "id": "call00000",
            "function": {"name": "count_birds", "arguments": {"place": "Lake Orta"}},
        }
    ],
)
RESULT = {"role": "tool", "content": "Forty-two of them.", "tool_call_id": "call00000", "name": "count_birds"}
COUNTED = _assistant("Around forty live there.")


def _with_thoughts(message: Message, thoughts: str) -> Message:
    return {**message, "content": f"<think>\n{thoughts}\n</think>\n\n{message['content']}"}


class Trial(NamedTuple):
    """Rows of one kind. A template works if each of them does."""

    name: str
    example_type: ExampleType
    rows: Sequence[Mapping[str, Any]]


THOUGHTFUL = _with_thoughts(ANSWER, "Herons need trees.")
LATER = _with_thoughts(LAST, "Ponds freeze.")

TRIALS = (
    Trial("one answer", "demonstrations", ({"messages": [QUESTION, ANSWER]},)),
    Trial("several answers", "demonstrations", ({"messages": [QUESTION, ANSWER, SECOND, LAST]},)),
    Trial("thoughts in content", "demonstrations", ({"messages": [QUESTION, THOUGHTFUL]},)),
    Trial(
        "reasoning_content",
        "demonstrations",
        ({"messages": [QUESTION, {**ANSWER, "reasoning_content": "Herons need trees."}]},),
    ),
    Trial("several thoughts", "demonstrations", ({"messages": [QUESTION, THOUGHTFUL, SECOND, LATER]},)),
    Trial("tool calls", "demonstrations", ({"messages": [QUESTION, CALL, RESULT, COUNTED], "tools": [dict(TOOL)]},)),
    Trial("pairs", "preferences", ({"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, LAST]},)),
    Trial("RL prompts", "prompts", ({"prompt": [QUESTION]}, {"prompt": [QUESTION, ANSWER, SECOND]})),
    Trial("system prompt", "prompts", ({"prompt": [SYSTEM, QUESTION]},)),
)
"""Of these kinds, a row works if its tokens are those that it says, and what is learned is what the assistant says."""


def as_data(row: Mapping[str, Any], example_type: ExampleType) -> DataSet:
    """The data set with this row only."""
    import pyarrow as pa

    columns = [make_column([value], name) for name, value in row.items()]
    table = pa.Table.from_arrays([column for column, _ in columns], schema=pa.schema([field for _, field in columns]))
    return DataSet(
        ("trial",), (table,), select_format(shaped_schema(table.schema), example_type, "trial"), (range(1),), (1.0,)
    )
