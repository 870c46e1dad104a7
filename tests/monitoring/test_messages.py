"""The conversation of an episode: what is read from JSON of several origins, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from purerl.errors import DataError
from purerl.monitoring.console.conversation import render_messages
from purerl.monitoring.console.messages import Call, Message, parse_messages

PARTS = [{"type": "text", "text": "a "}, {"type": "image", "image": "..."}, "b", None]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": "text", "player": 1, "reward": 2}, Message("x", "text", reward=2.0, player=1)),
        ({"content": None}, Message("x", "")),
        ({}, Message("x", "")),
        ({"content": PARTS, "name": "run"}, Message("x", "a [image]b", name="run")),
        ({"content": {"type": "image"}}, Message("x", "[image]")),
        ({"content": 3, "reward": "high", "player": "first", "tool_calls": 5}, Message("x", "[int]")),
        (
            {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
            Message("x", "", (Call("f", '{"a": 1}'),)),
        ),
        ({"tool_calls": [{"name": "f", "arguments": {"a": "é"}}]}, Message("x", "", (Call("f", '{"a": "é"}'),))),
        ({"tool_calls": ["f", {"error": 7}]}, Message("x", "", (Call("", "{}"), Call("", "{}", "7")))),
    ],
)
def test_messages_of_other_origins_are_read(message: dict[str, Any], expected: Message) -> None:
    [parsed] = parse_messages(json.dumps([{"role": "x", **message}]))
    assert parsed == expected
    assert render_messages([parsed]).plain.startswith("x")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("no JSON", "no JSON: Expecting value"),
        ("{}", "a JSON value of type dict"),
        ('[{"role": "user"}, "text"]', "message 1 is 'text'"),
        ('[{"role": 1}]', "message 0 is {'role': 1}"),
    ],
)
def test_text_without_a_list_of_messages_is_refused(text: str, got: str) -> None:
    with pytest.raises(DataError, match="the text 'messages' of a row") as error:
        parse_messages(text)
    assert f"got:  {got}" in str(error.value)
