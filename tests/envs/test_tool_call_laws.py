"""Laws of tool calls in every format, each with mutants that it detects.

round trip  calls that are written are read as they are, whatever their arguments are, with the tags of any format
cut         the beginning of a call is the call, an error, or text, but never another call
any text    is read without an exception, and is complete in the content if there is no call or an error
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from purerl.envs.formats import glm, hermes, json_calls, kimi, plain, pythonic, qwen_xml, text_values
from purerl.envs.formats.json_calls import Found
from purerl.envs.protocol import ToolCall
from purerl.envs.tool_formats import ToolFormat, parse_calls, write_call, write_calls
from purerl.errors import DataError

FORMATS: tuple[Any, ...] = get_args(ToolFormat)
TAGS = (
    "<tool_call>", "</tool_call>", "<function=write>", "</function>", "<parameter=text>", "</parameter>", "<write>",
    "</write>", "<note>", "</note>", "</think>", "<think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[/THINK]",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "```", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|call|>",
    "<|message|>", "<|start|>assistant", "<|channel|>commentary to=functions.write", "<|end|>",
    "[write(text='1')]", '{"name": "write"', ', "arguments": {', ', "parameters": {', "}", "]",
    '"', "'", "\\", "\\n", "\n", ";", " ", "None", "True", "null", "1", "\\u003c", "\r", "<", "NaN", "1e999",
)  # fmt: skip
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.lists(st.sampled_from(TAGS) | st.text(CHARACTERS, max_size=3), max_size=5).map("".join)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
PARAMETERS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": ({"type": "string"}, TEXT),
    "flag": ({"type": "boolean"}, st.booleans()),
    "count": ({"type": "integer"}, st.integers()),
    "ratio": ({"type": ["number", "null"]}, NUMBERS | st.none()),
    "items": ({"type": "array"}, st.lists(JSON, max_size=2)),
    "options": ({"type": "object"}, st.dictionaries(TEXT, JSON, max_size=2)),
    "maybe": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, TEXT | st.none()),
    "choice": ({"enum": ["1", 1, "None", None]}, st.sampled_from(["1", 1, "None", None])),
    "any": ({}, JSON),
    "true": (True, JSON),
}
SCHEMAS = {"type": "object", "properties": {name: schema for name, (schema, _) in PARAMETERS.items()}}
TOOLS = (
    {"type": "function", "function": {"name": "write", "description": "Write.", "parameters": SCHEMAS}},
    *(
        {"name": name, "parameters": {"type": "object", "properties": {name: schema}}}
        for name, (schema, _) in PARAMETERS.items()
    ),
)
CALLS = st.fixed_dictionaries({}, optional={name: values for name, (_, values) in PARAMETERS.items()}).map(
    lambda arguments: ToolCall("write", arguments)
) | st.one_of(
    *(values.map(lambda value, name=name: ToolCall(name, {name: value})) for name, (_, values) in PARAMETERS.items())
)


def _keys(calls: Any) -> list[tuple[str, str, str | None]]:
    return [(call.name, json.dumps(dict(call.arguments)), call.error) for call in calls]


def _round_trip(tool_format: Any, data: Any) -> None:
    calls = data.draw(st.lists(CALLS, min_size=1, max_size=3))
    text = write_calls(tool_format, calls, TOOLS)
    before, after = ("I write.\n", "") if data.draw(st.booleans()) else ("", "\n")
    for read in (text, before + text + after, "\n".join(write_call(tool_format, call, TOOLS) for call in calls)):
        assert _keys(parse_calls(tool_format, read, TOOLS).calls) == _keys(calls)
    assert parse_calls(tool_format, text, TOOLS).content == ""


def _cut(tool_format: Any, data: Any) -> None:
    call = data.draw(CALLS)
    text = write_call(tool_format, call, TOOLS)
    for end in range(len(text)):
        for read in parse_calls(tool_format, text[:end], TOOLS).calls:
            assert read.error is not None or _keys([read]) == _keys([call])


def _any_text(tool_format: Any, data: Any) -> None:
    text = data.draw(
        st.lists(st.sampled_from(TAGS) | st.text(max_size=4) | st.just("9" * 5000), max_size=12).map("".join)
    )
    content, calls = parse_calls(tool_format, text, TOOLS)
    for call in calls:
        assert isinstance(call.name, str)
        assert call.error is None or not call.arguments
        json.dumps(dict(call.arguments), allow_nan=False, ensure_ascii=False).encode()
    if not calls or any(call.error for call in calls):
        assert content == text


LAWS = (_round_trip, _cut, _any_text)


def _check(law: Any, tool_format: Any, examples: int, **options: Any) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, **options)
    @given(data=st.data())
    def check(data: Any) -> None:
        law(tool_format, data)

    check()


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("law", LAWS)
def test_law(law: Any, tool_format: Any) -> None:
    _check(law, tool_format, 60)


@settings(max_examples=60, deadline=None)
@given(name=st.text(CHARACTERS, min_size=1), arguments=st.dictionaries(TEXT, JSON, max_size=3))
@pytest.mark.parametrize("tool_format", ["hermes", "llama"])
def test_any_name_and_any_json_in_the_formats_that_are_json(tool_format: Any, name: str, arguments: Any) -> None:
    text = write_call(tool_format, ToolCall(name, arguments))
    assert _keys(parse_calls(tool_format, text).calls) == _keys([ToolCall(name, arguments)])


@pytest.mark.parametrize("tool_format", FORMATS)
@settings(max_examples=60, deadline=None)
@given(name=TEXT, key=TEXT)
def test_a_name_that_cannot_be_written_is_an_error(tool_format: Any, name: str, key: str) -> None:
    call, tools = ToolCall(name, {key: "1"}), [{"name": name, "parameters": {"properties": {key: {"type": "string"}}}}]
    with suppress(DataError):
        assert parse_calls(tool_format, write_call(tool_format, call, tools), tools).calls == (call,)


def test_the_message_of_a_call_that_cannot_be_written() -> None:
    for call, got in (
        (ToolCall("write", {"a>b": "1"}), "calls that would be read as others"),
        (ToolCall("write", {"ratio": float("inf")}), "a value that JSON does not have: Out of range float values"),
        (ToolCall("unknown", {"count": 1}), "calls that would be read as others"),
    ):
        with pytest.raises(DataError) as caught:
            write_call("qwen_xml", call, TOOLS)
        lines = str(caught.value).splitlines()
        assert lines[0] == "the format qwen_xml cannot write a call"
        assert lines[1].startswith(f"  got:  {got}")
        assert lines[2] == "  need: ordinary names, values of JSON, and the schemas of tools if the format has no types"


@pytest.mark.parametrize("tool_format", FORMATS)
def test_the_time_for_a_text_that_repeats_itself_does_not_grow_with_its_square(tool_format: Any) -> None:
    pieces = [*TAGS, "[write(", "{'name': ", '{"name": {', "[TOOL_CALLS]w", "<|channel|>commentary to=functions.w"]
    texts = [text for piece in pieces for text in ("x" + piece * 3000, piece + " " * 30_000 + "x")]
    start = time.process_time()
    for text in texts:
        parse_calls(tool_format, text, TOOLS)
    assert time.process_time() - start < 20, "it takes about a second; one such text would take longer"


# --- mutants -----------------------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    law: Any
    tool_format: str
    module: Any
    name: str
    broken: Callable[..., Any]


def _read_to_first_end(text: str, first: int, tools: Any) -> Any:
    """Text between the tags, as parsers with regular expressions find it."""
    for match in re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL).finditer(text, first):
        try:
            call = json_calls.call_of(json_calls.loaded(match[1].strip()))
        except ValueError as error:
            call = json_calls.failed(str(error))
        yield Found(call, *match.span())


def _raw(value: Any, schema: Any, tags: Any, scalar: Any) -> str:
    return value if isinstance(value, str) else scalar(value)


def _always_trimmed(text: str, start: int) -> Any:
    value, end = ARGUMENT_OF_XML(text, start)
    return value and value.strip(), end


def _to_the_end(text: str, start: int) -> Any:
    end = text.find("</parameter>", start)
    return (text[start:], len(text)) if end < 0 else (text[start:end], end)


def _raises(text: str, start: int) -> Any:
    try:
        return json_calls.json_at(text, start)
    except ValueError as error:
        raise LookupError from error


def _without_names(text: str) -> Any:
    return json_calls.loaded(text)


ARGUMENT_OF_XML = qwen_xml._read_argument
MUTANTS = {
    "JSON ends at the first closing tag": Mutant(_round_trip, "hermes", hermes, "read", _read_to_first_end),
    "tags in an argument of XML are not quoted": Mutant(_round_trip, "qwen_xml", qwen_xml, "write_value", _raw),
    "tags in an argument of GLM are not quoted": Mutant(_round_trip, "glm", glm, "write_value", _raw),
    "tags in the only argument are not quoted": Mutant(_round_trip, "plain", plain, "write_value", _raw),
    "the space around an argument is removed": Mutant(
        _round_trip, "qwen_xml", qwen_xml, "_read_argument", _always_trimmed
    ),
    "True is not read": Mutant(_round_trip, "qwen_xml", text_values, "_literal", _without_names),
    "strings of Python end at the first quote": Mutant(
        _round_trip, "pythonic", pythonic, "closing_position", lambda text, start: text.index("]", start) + 1
    ),
    "what is missing is added to a cut argument": Mutant(_cut, "qwen_xml", qwen_xml, "_read_argument", _to_the_end),
    "a cut name is a name": Mutant(
        _cut, "kimi", kimi, "_read_head", lambda match: ToolCall((match[1] or "w").removeprefix("functions.")[:1])
    ),
    "invalid JSON is an exception": Mutant(_any_text, "hermes", hermes, "json_at", _raises),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutant_is_detected(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.module, mutant.name, mutant.broken)
    with pytest.raises((AssertionError, DataError, ValueError, LookupError, TypeError)):
        _check(mutant.law, mutant.tool_format, 300, phases=(Phase.explicit, Phase.generate))
