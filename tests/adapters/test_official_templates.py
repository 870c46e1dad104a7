"""Tool calls as the official chat templates write them, from the package trl, which has a copy of each."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from purerl.data.chat import Chat
from purerl.data.turn_tokens import rendered_turn
from purerl.envs.tool_formats import find_tool_format, parse_calls, write_call
from purerl.envs.turns import open_renderer
from purerl.errors import ConfigError
from tests.envs.families import chat, result, user
from tests.envs.format_table import EPISODES

TRL = find_spec("trl")
TEMPLATES = sorted(Path(TRL.origin or "").parent.glob("chat_templates/*.jinja")) if TRL else []
FORMATS = {
    "deepseekv3": "deepseek",
    "glm4moe": "glm",
    "gptoss": "harmony",
    "lfm2_2_5": "pythonic",
    "lfm2_v2": "pythonic",
    "llama3_": "llama",
    "nemotron": "qwen_xml",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5": "qwen_xml",
    "qwen3_6": "qwen_xml",
    "qwen3_8": "qwen_xml",
}
"""The formats of templates by the beginning of their names; the longest one counts."""
WITHOUT_CALLS = ("llama3_training", "qwen2_5_vl")  # llama3.jinja has no underscore
WITH_JSON = ("qwen3_6", "qwen3_8")  # they write true and null, where Qwen3-Coder, Qwen 3.5 and Nemotron do as Python
KINDS = {"flag": "boolean", "none": "null", "ratio": "number", "items": "array", "text": "string", "options": "object"}
PROPERTIES = {name: {"type": kind} for name, kind in KINDS.items()}
SET = {
    "type": "function",
    "function": {"name": "set", "description": "Set.", "parameters": {"type": "object", "properties": PROPERTIES}},
}
ARGUMENTS = {
    "flag": True, "none": None, "ratio": 0.5, "items": ["é", None, False], "text": 'a "b"\n</tool_call> <c> None',
    "options": {"x": True},
}  # fmt: skip


def _format(path: Path) -> str | None:
    beginnings = [each for each in FORMATS if path.stem.startswith(each)]
    return None if path.stem.startswith(WITHOUT_CALLS) or not beginnings else FORMATS[max(beginnings, key=len)]


def _chat(path: Path) -> Chat:
    """The template with the tokens of tests: those of GLM that begin the next turn, and <eos> for that of DeepSeek."""
    text = path.read_text(encoding="utf-8").replace("<｜end▁of▁sentence｜>", "<eos>")
    return chat(text, stop=("<|observation|>", "<|user|>"))


def _rendered(made: Chat, arguments: dict[str, Any]) -> str:
    call = {"id": "call00000", "type": "function", "function": {"name": "set", "arguments": arguments}}
    return rendered_turn(made, [user("a question")], {"role": "assistant", "content": "", "tool_calls": [call]}, [SET])


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_format_of_each_template_is_found_or_the_message_says_that_it_is_not_known(path: Path) -> None:
    if expected := _format(path):
        assert find_tool_format(_chat(path), [SET]) == expected
    else:
        with pytest.raises(ConfigError, match="^the chat template renders tool calls in a format that is not known\n"):
            find_tool_format(_chat(path), [SET])


@pytest.mark.parametrize("path", [path for path in TEMPLATES if _format(path)], ids=lambda path: path.stem)
def test_every_value_that_a_template_writes_is_read_and_written_in_the_same_way(path: Path) -> None:
    made, tool_format = _chat(path), find_tool_format(_chat(path), [SET])
    for name, value in ARGUMENTS.items():
        rendered = _rendered(made, {name: value})
        [call] = parse_calls(tool_format, rendered, [SET]).calls
        assert (call.name, call.error) == ("set", None)
        assert json.dumps(call.arguments) == json.dumps({name: value})
        if tool_format in ("hermes", "qwen_xml", "glm", "deepseek", "llama") and name != "text":
            written = write_call(tool_format, call, [SET])
            others = (("True", "true"), ("None", "null")) if path.stem.startswith(WITH_JSON) else ()
            for python, other in others:
                written = written.replace(python, other)
            assert written in rendered


@pytest.mark.skipif(not TEMPLATES, reason="needs the package trl")
def test_formats_that_official_templates_have_in_episodes() -> None:
    by_template = {tool_format for tool_format, (is_by_template, _) in EPISODES.items() if is_by_template}
    assert {_format(path) for path in TEMPLATES} - {None, "deepseek"} == by_template - {"mistral"}  # it is not in trl


@pytest.mark.parametrize("path", [path for path in TEMPLATES if _format(path)], ids=lambda path: path.stem)
def test_an_episode_with_each_template(path: Path) -> None:
    """The sampled tokens are kept, the call in them is read, and the result of the tool follows."""
    made = _chat(path)
    if _format(path) == "deepseek":
        with pytest.raises(ConfigError, match="^the chat template does not read `tools`\n"):
            open_renderer(made, [SET], renderer="template")
        return
    renderer = open_renderer(made, [SET], renderer="template")
    sampled = made.tokenizer(_rendered(made, {"text": "a"}), add_special_tokens=False)["input_ids"]
    turn = renderer.parse(sampled, "stop")
    assert [(call.name, call.arguments) for call in turn.calls] == [("set", {"text": "a"})]
    added = renderer.following([user("a question")], sampled, [result("the result", name="set")])
    assert "the result" in made.tokenizer.decode(added)
