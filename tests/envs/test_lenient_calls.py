"""Calls that the templates would write in another way, but that can mean only one thing; scalars as they write them."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.envs.protocol import ToolCall
from purerl.envs.tool_formats import parse_calls, write_call, write_calls

from .families import TOOLS

CALC = ToolCall("calc", {"expression": "1+1"})
TIME = ToolCall("time", {"city": "Dallas", "hours": 2})
SCHEMAS = {
    "flag": {"type": "boolean"},
    "none": {"type": "null"},
    "ratio": {"type": "number"},
    "items": {"type": "array"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "text": {"type": "string"},
    "any": {},
}
SET = {"name": "set", "parameters": {"type": "object", "properties": SCHEMAS}}
JSON = '{"name": "calc", "arguments": {"expression": "1+1"}}'
LLAMA = '{"name": "calc", "parameters": {"expression": "1+1"}}'
CITY = "<parameter=city>\nDallas\n</parameter>\n"
HOURS = "<parameter=hours>\n2\n</parameter>\n"
DEEPSEEK = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>calc\n```json\n{"expression": "1+1"}\n```'
KIMI = '<|tool_call_begin|>functions.calc:0<|tool_call_argument_begin|>{"expression": "1+1"}'

LENIENT: tuple[tuple[Any, str, str, tuple[ToolCall, ...]], ...] = (
    # arguments as text, the other key, no arguments
    ("hermes", r'<tool_call>{"name": "calc", "arguments": "{\"expression\": \"1+1\"}"}</tool_call>', "", (CALC,)),
    ("hermes", f"<tool_call>{LLAMA}</tool_call>", "", (CALC,)),
    ("hermes", '<tool_call>{"name": "ping"}</tool_call>', "", (ToolCall("ping"),)),
    ("hermes", '<tool_call>{"name": "ping", "arguments": null, "id": "1"}</tool_call>', "", (ToolCall("ping"),)),
    ("llama", JSON, "", (CALC,)),
    ("mistral", f"[TOOL_CALLS][{LLAMA}]", "", (CALC,)),
    # several calls in one tag, a tag that is open at the end, tags that are missing
    ("hermes", f"<tool_call>\n{JSON}\n{JSON}\n</tool_call>", "", (CALC, CALC)),
    ("hermes", f"<tool_call>[{JSON}, {JSON}]</tool_call>", "", (CALC, CALC)),
    ("hermes", f"So:<tool_call>{JSON}", "So:", (CALC,)),
    ("hermes", f"<tool_call>{JSON}\n<tool_call>{JSON}</tool_call>", "", (CALC, CALC)),
    ("qwen_xml", f"<function=time>\n{CITY}{HOURS}</function>\n</tool_call>", "", (TIME,)),
    ("qwen_xml", f"So:\n<function=time>\n{CITY}{HOURS}</function>\nYes.", "So:\nYes.", (TIME,)),
    ("qwen_xml", f"<tool_call>\n<function=time>\n{CITY}{HOURS}</function>", "", (TIME,)),
    ("qwen_xml", f"<tool_call>\n<function=time>\n{CITY}{HOURS}</tool_call>", "", (TIME,)),
    ("qwen_xml", f"<tool_call>{f'<function=time>{CITY}{HOURS}</function>' * 2}</tool_call>", "", (TIME, TIME)),
    ("qwen_xml", f"<tool_call><function=time><parameter=city>\nDallas\n{HOURS}</function></tool_call>", "", (TIME,)),
    ("qwen_xml", "<function=time><parameter=city>Dallas<parameter=hours>2</parameter></function>", "", (TIME,)),
    ("qwen_xml", f"<function=time>{CITY}<parameter=hours>\n2\n</function></tool_call>", "", (TIME,)),
    ("glm", "<tool_call>ping</tool_call>", "", (ToolCall("ping"),)),
    ("glm", "<tool_call>time\n<arg_key>city</arg_key>\n\n<arg_value>Rome</arg_value></tool_call>", "",
     (ToolCall("time", {"city": "Rome"}),)),
    ("deepseek", f"So:{DEEPSEEK}<｜tool▁call▁end｜>", "So:", (CALC,)),
    ("deepseek", f"<｜tool▁calls▁begin｜>{DEEPSEEK}", "", (CALC,)),
    ("deepseek", DEEPSEEK.removesuffix("\n```"), "", (CALC,)),
    ("kimi", f"{KIMI}<|tool_call_end|>", "", (CALC,)),
    ("kimi", f"So.<|tool_calls_section_begin|>{KIMI}", "So.", (CALC,)),
    ("kimi", f"{KIMI}<|tool_call_end|>{KIMI}".replace("functions.", ""), "", (CALC, CALC)),
    ("harmony", '<|channel|>commentary to=functions.calc<|message|>{"expression": "1+1"}', "", (CALC,)),
    ("harmony", ' to=functions.calc<|channel|>commentary json<|message|>{"expression": "1+1"}<|call|>', "", (CALC,)),
    ("mistral", f"So.[TOOL_CALLS]{JSON}", "So.", (CALC,)),
    ("mistral", '[TOOL_CALLS]calc[ARGS]{"expression": "1+1"}' * 2, "", (CALC, CALC)),
    ("mistral", 'So. [TOOL_CALLS]calc[CALL_ID]abc[ARGS]{"expression": "1+1"}', "So. ", (CALC,)),
    ("mistral", '[TOOL_CALLS]calc{"expression": "1+1"}', "", (CALC,)),
    # text around calls
    ("llama", f"So: <|python_tag|>{LLAMA}", "So: ", (CALC,)),
    ("llama", f"<|python_tag|>{LLAMA} Wait.", " Wait.", (CALC,)),
    ("llama", f"So: {LLAMA} Wait.", "So:  Wait.", (CALC,)),
    ("llama", f"{LLAMA}\n<|python_tag|>{LLAMA}", "", (CALC, CALC)),
    ("pythonic", "So: [calc(expression='1+1')] Wait.", "So:  Wait.", (CALC,)),
    # as Python writes them
    ("llama", "{'name': 'calc', 'parameters': {'expression': '1+1'}}", "", (CALC,)),
    ("llama", "<|python_tag|>calc.call(expression='1+1')", "", (CALC,)),
    ("pythonic", "<|python_start|>[calc(expression='1+1'), time(city='Dallas', hours=2)]<|python_end|>", "",
     (CALC, TIME)),
    ("pythonic", "<|tool_call_start|>[a.b(x=(1, -2), y=[None, null, true])]<|tool_call_end|>", "",
     (ToolCall("a.b", {"x": [1, -2], "y": [None, None, True]}),)),
    ("pythonic", "[calc(expression='1\n\"2\"')]", "", (ToolCall("calc", {"expression": '1\n"2"'}),)),
    ("pythonic", "[fly(from='Rome', class = 1, x='from = 2')]", "",
     (ToolCall("fly", {"from": "Rome", "class": 1, "x": "from = 2"}),)),
    # text that is no call
    ("llama", 'So: {"name": "unknown", "parameters": {}}', 'So: {"name": "unknown", "parameters": {}}', ()),
    ("llama", 'So: {"name": "calc", "price": 1}', 'So: {"name": "calc", "price": 1}', ()),
    ("pythonic", "So: [unknown(x=1)]", "So: [unknown(x=1)]", ()),
    ("pythonic", "[sin(x), cos(x)]", "[sin(x), cos(x)]", ()),
    ("pythonic", "see [f(x) and [1]", "see [f(x) and [1]", ()),
    ("harmony", "<|channel|>analysis<|message|>to=functions.calc {}<|end|>",
     "<|channel|>analysis<|message|>to=functions.calc {}<|end|>", ()),
)  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), LENIENT)
def test_lenient(tool_format: Any, text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    assert parse_calls(tool_format, text, TOOLS) == (content, calls)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("flag", "True", True),
        ("flag", "false", False),
        ("flag", "yes", "yes"),
        ("none", "None", None),
        ("none", "null", None),
        ("flag", "TRUE", True),
        ("none", "NULL", None),
        ("ratio", "2.50", 2.5),
        ("ratio", "+.5", 0.5),
        ("ratio", "1 + 2", "1 + 2"),
        ("maybe", "NONE", "NONE"),
        ("ratio", "1e999", "1e999"),
        ("items", '["a", 1]', ["a", 1]),
        ("items", "['a', True]", ["a", True]),
        ("maybe", "None", None),
        ("maybe", "null", None),
        ("maybe", "1", "1"),
        ("maybe", '"a"', '"a"'),
        ("text", "None", "None"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", '"\\u003c"', '"\\u003c"'),
        ("any", "1", 1),
        ("any", "True", True),
        ("any", "a", "a"),
        ("unknown", "1", "1"),
    ],
)
@pytest.mark.parametrize(
    ("tool_format", "call"),
    [
        ("qwen_xml", "<tool_call>\n<function=set>\n<parameter={}>\n{}\n</parameter>\n</function>\n</tool_call>"),
        ("glm", "<tool_call>set\n<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
    ],
)
def test_scalars_without_quotes(tool_format: Any, call: str, name: str, text: str, value: Any) -> None:
    [read] = parse_calls(tool_format, call.format(name, text), [SET]).calls
    assert repr(read.arguments[name]) == repr(value), "the type matters: 1 is not True"


@pytest.mark.parametrize(
    ("tool_format", "written"),
    [
        ("qwen_xml", ["True", "None", "0.5", '["é", null]', "a<b", "None"]),
        ("glm", ["true", "null", "0.5", '["é", null]', "a<b", "None"]),
        ("pythonic", ["flag=True", "none=None", "ratio=0.5", "items=['é', None]", "text='a<b'", "any='None'"]),
        ("hermes", ['"flag": true', '"none": null', '"ratio": 0.5', '"items": ["é", null]', '"text": "a<b"']),
    ],
)
def test_scalars_are_written_as_the_templates_write_them(tool_format: Any, written: list[str]) -> None:
    arguments = {"flag": True, "none": None, "ratio": 0.5, "items": ["é", None], "text": "a<b", "any": "None"}
    if tool_format in ("qwen_xml", "glm"):
        del arguments["any"]
        arguments["maybe"] = None
        written[-1] = "None" if tool_format == "qwen_xml" else "null"
    text = write_call(tool_format, ToolCall("set", arguments), [SET])
    position = 0
    for each in written:
        position = text.index(each, position) + len(each)


@pytest.mark.parametrize(
    ("value", "written"),
    [("end with </tool_call> tag", "end with </tool_call> tag"), ("a </parameter> b", '"a \\u003c/parameter> b"')],
)
def test_a_tag_in_an_argument_is_quoted_only_if_it_would_end_it(value: str, written: str) -> None:
    call = ToolCall("set", {"text": value})
    text = write_call("qwen_xml", call, [SET])
    assert f"<parameter=text>\n{written}\n</parameter>" in text
    assert parse_calls("qwen_xml", text, [SET]).calls == (call,)


def test_tag_in_an_argument_of_json() -> None:
    call = ToolCall("write", {"content": "end with </tool_call> tag"})
    assert parse_calls("hermes", write_call("hermes", call)).calls == (call,)


def test_ids_that_the_model_has_written() -> None:
    calls = [ToolCall("calc", {"expression": "1"}, f"functions.calc:{k}") for k in (3, 4)]
    for tool_format in ("kimi", "mistral"):
        text = write_calls(tool_format, calls)  # type: ignore[arg-type]
        assert [call.id for call in parse_calls(tool_format, text).calls] == ["functions.calc:3", "functions.calc:4"]  # type: ignore[arg-type]
    assert "functions.calc:0" in write_call("kimi", ToolCall("calc", {}, "call00000"))
