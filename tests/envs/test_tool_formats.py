"""Tool calls in each format: reading, writing, errors, detection, and random text."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.envs.protocol import ToolCall
from purerl.envs.tool_formats import ToolFormat, describe_tools, find_tool_format, parse_calls, write_call
from purerl.errors import ConfigError

from . import families
from .families import CALC, TIME, TOOLS, chat

FORMATS: tuple[Any, ...] = get_args(ToolFormat)
PING = {"name": "ping", "description": "Answer at once.", "parameters": {"type": "object", "properties": {}}}
ROUND = {"name": "round", "parameters": {"type": "object", "properties": {"x": {"type": ["number", "null"]}}}}
ALL = (*TOOLS, PING, ROUND)


def _calls(tool_format: Any, text: str) -> list[tuple[str, Any]]:
    return [(call.name, call.error or call.arguments) for call in parse_calls(tool_format, text, ALL).calls]


# --- reading -----------------------------------------------------------------------------------------------------


def test_hermes() -> None:
    first = '<tool_call>\n{"name": "calc", "arguments": {"expression": "1+1"}}\n</tool_call>'
    text = f'I add.\n{first}\n<tool_call>{{"name": "x", "arguments": {{}}}}</tool_call>'
    content, calls = parse_calls("hermes", text)
    assert content == "I add."
    assert calls == (ToolCall("calc", {"expression": "1+1"}), ToolCall("x", {}))


def test_qwen_xml() -> None:
    text = (
        "Wait.\n<tool_call>\n<function=time>\n<parameter=city>\nNew\nYork\n</parameter>\n"
        "<parameter=hours>\n12\n</parameter>\n</function>\n</tool_call>"
    )
    assert parse_calls("qwen_xml", text, ALL) == ("Wait.", (ToolCall("time", {"city": "New\nYork", "hours": 12}),))
    assert parse_calls("qwen_xml", text).calls[0].arguments["hours"] == "12", "without the schema there are no types"


@pytest.mark.parametrize("tag", ["", "<|python_tag|>"])
def test_llama(tag: str) -> None:
    text = '{"name": "calc", "parameters": {"expression": "1;1"}}'
    assert parse_calls("llama", tag + text) == ("", (ToolCall("calc", {"expression": "1;1"}),))
    assert _calls("llama", f"\n{tag}{text}; {text}\n") == [("calc", {"expression": "1;1"})] * 2
    typed = '{"type": "function", "name": "calc", "parameters": {}}'
    assert _calls("llama", typed) == [("calc", {})]


def test_plain() -> None:
    text = 'so <calc>12+30</calc> <time>{"city": "Rom"}</time><ping></ping><round>2.5</round><b>no call</b>'
    content, calls = parse_calls("plain", text, ALL)
    assert content == "so  <b>no call</b>"
    assert [(call.name, call.arguments) for call in calls] == [
        ("calc", {"expression": "12+30"}), ("time", {"city": "Rom"}), ("ping", {}), ("round", {"x": 2.5}),
    ]  # fmt: skip


@pytest.mark.parametrize("tool_format", FORMATS)
def test_text_and_thinking_are_no_calls(tool_format: Any) -> None:
    call = write_call(tool_format, ToolCall("calc", {"expression": "1"}), ALL)
    for text in ("", "42", "{}", '{"answer": 42}', f"<think>I could {call}</think>42", "a { b", "<other>1</other>"):
        assert parse_calls(tool_format, text, ALL) == (text, ())
    thinking = f"<think>{call}</think>\n\n"
    assert parse_calls(tool_format, thinking + call, ALL).calls == (ToolCall("calc", {"expression": "1"}),)
    code = ToolCall("calc", {"expression": "</think>"})
    assert parse_calls(tool_format, thinking + write_call(tool_format, code, ALL), ALL).calls == (code,)


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool_format", "text", "name", "error"),
    [
        ("hermes", '<tool_call>{"name": "calc"', "", "the call is not closed by </tool_call>"),
        ("hermes", "<tool_call>calc(1)</tool_call>", "", "the call is not valid JSON: Expecting value"),
        ("hermes", "<tool_call>[]</tool_call>", "", 'the call is not a JSON object with "name" and "arguments"'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "", 'the call has no "name" that is a string'),
        ("hermes", '<tool_call>{"name": "calc"}</tool_call>', "calc", '"arguments" of the call is missing'),
        ("hermes", '<tool_call>{"name": "c", "arguments": {"x": NaN}}</tool_call>', "", "the call is not valid JSON"),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', "", "the call is not valid JSON"),
        ("hermes", f"<tool_call>{'[' * 10**5}</tool_call>", "", "the call is not valid JSON: it is nested too deeply"),
        ("llama", '{"name": "calc", "parameters": {', "", "the call is not valid JSON"),
        ("llama", "<|python_tag|>calc.call(1)", "", "the call is not valid JSON"),
        ("llama", '{"name": "calc"}', "calc", '"parameters" of the call is missing or not a JSON object'),
        ("qwen_xml", "<tool_call><function=calc></tool_call>", "", "the call is not <function=NAME>...</function>"),
        ("qwen_xml", "<tool_call><function=calc>1</function></tool_call>", "calc", "the call has text that is not in"),
        ("plain", "<calc>1", "calc", "the call is not closed by </calc>"),
        ("plain", "<time>Rom</time>", "time", "the arguments are not valid JSON: Expecting value"),
        ("plain", "<time>[1]</time>", "time", "the arguments are not a JSON object"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read(tool_format: Any, text: str, name: str, error: str) -> None:
    content, (call,) = parse_calls(tool_format, text, ALL)
    assert (content, call.name, call.arguments) == (text, name, {})
    assert call.error is not None
    assert call.error.startswith(error)


def test_the_text_of_a_turn_with_an_error_is_complete() -> None:
    good = write_call("hermes", ToolCall("calc", {"expression": "1"}))
    content, calls = parse_calls("hermes", f"{good}\n<tool_call>x</tool_call>\n{good}")
    assert content == f"{good}\n<tool_call>x</tool_call>\n{good}"
    assert [call.error is None for call in calls] == [True, False, True]
    objects = '{"name": "calc", "parameters": {}}'
    assert [call.error is None for call in parse_calls("llama", f"{objects};{objects}; x").calls] == [True, True, False]


# --- writing and random text -------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "</" not in text)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def _valid_calls(draw: Any) -> ToolCall:
    """Calls whose arguments are of the types in the schema."""
    name = draw(st.sampled_from(["calc", "time", "ping", "round"]))
    arguments: dict[str, st.SearchStrategy[Any]] = {
        "calc": st.fixed_dictionaries({"expression": TEXT}),
        "time": st.fixed_dictionaries({"city": TEXT, "hours": st.integers() | st.lists(st.integers())}),
        "ping": st.just({}),
        "round": st.fixed_dictionaries({"x": st.none() | st.floats(allow_nan=False, allow_infinity=False)}),
    }
    return ToolCall(name, draw(arguments[name]))


@pytest.mark.parametrize("tool_format", FORMATS)
@settings(max_examples=100, deadline=None)
@given(calls=st.lists(_valid_calls(), min_size=1, max_size=3))
def test_written_calls_are_read(tool_format: Any, calls: list[ToolCall]) -> None:
    separator = ";" if tool_format == "llama" else "\n"
    text = separator.join(write_call(tool_format, call, ALL) for call in calls)
    assert parse_calls(tool_format, text, ALL).calls == tuple(calls)


@pytest.mark.parametrize("tool_format", ["hermes", "llama"])
@settings(max_examples=100, deadline=None)
@given(name=TEXT.filter(bool), arguments=st.dictionaries(TEXT, JSON, max_size=3))
def test_any_json_is_read(tool_format: Any, name: str, arguments: dict[str, Any]) -> None:
    text = write_call(tool_format, ToolCall(name, arguments))
    assert parse_calls(tool_format, text).calls == (ToolCall(name, arguments),)


PIECES = st.sampled_from([
    "<tool_call>", "</tool_call>", "<function=", "calc>", "</function>", "<parameter=", "x>", "</parameter>", "<calc>",
    "</calc>", "<time>", "</time>", "<|python_tag|>", '{"name": "calc"', ', "arguments": {', ', "parameters": {', "}",
    "[", '"', ":", "\\", ";", " ", "\n", "1e999", "</think>", "<round>", "</round>", "NaN", "9" * 5000,
])  # fmt: skip


@pytest.mark.parametrize("tool_format", FORMATS)
@settings(max_examples=300, deadline=None)
@given(text=st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join))
def test_no_text_raises_an_exception(tool_format: Any, text: str) -> None:
    content, calls = parse_calls(tool_format, text, ALL)
    assert all(isinstance(call.name, str) and (call.error is None or not call.arguments) for call in calls)
    json.dumps([dict(call.arguments) for call in calls], allow_nan=False, ensure_ascii=False).encode(
        errors="surrogatepass"
    )
    if not calls or any(call.error for call in calls):
        assert content == text


# --- detection and description -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [("QWEN", "hermes"), ("QWEN_XML", "qwen_xml"), ("LLAMA", "llama"), ("GLM", "hermes"), (None, "plain")],
)
def test_the_format_is_detected_from_what_the_template_renders(template: str | None, expected: str) -> None:
    made = chat(getattr(families, template) if template else None)
    assert find_tool_format(made, TOOLS) == expected
    assert find_tool_format(made, [TIME["function"]]) == expected


@pytest.mark.parametrize(("template", "got"), [("MISTRAL", "'[TOOL_CALLS]["), ("CHATML", "no tool calls")])
def test_an_unknown_format_is_an_error(template: str, got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_tool_format(chat(getattr(families, template)), TOOLS)
    assert str(caught.value).startswith(
        f"the chat template renders tool calls in a format that is not known\n  got:  {got}"
    )
    assert "  need: one of: hermes, qwen_xml, llama, plain\n  do:   set tool_format" in str(caught.value)


def test_description() -> None:
    assert describe_tools([CALC, TIME, PING]) == (
        "calc: Evaluate an expression.\n"
        "  expression (string, required)\n"
        "  Call it like this: <calc>...</calc>\n"
        "time: The time in a city.\n"
        "  city (string, required)\n"
        "  hours (integer, optional)\n"
        '  Call it like this: <time>{"city": "...", "hours": "..."}</time>\n'
        "ping: Answer at once.\n"
        "  Call it like this: <ping></ping>"
    )
    assert describe_tools([CALC], "hermes").endswith('"arguments": {"expression": "..."}}\n</tool_call>')
