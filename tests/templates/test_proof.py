"""The independent check of tokenized rows finds every kind of fault, and none in right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from purerl.data.answers import TokenizedExample, tokenize_answer
from purerl.data.chat import Chat, open_chat, tokenize_prompts
from purerl.data.turn_tokens import open_turns
from purerl.templates import episodes
from purerl.templates.conversations import ANSWER, CALL, QUESTION, RESULT, SECOND, THOUGHTFUL, TOOL
from purerl.templates.proof import fault_of_answer, fault_of_prompt, open_raw, said
from purerl.templates.tokenizers import tokenizer_of_template
from tests.data.test_continuation import OPENED
from tests.envs import families

CONVERSATION = [QUESTION, ANSWER, SECOND, {"role": "assistant", "content": "Then they move to the coast."}]


def _open(template: str) -> Chat:
    return open_chat(tokenizer_of_template(template), "messages")


def _fault(opened: Chat, messages: Any, example: TokenizedExample) -> str | None:
    raw = open_raw(opened.tokenizer, {}, messages)
    assert raw is not None
    return fault_of_answer(opened, raw, messages, example)


def _first(example: TokenizedExample) -> int:
    return example.action.index(True)


def _last(example: TokenizedExample) -> int:
    return len(example.action) - example.action[::-1].index(True) - 1


def _changed(example: TokenizedExample, position: int, value: bool) -> TokenizedExample:
    return example._replace(action=[value if k == position else each for k, each in enumerate(example.action)])


FAULTS: dict[str, tuple[Callable[[TokenizedExample], TokenizedExample], str]] = {
    "a token too late": (lambda each: _changed(each, _first(each), False), "the context is"),
    "a token too early": (lambda each: _changed(each, _first(each) - 1, True), "the context is"),
    "without the end": (lambda each: _changed(each, _last(each), False), "does not end with a stop token"),
    "one turn only": (
        lambda each: each._replace(action=[a and k < _first(each) + 6 for k, a in enumerate(each.action)]),
        "2 turns, and 1 learned parts",
    ),
    "a token is missing": (
        lambda each: TokenizedExample([*each.tokens[:-2], each.tokens[-1]], [*each.action[:-2], each.action[-1]]),
        "and the template renders",
    ),
    "everything": (
        lambda each: each._replace(action=[k >= _first(each) for k in range(len(each.action))]),
        "2 turns, and 1 learned parts",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_an_answer_is_found(name: str) -> None:
    opened = _open(families.CHATML)
    example = tokenize_answer(opened, CONVERSATION[:1], CONVERSATION[1:])
    assert _fault(opened, CONVERSATION, example) is None
    change, fault = FAULTS[name]
    assert fault in str(_fault(opened, CONVERSATION, change(example)))


def test_text_of_another_message_and_text_that_is_left_out_are_found() -> None:
    opened = _open(families.QWEN)
    messages = [QUESTION, THOUGHTFUL]
    example = tokenize_answer(opened, messages[:1], messages[1:])
    assert _fault(opened, messages, example) is None
    spoken = [QUESTION, {"role": "assistant", "content": f"{QUESTION['content']} Not here."}]
    example = tokenize_answer(opened, spoken[:1], spoken[1:])
    assert "another message is learned with turn 1" in str(_fault(opened, spoken, example))
    silent = _open(families.CHATML.replace("m.content", "m.content.split('</think>')[-1]"))
    example = tokenize_answer(silent, messages[:1], messages[1:])
    assert "turn 1 has ['Herons need trees.'" in str(_fault(silent, messages, example))
    raw = open_raw(silent.tokenizer, {}, messages)
    assert raw is not None
    assert fault_of_answer(silent, raw, messages, example, ["Herons need trees."]) is None


def test_an_answer_that_continues_the_generation_prompt_is_right_only_after_it() -> None:
    opened, messages = _open(OPENED), [QUESTION, THOUGHTFUL]
    example = tokenize_answer(opened, messages[:1], messages[1:])
    assert _fault(opened, messages, example) is None
    position = _first(example)
    without = TokenizedExample(example.tokens[:position] + example.tokens[position + 1 :], example.action[:-1])
    assert "the text is" in str(_fault(opened, messages, without))


def test_each_fault_of_a_prompt_is_found() -> None:
    opened = _open(families.CHATML)
    [prompt] = tokenize_prompts(opened, [[QUESTION]])
    raw = open_raw(opened.tokenizer, {}, [QUESTION])
    assert raw is not None
    assert fault_of_prompt(opened, raw, [QUESTION], prompt) is None
    for wrong in (prompt._replace(tokens=prompt.tokens[:-1]), prompt._replace(text="other")):
        assert "and the template renders" in str(fault_of_prompt(opened, raw, [QUESTION], wrong))


def test_other_tokens_of_the_same_text_are_a_fault() -> None:
    opened = _open(families.CHATML)
    [prompt] = tokenize_prompts(opened, [[QUESTION]])
    raw = open_raw(opened.tokenizer, {}, [QUESTION])
    assert raw is not None
    position = next(k for k, token in enumerate(prompt.tokens) if opened.tokenizer.decode([token]) == " d")
    split = [opened.tokenizer.convert_tokens_to_ids(each) for each in ("Ġ", "d")]
    other = prompt._replace(tokens=[*prompt.tokens[:position], *split, *prompt.tokens[position + 1 :]])
    assert fault_of_prompt(opened, raw, [QUESTION], other) == "the tokens of the prompt are not those of its text"


@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("change", [lambda tokens: tokens[:-1], lambda tokens: [*tokens, *tokens], lambda tokens: []])
def test_other_tokens_between_turns_are_a_fault(
    change: Callable[[list[int]], list[int]], monkeypatch: pytest.MonkeyPatch, *, with_tools: bool
) -> None:
    opened = _open(families.QWEN)
    assert episodes.fault_of_episode(opened, with_tools=with_tools) is None

    class Changed:
        def __init__(self, *arguments: Any):
            self.turns = open_turns(*arguments)

        def prompt(self, *arguments: Any) -> Any:
            return self.turns.prompt(*arguments)

        def following(self, *arguments: Any) -> list[int]:
            return change(self.turns.following(*arguments))

    monkeypatch.setattr(episodes, "open_turns", Changed)
    assert episodes.fault_of_episode(opened, with_tools=with_tools)


def test_the_form_of_messages_is_the_one_that_the_template_shows() -> None:
    by_text = families.QWEN.replace("(call.function.arguments | tojson)", "call.function.arguments")
    for template in (families.QWEN, by_text):
        raw = open_raw(tokenizer_of_template(template), {"tools": [dict(TOOL)]}, [QUESTION, CALL, RESULT])
        assert raw is not None
        assert '{"place": "Lake Orta"}' in raw([QUESTION, CALL, RESULT])
    assert said(CALL) == ["count_birds", "Lake Orta"]
