"""The package `renderers`: the laws of rows, parsed turns, and when it is used. Needs the package."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("renderers")

from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.data.chat import Chat, open_chat
from purerl.envs.package_renderer import PackageRenderer
from purerl.envs.protocol import ToolCall
from purerl.envs.tool_formats import write_call, write_calls
from purerl.envs.turns import TemplateRenderer, open_renderer
from purerl.errors import ConfigError
from tests.envs.families import LLAMA, QWEN, TOOLS, result, tokenizer, user
from tests.envs.format_table import EPISODES

NAMES = {"qwen3": "Qwen/Qwen3-0.6B", "llama-3": "meta-llama/Llama-3.2-1B-Instruct"}
TEMPLATES = {"qwen3": QWEN, "llama-3": LLAMA}
MORE_TOKENS = ("<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>")
QUESTION = [user("1+1?")]
CALL = '<tool_call>\n{"name": "calc", "arguments": {"expression": "1+1"}}\n</tool_call>'


def _chat(family: str, name: str | None = None, **settings: Any) -> Chat:
    made = tokenizer(TEMPLATES[family])
    made.add_special_tokens({"additional_special_tokens": list(MORE_TOKENS)})
    made.name_or_path = NAMES[family] if name is None else name
    return open_chat(made, "messages", **settings)


@cache
def _renderer(family: str) -> PackageRenderer:
    renderer = open_renderer(_chat(family), TOOLS)
    assert isinstance(renderer, PackageRenderer)
    return renderer


def _tokens(chat: Chat, text: str) -> list[int]:
    return chat.tokenizer(text, add_special_tokens=False)["input_ids"]


# --- the law of rows ---------------------------------------------------------------------------------------------

WORDS = st.lists(st.sampled_from(["a", "12", " ", "é", "{", "\n", "the"]), min_size=1, max_size=5).map("".join)
SAID = WORDS.map(str.strip).filter(bool)


@pytest.mark.parametrize("family", TEMPLATES)
@settings(max_examples=30, deadline=None)
@given(turns=st.lists(st.tuples(SAID, st.booleans(), SAID, st.booleans()), min_size=1, max_size=3))
def test_a_row_is_the_rendering_of_the_whole_conversation(family: str, turns: list[Any]) -> None:
    renderer = _renderer(family)
    chat, messages = renderer.chat, [*QUESTION]
    row = renderer.prompt(messages).tokens
    for said, calls, observed, ends in turns:
        sampled = _tokens(chat, _written(family, said, calls=calls)) + [chat.stop_tokens[0]] * ends
        turn = renderer.parse(sampled, "stop")
        assert len(turn.calls) == calls
        new = [result(observed)] if calls else [user(observed)]
        row = row + sampled + renderer.following(messages, sampled, new)
        messages = [*messages, turn.message, *new]
        assert row == renderer.rerendered(messages).tokens


def _written(family: str, said: str, *, calls: bool) -> str:
    call = CALL if family == "qwen3" else '{"name": "calc", "parameters": {"expression": "1+1"}}'
    return call if calls else said


@pytest.mark.parametrize("ending", ["", "<|im_end|>"])
@pytest.mark.parametrize("new", [[user("more")], [result("2"), result("3", 1)]])
def test_the_additions_are_those_of_the_template(ending: str, new: list[Any]) -> None:
    package, template = (open_renderer(_chat("qwen3"), TOOLS, renderer=each) for each in ("auto", "template"))
    for text in ("2", CALL, "<think>1</think>2", "1</think>2", "<tool_call>x"):
        sampled = _tokens(package.chat, text + ending)  # type: ignore[attr-defined]
        assert package.following(QUESTION, sampled, new) == template.following(QUESTION, sampled, new)


def test_a_turn_that_ends_in_the_middle_of_thinking() -> None:
    chat = _chat("qwen3")
    package, template = (open_renderer(chat, TOOLS, renderer=each) for each in ("auto", "template"))
    ended, cut = (_tokens(chat, text) for text in ("<think>1<|im_end|>", "<think>1"))
    assert package.following(QUESTION, ended, [user("more")]) == template.following(QUESTION, ended, [user("more")])
    added = chat.tokenizer.decode(package.following(QUESTION, cut, [user("more")]))
    assert added.startswith("</think><|im_end|>\n"), "the package ends the thinking"


# --- what a turn says --------------------------------------------------------------------------------------------


def test_a_turn_with_thinking_and_a_call() -> None:
    renderer = open_renderer(_chat("qwen3"), TOOLS)
    turn = renderer.parse(
        _tokens(_chat("qwen3"), f"<think>\nI add.\n</think>\n\nSo:\n{CALL}<|im_end|>"), "stop", turn=3
    )
    assert turn.calls == (ToolCall("calc", {"expression": "1+1"}),)
    assert turn.calls[0].id == "call00300"
    assert turn.message == {
        "role": "assistant",
        "content": "So:",
        "reasoning_content": "I add.",
        "tool_calls": [{"name": "calc", "arguments": {"expression": "1+1"}, "id": "call00300"}],
    }


@pytest.mark.parametrize(
    "text", ["<tool_call>x</tool_call>", '<tool_call>{"name": "calc"', f"{CALL}<tool_call>[]</tool_call>"]
)
def test_a_call_that_cannot_be_read(text: str) -> None:
    renderer = _renderer("qwen3")
    turn = renderer.parse(_tokens(renderer.chat, text), "stop")
    assert turn.calls[-1].error is not None
    assert turn.calls[-1].error.startswith("the call is not ")
    assert turn.message == {"role": "assistant", "content": text}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_tokens_raise_an_exception(data: Any) -> None:
    renderer = _renderer("qwen3")
    size = len(renderer.chat.tokenizer)
    tokens = data.draw(st.lists(st.integers(0, size - 1), max_size=30))
    turn = renderer.parse(tokens, "length")
    assert all(call.name or call.error for call in turn.calls)
    added = renderer.following(QUESTION, tokens, [user("more")])
    assert added


# --- tool calls of every family ------------------------------------------------------------------------------------

_DEEPSEEK = (
    "begin▁of▁sentence",
    "end▁of▁sentence",
    "User",
    "Assistant",
    "tool▁calls▁begin",
    "tool▁call▁begin",
    "tool▁sep",
)
_DEEPSEEK_ENDS = ("tool▁call▁end", "tool▁calls▁end", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin")
_KIMI = ("im_middle", "im_system", "im_user", "im_assistant", "tool_calls_section_begin", "tool_calls_section_end")
_GLM = ("<sop>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink")
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "qwen3": ("hermes", ()),
    "qwen3.5": ("qwen_xml", ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")),
    "nemotron-3": ("qwen_xml", ()),
    "llama-3": ("llama", ()),
    "glm-4.5": ("glm", _GLM),
    "glm-5": ("glm", _GLM),
    "deepseek-v3": (
        "deepseek", tuple(f"<｜{name}｜>" for name in (*_DEEPSEEK, *_DEEPSEEK_ENDS, "tool▁output▁end")),
    ),
    "kimi-k2": (
        "kimi",
        ("[BOS]", "[EOS]", *(f"<|{name}|>" for name in (*_KIMI, "tool_call_begin", "tool_call_argument_begin")),
         "<|tool_call_end|>"),
    ),
}  # fmt: skip
SET = {
    "type": "function",
    "function": {
        "name": "set",
        "description": "Set.",
        "parameters": {
            "type": "object",
            "properties": {"flag": {"type": "boolean"}, "text": {"type": "string"}, "none": {"type": "null"}},
        },
    },
}


def test_families_are_those_of_the_table_of_formats() -> None:
    families = {(tool_format, family) for tool_format, (_, names) in EPISODES.items() for family in names}
    assert families - {("harmony", "gpt-oss")} == {(tool_format, name) for name, (tool_format, _) in FAMILIES.items()}


@cache
def _renderer_of(family: str) -> PackageRenderer:
    made = tokenizer(QWEN)
    made.add_special_tokens({"additional_special_tokens": [*MORE_TOKENS, *FAMILIES[family][1]]})
    renderer = open_renderer(open_chat(made, "messages"), [SET], renderer=family)
    assert isinstance(renderer, PackageRenderer)
    return renderer


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_every_family_are_read_as_the_format_defines_them(family: str) -> None:
    renderer, tool_format = _renderer_of(family), FAMILIES[family][0]
    assert renderer.tool_format == tool_format
    for arguments in ({"flag": True, "none": None}, {"text": "end with </tool_call> tag"}, {"text": "12"}, {}):
        call = ToolCall("set", arguments)
        text = write_call(tool_format, call, [SET])  # type: ignore[arg-type]
        sampled = _tokens(renderer.chat, text)
        for tokens in (sampled, _tokens(renderer.chat, f"</think>{text}")):
            turn = renderer.parse(tokens, "stop")
            assert turn.calls == (call,)
            assert repr(turn.calls[0].arguments) == repr(arguments)
            assert [each["name"] for each in turn.message["tool_calls"]] == ["set"]
        new = [{"role": "tool", "content": "the result", "tool_call_id": turn.calls[0].id, "name": "set"}]
        assert "the result" in renderer.chat.tokenizer.decode(renderer.following(QUESTION, tokens, new))


def test_the_result_of_a_call_of_kimi_has_the_id_that_the_model_has_written() -> None:
    renderer = _renderer_of("kimi-k2")
    text = write_calls("kimi", [ToolCall("set", {}, f"functions.set:{k}") for k in (5, 6)])
    turn = renderer.parse(_tokens(renderer.chat, text), "stop")
    assert [call.id for call in turn.calls] == ["functions.set:5", "functions.set:6"]
    twice = renderer.parse(_tokens(renderer.chat, text.replace(":6", ":5")), "stop", turn=1)
    assert [call.id for call in twice.calls] == ["call00100", "call00101"]
    new = [{"role": "tool", "content": "2", "tool_call_id": turn.calls[0].id, "name": "set"}]
    added = renderer.chat.tokenizer.decode(renderer.following(QUESTION, _tokens(renderer.chat, text), new))
    assert "## Return of functions.set:5" in added


# --- when the package is used ------------------------------------------------------------------------------------


def test_the_package_is_used_for_the_models_that_it_knows() -> None:
    assert isinstance(open_renderer(_chat("qwen3")), PackageRenderer)
    assert isinstance(open_renderer(_chat("qwen3", "some/finetune"), renderer="qwen3"), PackageRenderer)
    for chat, options in (
        (_chat("qwen3", "some/finetune"), {}),
        (_chat("qwen3"), {"renderer": "template"}),
        (_chat("qwen3"), {"tool_format": "hermes"}),
        (_chat("qwen3", special_tokens="escape"), {}),
    ):
        assert isinstance(open_renderer(chat, TOOLS, **options), TemplateRenderer)


def test_arguments_of_the_chat_template_are_passed() -> None:
    renderer = open_renderer(_chat("qwen3", chat_template_kwargs={"enable_thinking": False}))
    assert isinstance(renderer, PackageRenderer)
    assert renderer.prompt(QUESTION).text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("qwen4", {}, "renderer = 'qwen4'\n  need: auto, template, or one of: "),
        ("default", {}, "renderer = 'default'\n  need: auto, template, or one of: "),
        ("qwen3", {"special_tokens": "escape"}, "renderer = 'qwen3'\n  got:  special_tokens = \"escape\"\n"),
        (
            "gpt-oss",
            {},
            (
                "the renderer 'gpt-oss' needs the vocabulary of harmony, which it cannot download\n"
                "  got:  error downloading or loading vocab file: failed to download or load vocab file\n"
                "  need: a network, or the file o200k_base.tiktoken in the folder TIKTOKEN_ENCODINGS_BASE\n"
                '  do:   copy the file there, or use renderer = "template"'
            ),
        ),
    ],
)
def test_a_family_that_cannot_be_used(family: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_renderer(_chat("qwen3", **settings), renderer=family)
    assert str(caught.value).startswith(message)
