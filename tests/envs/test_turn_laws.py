"""Laws of conversations of several turns, for templates with the structure of common model families.

A row is the prompt, the sampled tokens, and the additions. If the template does not change earlier turns and each
sample is the template's own rendering of its message, a row equals the rendering of the whole conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.data.turn_tokens import rendered_turn
from purerl.envs.turns import TurnRenderer, open_renderer

from . import families
from .families import TOOLS, chat, result, user


class Family(NamedTuple):
    """A template, the number of calls that it accepts in a turn, and the tokens that its model stops with."""

    template: str | None
    max_calls: int = 0
    stop: tuple[str, ...] = ()


FAMILIES = {
    "qwen": Family(families.QWEN, 3),
    "qwen_xml": Family(families.QWEN_XML, 3),
    "llama": Family(families.LLAMA, 1),
    "chatml": Family(families.CHATML),
    "gemma": Family(families.GEMMA),
    "mistral": Family(families.MISTRAL, 3),
    "glm": Family(families.GLM, 3, ("<|user|>", "<|observation|>")),
    "text": Family(None),
}
WORDS = st.sampled_from(["a", "12", " ", "\n", "é", "{", '"', "</", "the answer", "。", "\n\n", "<", "|"])
SPELLED = st.sampled_from(
    ["<|im_end|>", "<|eot_id|>", "</tool_response>", "<|user|>", "</s>", "<end_of_turn>", "<eos>"]
)
SAID = st.lists(WORDS, min_size=1, max_size=6).map("".join).map(str.strip).filter(bool)
OBSERVED = st.lists(WORDS | SPELLED, max_size=6).map("".join).map(str.strip)
ARGUMENTS = st.dictionaries(st.sampled_from(["expression", "city"]), SAID, max_size=2)
ANSWERS = st.lists(OBSERVED, min_size=1, max_size=2)


@st.composite
def _turns(draw: Any, max_calls: int) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Assistant messages, each with the messages that follow it."""
    turns = []
    for turn in range(draw(st.integers(1, 3))):
        calls = [
            {"name": "calc", "arguments": draw(ARGUMENTS), "id": f"call{turn:03d}{k:02d}"}
            for k in range(draw(st.integers(0, max_calls)))
        ]
        results = [result(draw(OBSERVED), k, turn) for k in range(len(calls))]
        message = {"role": "assistant", "content": "" if calls else draw(SAID)}
        turns.append((message | ({"tool_calls": calls} if calls else {}), results or [user(draw(OBSERVED))]))
    return turns


@cache
def _renderer(name: str, special_tokens: str, *, with_tools: bool) -> TurnRenderer:
    family = FAMILIES[name]
    made = chat(family.template, stop=family.stop, special_tokens=special_tokens)
    return open_renderer(made, TOOLS if with_tools else ())


def _sampled(renderer: Any, before: Sequence[Mapping[str, Any]], message: Mapping[str, Any]) -> list[int]:
    """The rendering of `message` by the template, without its end token."""
    is_text = renderer.chat.prompt_format == "text"
    text = message["content"] if is_text else rendered_turn(renderer.chat, before, _with_functions(message), TOOLS)
    return renderer.chat.tokenizer(text, add_special_tokens=False)["input_ids"]


def _with_functions(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = [
        {"id": c["id"], "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _end(name: str, renderer: Any, new: Sequence[Mapping[str, Any]]) -> list[int]:
    """The token with which the model of this family ends a turn that `new` follows."""
    if name == "text":
        return []
    if name != "glm":
        return [renderer.chat.stop_tokens[0]]
    return renderer.chat.tokenizer.convert_tokens_to_ids(
        ["<|observation|>" if new[0]["role"] == "tool" else "<|user|>"]
    )


@pytest.mark.parametrize("special_tokens", ["keep", "escape"])
@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_row_is_the_rendering_of_the_whole_conversation(name: str, special_tokens: str, data: Any) -> None:
    max_calls = FAMILIES[name].max_calls
    renderer = _renderer(name, special_tokens, with_tools=max_calls > 0)
    messages: list[Mapping[str, Any]] = [user("a" + data.draw(OBSERVED, "question"))]
    row = renderer.prompt(messages).tokens
    for message, new in data.draw(_turns(max_calls), "turns"):
        sampled = _sampled(renderer, messages, message)
        if data.draw(st.booleans(), "ends with a stop token"):
            sampled += _end(name, renderer, new)
        added = renderer.following(messages, sampled, new)
        row = row + sampled + added
        messages = [*messages, message, *new]
        if name != "text":  # its tokens depend on where the text is cut
            assert row == renderer.rerendered(messages).tokens
        assert _decoded(renderer, row) == _decoded(renderer, renderer.rerendered(messages).tokens)


def _decoded(renderer: Any, tokens: Sequence[int]) -> str:
    return renderer.chat.tokenizer.decode(tokens)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "text"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_sampled_tokens_are_followed_by_what_the_template_adds(name: str, data: Any) -> None:
    """Whatever was sampled: the additions are those after the template's own rendering of some other turn."""
    max_calls = FAMILIES[name].max_calls
    renderer = _renderer(name, "escape", with_tools=max_calls > 0)
    message, new = data.draw(_turns(max_calls), "turns")[0]
    ordinary = [token for token in range(500) if token not in renderer.chat.stop_tokens]
    sampled = data.draw(st.lists(st.sampled_from(ordinary), min_size=1, max_size=20), "sampled")
    before, end = [user("a question")], _end(name, renderer, new)
    for ending in ([], end):
        expected = renderer.following(before, _sampled(renderer, before, message) + ending, new)
        assert renderer.following(before, sampled + ending, new) == expected
    assert renderer.parse(sampled + end, "stop").text == renderer.chat.tokenizer.decode(
        sampled, skip_special_tokens=True
    )


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name].max_calls])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_parsed_turn_renders_to_the_tokens_that_were_sampled(name: str, data: Any) -> None:
    renderer = _renderer(name, "keep", with_tools=True)
    message, new = data.draw(_turns(FAMILIES[name].max_calls), "turns")[0]
    before = [user("a question")]
    sampled = _sampled(renderer, before, message)
    turn = renderer.parse(sampled + _end(name, renderer, new), "stop")
    assert [(call.name, call.arguments, call.error) for call in turn.calls] == [
        (call["name"], call["arguments"], None) for call in message.get("tool_calls", ())
    ]
    assert _sampled(renderer, before, turn.message) == sampled
    assert turn.message == message
