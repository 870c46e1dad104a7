"""Tool calls in each format: reading, writing, errors, detection. test_tool_call_laws.py has random text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from purerl.envs.protocol import ToolCall
from purerl.envs.tool_formats import ToolFormat, describe_tools, find_tool_format, parse_calls, write_call
from purerl.errors import ConfigError

from . import families
from .families import CALC, TIME, TOOLS, chat
from .format_table import table

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
        ("hermes", '<tool_call>{"name": "calc", "args": {}}</tool_call>', "calc", '"arguments" of the call is missing'),
        ("hermes", '<tool_call>{"name": "c", "arguments": [1]}</tool_call>', "c", "the arguments of the call are not"),
        ("hermes", '<tool_call>{"name": "c", "arguments": "x"}</tool_call>', "c", "the arguments of the call are"),
        (
            "hermes", '<tool_call>{"name": "c", "arguments": {}, "parameters": {"x": 1}}</tool_call>', "c",
            'the call has both "arguments" and "parameters"',
        ),
        ("hermes", '<tool_call>{"name": "c", "arguments": {}}}</tool_call>', "", "the call is not valid JSON"),
        ("hermes", '<tool_call>{"name": "c", "arguments": {"x": NaN}}</tool_call>', "", "the call is not valid JSON"),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', "", "the call is not valid JSON"),
        ("hermes", f"<tool_call>{'[' * 10**5}</tool_call>", "", "the call is not valid JSON: it is nested too deeply"),
        ("llama", '{"name": "calc", "parameters": {', "", "the call is not valid JSON"),
        ("llama", "<|python_tag|>calc.call(1)", "calc", "an argument of the call has no name"),
        ("llama", "<|python_tag|>print 1", "", "the call after <|python_tag|> is neither a JSON object nor NAME.call("),
        ("llama", '{"name": "calc"}', "calc", '"parameters" of the call is missing'),
        ("qwen_xml", "<tool_call>calc(1)</tool_call>", "", "the call is not <function=NAME>...</function>"),
        ("qwen_xml", "<tool_call>", "", "the call is not closed by </tool_call>"),
        ("qwen_xml", "<function=c><parameter=x>1</parameter>", "c", "the call is not closed by </function>"),
        ("qwen_xml", "<function=c><parameter=x>1", "c", "the argument 'x' is not closed by </parameter>"),
        ("qwen_xml", "<function=c><parameter=x>\n1<parameter=y>2</parameter></function>", "c", "the argument 'x'"),
        ("qwen_xml", "<function=c><parameter=x>1</parameter>2</parameter></function>", "c", "the argument 'x'"),
        ("qwen_xml", f"<function=c>{'<parameter=x>1</parameter>' * 2}</function>", "c", "the argument 'x' is given"),
        (
            "qwen_xml", "<function=c><parameter=x>1</function></tool_call></parameter></function></tool_call>", "c",
            "the call has text or tags after </function>",
        ),
        ("qwen_xml", "<function=c></function>1</function>", "c", "the call has text or tags after </function>"),
        ("qwen_xml", "<tool_call><function=c></function>1", "c", "the call has text or tags after </function>"),
        ("pythonic", "[calc(expression='1'", "", "the list of calls is not valid Python"),
        ("pythonic", "[calc('1')]", "calc", "an argument of the call has no name: need NAME(ARGUMENT=VALUE, ...)"),
        ("pythonic", "[calc(expression=1 + x)]", "calc", "an argument of the call is not a literal of Python: 1 + x"),
        ("pythonic", "[calc(expression=1, expression=2)]", "calc", "an argument of the call is given twice"),
        ("pythonic", "[calc(expression=1e999)]", "calc", "an argument of the call is not a literal of Python: Out of"),
        ("mistral", "[TOOL_CALLS]", "", "the call is neither a list of JSON objects nor NAME[ARGS]{...}"),
        ("mistral", "[TOOL_CALLS][1", "", "the call is not valid JSON"),
        ("mistral", "[TOOL_CALLS]calc[ARGS]{}}", "calc", "the call has text after its arguments"),
        ("deepseek", "<｜tool▁call▁begin｜>calc", "", "the call does not begin with"),
        (
            "deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>calc\n```json\n{\n```<｜tool▁call▁end｜>", "calc",
            "the arguments of the call are not valid JSON",
        ),
        ("harmony", "<|channel|>commentary to=functions.c<|message|>{}}", "c", "the call has text between"),
        ("glm", "<tool_call>{}</tool_call>", "", "the call is not NAME<arg_key>...</arg_key>"),
        ("glm", "<tool_call>calc<arg_key>x</arg_key>", "calc", "the call is not closed by </tool_call>"),
        ("glm", "<tool_call>calc<arg_key>x</arg_key></tool_call>", "calc", "the call has text that is"),
        (
            "glm", "<tool_call>c<arg_key>x</arg_key><arg_value>1<arg_key>y</arg_key></arg_value></tool_call>",
            "c", "the argument 'x' is not closed by </arg_value>",
        ),
        (
            "glm", f"<tool_call>c{'<arg_key>x</arg_key><arg_value>1</arg_value>' * 2}</tool_call>", "c",
            "the argument 'x' is given twice",
        ),
        (
            "glm", "<tool_call>c<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>2</arg_value></tool_call>", "c",
            "the call has tags after </tool_call>",
        ),
        (
            "kimi", "<|tool_call_begin|>3<|tool_call_argument_begin|>{}<|tool_call_end|>", "",
            "the call has no id functions.NAME:NUMBER, but '3'",
        ),
        ("plain", "<calc>1</calc>2</calc>", "calc", "the call has another </calc> after its end"),
        ("plain", "<time>{}{}</time>", "time", "the call has text after its arguments"),
        ("qwen_xml", "<tool_call><function=calc>1</function></tool_call>", "calc", "the call has text that is not in"),
        ("plain", "<calc>1", "calc", "the call is not closed by </calc>"),
        ("plain", "<time>Rom</time>", "time", "the arguments are not valid JSON: Expecting value"),
        ("plain", "<time>[1]</time>", "time", "the arguments of the call are not a JSON object"),
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


# --- detection and description -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("QWEN", "hermes"),
        ("QWEN_XML", "qwen_xml"),
        ("LLAMA", "llama"),
        ("GLM", "hermes"),
        ("MISTRAL", "mistral"),
        (None, "plain"),
    ],
)
def test_the_format_is_detected_from_what_the_template_renders(template: str | None, expected: str) -> None:
    made = chat(getattr(families, template) if template else None)
    assert find_tool_format(made, TOOLS) == expected
    assert find_tool_format(made, [TIME["function"]]) == expected


UNKNOWN = families.QWEN.replace("'<tool_call>", "'call <").replace("</tool_call>'", "'")


@pytest.mark.parametrize(("template", "got"), [(UNKNOWN, "'call <"), (families.CHATML, "no tool calls")])
def test_an_unknown_format_is_an_error(template: str, got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_tool_format(chat(template), TOOLS)
    assert str(caught.value).startswith(
        f"the chat template renders tool calls in a format that is not known\n  got:  {got}"
    )
    formats = "hermes, qwen_xml, llama, pythonic, mistral, deepseek, harmony, glm, kimi, plain"
    assert f"  need: one of: {formats}\n  do:   set tool_format" in str(caught.value)


def test_the_table_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/tools.md").read_text(encoding="utf-8")
    assert page.partition("<!-- formats -->\n\n")[2].partition("\n\n<!--")[0] == table()


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
