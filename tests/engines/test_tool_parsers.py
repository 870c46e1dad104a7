"""Tool calls as purerl reads them, and as the parsers of vLLM and SGLang do, on texts of our own.

A text belongs to a kind. Where a parser reads a kind in another way, EXPLAINED has the reason. A kind without a reason
must be read in the same way, and a kind with a reason must not.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purerl.envs.protocol import ToolCall
from purerl.envs.tool_formats import parse_calls, write_call, write_calls
from tests.engines.conftest import KIND, ONE_THREAD, PYTHON

KINDS_OF_JSON = {"text": "string", "flag": "boolean", "count": "integer", "ratio": "number", "items": "array"}
PARAMETERS = {"type": "object", "properties": {name: {"type": kind} for name, kind in KINDS_OF_JSON.items()}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": PARAMETERS}}
    for name in ("write", "read")
]
WORDS = [
    "a",
    "two words",
    "é 中",
    "a \"b\" 'c'",
    "a\nb",
    "1 + 1 < 3 & 4 > 2",
    "C:\\new",
    "{x}",
    "[1]",
    "a, b=c",
    "f(x)",
]
CALLS = {
    "words": [{"text": text} for text in WORDS],
    "types": [
        {"flag": True, "count": 3, "ratio": 0.5, "items": [1, "a", None, True, {"b": []}]}, {"flag": False}, {},
        {"count": -7, "items": []}, {"ratio": -2.25, "text": "a"},
    ],
    "text of another type": [{"text": text} for text in ("12", "true", "None", '{"a": 1}', '"a"')],
    "the text null": [{"text": "null"}],
    "spaces": [{"text": text} for text in (" a", "a ", "\na\n", "\n", "")],
    "tags of JSON": [{"text": text} for text in ("</tool_call>", "```", "<|tool_call_end|>", "<｜tool▁call▁end｜>")],
    "tags of text": [{"text": text} for text in ("</parameter> b", "</arg_value> b", "<parameter=flag>", "<arg_key>")],
}  # fmt: skip
FORMATS: tuple[Any, ...] = ("hermes", "qwen_xml", "llama", "pythonic", "mistral", "deepseek", "glm", "kimi", "harmony")
A = ToolCall("write", {"text": "a"})
JSON = '{"name": "write", "arguments": {"text": "a"}}'
JSON_OF_TEXT = JSON.replace('{"text": "a"}', r'"{\"text\": \"a\"}"')
PARAMETER = "<parameter=text>\na\n</parameter>\n"
SPACED = "[TOOL_CALLS] ["  # as SGLang needs it
LENIENT: dict[str, dict[Any, str]] = {
    "arguments as text": {
        "hermes": f"<tool_call>\n{JSON_OF_TEXT}\n</tool_call>", "llama": JSON_OF_TEXT,
        "mistral": f"{SPACED}{JSON_OF_TEXT}]",
    },
    "the other key": {
        "hermes": f"<tool_call>\n{JSON}\n</tool_call>".replace("arguments", "parameters"),
        "llama": JSON,
        "mistral": f"{SPACED}{JSON}]".replace("arguments", "parameters"),
    },
    "several calls in one tag": {
        "hermes": f"<tool_call>\n{JSON}\n{JSON}\n</tool_call>",
        "qwen_xml": f"<tool_call>\n{f'<function=write>{PARAMETER}</function>' * 2}\n</tool_call>",
    },
    "no space before the list": {"mistral": write_call("mistral", A)},
    "the name before the arguments": {"mistral": '[TOOL_CALLS]write[ARGS]{"text": "a"}'},
    "a list in one tag": {"hermes": f"<tool_call>\n[{JSON}, {JSON}]\n</tool_call>"},
    "a tag that is open at the end": {
        "hermes": f"<tool_call>\n{JSON}\n",
        "qwen_xml": f"<tool_call>\n<function=write>\n{PARAMETER}</function>",
        "glm": "<tool_call>write<arg_key>text</arg_key><arg_value>a</arg_value>",
        "deepseek": write_call("deepseek", A).replace("<｜tool▁calls▁end｜>", ""),
        "kimi": write_call("kimi", A).replace("<|tool_calls_section_end|>", ""),
    },
    "the outer tag is missing": {
        "qwen_xml": f"<function=write>\n{PARAMETER}</function>",
        "deepseek": write_call("deepseek", A).replace("<｜tool▁calls▁begin｜>", ""),
        "kimi": write_call("kimi", A).replace("<|tool_calls_section_begin|>", ""),
    },
    "an argument without an end": {
        "qwen_xml": f"<tool_call>\n<function=write>\n<parameter=count>\n1\n{PARAMETER}</function>\n</tool_call>",
    },
    "an end before other text": {
        "qwen_xml": f"<tool_call>\n<function=write>\n{PARAMETER}and so on\n</function>\n</tool_call>",
        "glm": "<tool_call>write<arg_key>text</arg_key><arg_value>a</arg_value>and so on</tool_call>",
    },
    "a cut argument": {
        "hermes": '<tool_call>\n{"name": "write", "arguments": {"text": "a',
        "qwen_xml": "<tool_call>\n<function=write>\n<parameter=text>\na",
        "llama": '{"name": "write", "parameters": {"text": "a',
        "pythonic": "[write(text='a",
        "mistral": f'{SPACED}{{"name": "write", "arguments": {{"text": "a',
        "glm": "<tool_call>write<arg_key>text</arg_key><arg_value>a",
        "deepseek": write_call("deepseek", A).partition('a"')[0],
        "kimi": write_call("kimi", A).partition('a"')[0],
        "harmony": "<|start|>assistant" + write_call("harmony", A).partition('a"')[0],
    },
    "a brace too much": {
        "hermes": f"<tool_call>\n{JSON}}}\n</tool_call>",
        "deepseek": write_call("deepseek", A).replace("}\n", "}}\n"),
        "kimi": write_call("kimi", A).replace("}<", "}}<"),
    },
    "text around": {
        "llama": f"So: {JSON} Wait.",
        "pythonic": "So: [write(text='a')] Wait.",
        "hermes": f"So:\n<tool_call>\n{JSON}\n</tool_call>\nWait.",
        "mistral": f"So: {SPACED}{JSON}] Wait.",
    },
    "text before and after the tag": {"llama": f"So: <|python_tag|>{JSON} Wait."},
    "an object that is no call": {"llama": 'So: {"name": "write", "price": 1}'},
    "as Python writes it": {"llama": '<|python_tag|>{\'name\': "write", \'parameters\': {\'text\': "a"}}'},
    "keywords as names": {"pythonic": "[write(text='a', from='b')]"},
    "JSON names": {"pythonic": "[write(flag=true, items=[null])]"},
    "a formula": {"pythonic": "[sin(x), cos(x)]"},
    "an unknown tool": {name: write_calls(name, [ToolCall("unknown", {})]) for name in FORMATS if name != "harmony"},
}  # fmt: skip

CUT_AT_TAG = "a call ends at the first closing tag, also if it is in an argument"
QUOTED = "a text with one of the format's tags is in quotes, which only purerl reads: without them, it would be cut"
REMAIN_TEXT = "arguments that are text remain text, which is not what a tool can be called with"
ONE_IN_A_TAG = "a tag has one call, and others are dropped"
NEEDS_OUTER = "without the outer tag nothing is a call"
LOST = "what is missing at the end is added, or left out, also if a part of the arguments is lost"
SKIPPED = "text after an argument is left out"
NOT_JSON = "arguments that are not JSON are passed on as they are"
UNKNOWN = "the server drops calls of unknown tools; an environment tells the model that there is none"
EXPLAINED: dict[str, dict[str, dict[str, str]]] = {
    "vllm": {
        "tags of JSON": dict.fromkeys(("hermes", "glm", "kimi"), CUT_AT_TAG),
        "tags of text": dict.fromkeys(("qwen_xml", "glm"), QUOTED),
        "arguments as text": dict.fromkeys(("hermes", "llama"), REMAIN_TEXT),
        "the other key": {"hermes": "the call is dropped", "mistral": "the arguments are dropped"},
        "several calls in one tag": {"hermes": ONE_IN_A_TAG},
        "a list in one tag": {"hermes": ONE_IN_A_TAG},
        "a tag that is open at the end": {"glm": LOST},
        "a cut argument": {"qwen_xml": LOST, "glm": LOST, "kimi": NOT_JSON},
        "the outer tag is missing": dict.fromkeys(("deepseek", "kimi"), NEEDS_OUTER),
        "an end before other text": dict.fromkeys(("qwen_xml", "glm"), SKIPPED),
        "a brace too much": dict.fromkeys(("deepseek", "kimi"), NOT_JSON),
        "text around": {"pythonic": "a list of calls must be the whole turn"},
        "as Python writes it": {"llama": "an object must be JSON; SGLang reads this one"},
        "keywords as names": {"pythonic": "the call is dropped, because it is not valid Python"},
        "an unknown tool": {"glm": UNKNOWN},
    },
    "sglang": {
        "types": {"pythonic": "a number below 0 is not a literal for it, and the call is dropped"},
        "text of another type": {"glm": "a text that is JSON is read as JSON: true becomes the text True"},
        "the text null": dict.fromkeys(("qwen_xml", "glm"), "null is None, also where only a text is allowed"),
        "tags of JSON": dict.fromkeys(("hermes", "qwen_xml", "deepseek", "glm"), CUT_AT_TAG),
        "tags of text": {"qwen_xml": QUOTED},
        "no space before the list": {"mistral": "it needs a space, which Mistral's tokenizers do not write"},
        "arguments as text": dict.fromkeys(("hermes", "llama", "mistral"), REMAIN_TEXT),
        "several calls in one tag": {"hermes": ONE_IN_A_TAG},
        "a cut argument": {"qwen_xml": LOST},
        "the outer tag is missing": dict.fromkeys(("qwen_xml", "deepseek", "kimi"), NEEDS_OUTER),
        "an end before other text": {"qwen_xml": SKIPPED},
        "a brace too much": {"kimi": NOT_JSON},
        "text around": {"llama": "a turn with a call must begin with it; vLLM reads this one"},
        "keywords as names": {"pythonic": "the call is dropped, because it is not valid Python"},
        "JSON names": {"pythonic": "true is no literal of Python; vLLM reads it"},
        "an unknown tool": dict.fromkeys(("hermes", "llama", "pythonic", "mistral", "deepseek", "glm"), UNKNOWN),
    },
}
"""The reasons, by engine, kind and format."""


def _texts() -> Iterator[tuple[str, str, str]]:
    """(kind, format, text)."""
    for kind, all_arguments in CALLS.items():
        for name in FORMATS:
            calls = [ToolCall("write", arguments) for arguments in all_arguments]
            yield from ((kind, name, _written(name, [call])) for call in calls)
    yield from (("two calls", name, _written(name, [A, ToolCall("read", {"text": "b"})])) for name in FORMATS)
    yield from ((kind, name, text) for kind, texts in LENIENT.items() for name, text in texts.items())


def _written(name: Any, calls: list[ToolCall]) -> str:
    """The text of `calls`, with the role and the space that SGLang's parsers of harmony and Mistral need."""
    start = "<|start|>assistant" if name == "harmony" else ""
    return start + write_calls(name, calls, TOOLS).replace("[TOOL_CALLS][", SPACED)


def _read(name: Any, text: str) -> list[list[Any]]:
    return [[call.name, dict(call.arguments)] for call in parse_calls(name, text, TOOLS).calls if call.error is None]


def _run(script: str, job: Any) -> Any:
    command = [PYTHON, str(Path(__file__).parent / script)]
    done = subprocess.run(
        command, input=json.dumps(job), text=True, capture_output=True, env={"PATH": "", **ONE_THREAD}, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_calls_are_read_as_the_engine_reads_them_or_the_difference_is_explained() -> None:
    texts = [each for each in _texts() if KIND != "vllm" or each[1] != "harmony"]  # vLLM reads only tokens of harmony
    job = {"engine": KIND, "tools": TOOLS, "texts": [each[1:] for each in texts]}
    explained, differing, unexplained = EXPLAINED[KIND], set[tuple[str, str]](), list[str]()
    for (kind, name, text), theirs in zip(texts, _run("parse_calls.py", job), strict=True):
        if json.dumps(ours := _read(name, text)) != json.dumps(theirs):
            differing.add((kind, name))
            if name not in explained.get(kind, {}):
                unexplained.append(f"{kind}, {name}: {text!r}: purerl {ours}, {KIND} {theirs}")
    assert not unexplained, "\n".join(unexplained)
    assert differing == {(kind, name) for kind, names in explained.items() for name in names}


@pytest.mark.skipif(KIND != "vllm", reason="mistral_common comes with vLLM")
def test_calls_of_mistral_are_those_of_its_own_tokenizers() -> None:
    calls = [ToolCall("write", {"text": 'é "a" [TOOL_CALLS] \n', "items": [1, None]}, "call00000"), ToolCall("read")]
    job = [[call.name, call.arguments, call.id or "call00001"] for call in calls]
    for text in _run("mistral_calls.py", job):
        read = parse_calls("mistral", text.removesuffix("</s>"), TOOLS)
        assert read == ("", tuple(calls))
        assert [call.id for call in read.calls] == ["call00000", "call00001"]
