"""Tokenization of prompts and conversations, and the mask of the tokens to learn, with several chat templates."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.data.answers import TokenizedExample, tokenize_answer
from purerl.data.chat import Chat, open_chat, tokenize_prompts
from purerl.errors import ConfigError, DataError

from .made import CHANGING_PREFIX, CHATML, HEADERS, MARKED, STRICT, assistant, system, tokenizer, user

CONVERSATION = [system("be"), user("hi"), assistant("yo"), user("2"), assistant("3")]


def _chat(template: str, **settings: Any) -> Chat:
    return open_chat(tokenizer(template), "messages", **settings)


def _with_parentheses(chat: Chat, example: TokenizedExample) -> str:
    """The text of `example`, with the tokens to learn in parentheses."""
    text, is_open = "", False
    for token, action in zip(example.tokens, example.action, strict=True):
        text += {(False, True): "(", (True, False): ")"}.get((is_open, action), "") + chat.tokenizer.decode([token])
        is_open = action
    return text + ")" * is_open


# --- prompts -----------------------------------------------------------------------------------------------------


def test_text_prompt_is_tokenized_with_the_special_tokens_of_the_tokenizer() -> None:
    chat = open_chat(tokenizer(CHATML), "text")
    (prompt,) = tokenize_prompts(chat, ["1+1="])
    assert prompt.text == "1+1="
    assert chat.tokenizer.decode(prompt.tokens) == "<bos>1+1="


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (CHATML, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        (MARKED, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        (HEADERS, "<bos><|start_header|>user<|end_header|>\n\nhi<|eot|><|start_header|>assistant<|end_header|>\n\n"),
    ],
)
def test_rendered_prompt_ends_with_the_assistant_header(template: str, text: str) -> None:
    chat = _chat(template)
    (prompt,) = tokenize_prompts(chat, [[user("hi")]])
    assert prompt.text == text
    assert chat.tokenizer.decode(prompt.tokens) == text, "the tokenizer adds no special tokens to rendered text"
    assert len(prompt.tokens) < len(text) / 2, "each special token is one token"


def test_system_prompt_is_added_only_to_conversations_without_one() -> None:
    chat = _chat(CHATML, system_prompt="be good")
    added, existing = tokenize_prompts(chat, [[user("hi")], [system("be bad"), user("hi")]])
    assert added.text.startswith("<|im_start|>system\nbe good<|im_end|>\n<|im_start|>user\nhi")
    assert existing.text.startswith("<|im_start|>system\nbe bad<|im_end|>\n<|im_start|>user\nhi")


def test_chat_template_kwargs_are_passed_to_the_template() -> None:
    (thinking,) = tokenize_prompts(_chat(CHATML), [[user("hi")]])
    (no_thinking,) = tokenize_prompts(_chat(CHATML, chat_template_kwargs={"enable_thinking": False}), [[user("hi")]])
    assert no_thinking.text == thinking.text + "<think></think>"


def test_end_tokens_are_the_end_of_turn_token_and_the_eos_token() -> None:
    ids = {name: _chat(template).end_tokens for name, template in (("chatml", CHATML), ("headers", HEADERS))}
    tokens = {name: tokenizer().convert_ids_to_tokens(end_tokens) for name, end_tokens in ids.items()}
    assert tokens == {"chatml": ["<|im_end|>", "<eos>"], "headers": ["<|eot|>", "<eos>"]}
    assert open_chat(tokenizer(CHATML, eos="<|im_end|>"), "messages").end_tokens == ids["chatml"][:1]
    assert open_chat(tokenizer(eos=None), "text").end_tokens == ()


def test_extra_stop_tokens_are_added_to_stop_tokens_but_not_to_end_tokens() -> None:
    headers = tokenizer(HEADERS)
    extra = headers.convert_tokens_to_ids(["<|im_end|>", "<eos>"])
    unknown = 10**6  # outside the vocabulary
    default = open_chat(headers, "messages")
    extended = open_chat(headers, "messages", extra_stop_tokens=[*extra, unknown])
    assert headers.convert_ids_to_tokens(extended.stop_tokens) == ["<|eot|>", "<eos>", "<|im_end|>"]
    assert extended.end_tokens == default.end_tokens == default.stop_tokens
    assert open_chat(headers, "text", extra_stop_tokens=extra).stop_tokens == tuple(reversed(extra))
    assert open_chat(tokenizer(eos=None), "text", extra_stop_tokens=[unknown]).stop_tokens == ()


# --- tokens to learn ----------------------------------------------------------------------------------------------


def test_text_answer_and_eos_token_are_learned() -> None:
    chat = open_chat(tokenizer(), "text")
    assert _with_parentheses(chat, tokenize_answer(chat, "1+1=", "2")) == "<bos>1+1=(2<eos>)"
    with_template = tokenize_answer(_chat(CHATML), "1+1=", "2")
    assert with_template == tokenize_answer(chat, "1+1=", "2"), "the chat template has no effect on text"


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["without markers", "with markers"])
def test_only_assistant_turns_and_their_end_tokens_are_learned(template: str) -> None:
    chat = _chat(template)
    before = "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    between = "\n<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\n"
    both_turns = tokenize_answer(chat, CONVERSATION[:2], CONVERSATION[2:])
    assert _with_parentheses(chat, both_turns) == f"{before}(yo<|im_end|>){between}(3<|im_end|>)\n"
    last_turn = tokenize_answer(chat, CONVERSATION[:4], CONVERSATION[4:])
    assert _with_parentheses(chat, last_turn) == f"{before}yo<|im_end|>{between}(3<|im_end|>)\n"
    assert both_turns.tokens == last_turn.tokens


def test_rollout_prompt_is_a_prefix_of_the_demonstration() -> None:
    for template in (CHATML, HEADERS, MARKED, CHANGING_PREFIX):
        chat = _chat(template, system_prompt="be")
        (prompt,) = tokenize_prompts(chat, [[user("hi")]])
        example = tokenize_answer(chat, [user("hi")], [assistant("yo")])
        assert example.tokens[: len(prompt.tokens)] == prompt.tokens
        assert example.action.index(True) == len(prompt.tokens)


def test_end_of_turn_token_is_learned_without_a_line_break_after_it() -> None:
    chat = _chat(HEADERS)
    example = tokenize_answer(chat, CONVERSATION[:2], CONVERSATION[2:])
    assert _with_parentheses(chat, example).endswith("(yo<|eot|>)<|start_header|>user<|end_header|>\n\n2<|eot|>"
                                      "<|start_header|>assistant<|end_header|>\n\n(3<|eot|>)")  # fmt: skip


# --- errors ------------------------------------------------------------------------------------------------------


def _error_message(template: str, prompt: list, answer: list) -> str:
    with pytest.raises(DataError) as caught:
        tokenize_answer(_chat(template), prompt, answer)
    return str(caught.value)


def test_template_that_changes_earlier_turns_is_refused_for_several_answers() -> None:
    assert _error_message(CHANGING_PREFIX, CONVERSATION[:2], CONVERSATION[2:]) == (
        "the chat template changes earlier turns when more messages follow\n"
        "  got:  another text for the first 3 messages\n"
        "  need: turns that stay the same when messages follow, or a template with {% generation %} markers\n"
        "  do:   put one answer in each row, in columns `prompt` and `completion`"
    )
    chat = _chat(CHANGING_PREFIX)
    example = tokenize_answer(chat, CONVERSATION[:4], CONVERSATION[4:])
    assert _with_parentheses(chat, example).endswith("<|im_start|>assistant\n(<think></think>3<|im_end|>)\n")


def test_conversation_without_prompt_or_assistant_turn_is_refused() -> None:
    for template in (CHATML, MARKED):
        for answer, roles in (([user("yo")], "user, user"), ([], "user")):
            assert _error_message(template, [user("hi")], answer) == (
                "the conversation has no assistant tokens to learn\n"
                f"  got:  messages with the roles {roles}\n"
                "  need: an assistant turn after the prompt, without the weight 0\n"
                "  do:   remove the row"
            )
        assert _error_message(template, [], [assistant("yo")]) == (
            "the conversation has no message before the first assistant turn\n"
            "  need: a system or user message\n"
            "  do:   add a prompt, or remove the row"
        )


def test_error_of_the_chat_template_is_reported() -> None:
    with pytest.raises(DataError) as caught:
        tokenize_prompts(_chat(STRICT, system_prompt="be"), [[user("hi")]])
    assert str(caught.value) == (
        "the chat template raised an error: no system prompts\n  got:  messages with the roles system, user"
    )


def test_prompt_without_tokens_is_refused() -> None:
    without_bos = tokenizer()
    without_bos.backend_tokenizer.post_processor = None
    with pytest.raises(DataError, match="prompt ''\n  got:  no tokens\n  need: at least one token"):
        tokenize_prompts(open_chat(without_bos, "text"), ["a", ""])


@pytest.mark.parametrize(
    ("template", "prompt_format", "settings", "message"),
    [
        (
            None,
            "messages",
            {},
            (
                "the tokenizer of '' has no chat template\n"
                "  got:  prompts that are chat messages\n"
                "  need: a chat template that renders them\n"
                "  do:   use a model that has one, put chat_template.jinja next to its tokenizer, "
                "or write the prompts as text"
            ),
        ),
        (
            CHATML,
            "messages",
            {"chat_template_kwargs": {"enable_thinkin": False}},
            (
                "chat_template_kwargs.enable_thinkin has no effect\n"
                "  need: an argument that the chat template reads\n"
                "  do:   did you mean 'enable_thinking'?"
            ),
        ),
        (
            CHATML,
            "messages",
            {"chat_template_kwargs": {"zzz": 1}},
            (
                "chat_template_kwargs.zzz has no effect\n  need: an argument that the chat template reads\n"
                "  do:   remove it"
            ),
        ),
        (
            CHATML,
            "messages",
            {"chat_template_kwargs": {"add_generation_prompt": False}},
            (
                "chat_template_kwargs.add_generation_prompt\n  got:  an argument that purerl sets for every prompt\n"
                "  do:   remove it"
            ),
        ),
        (
            CHATML,
            "messages",
            {"chat_template_kwargs": {"enable_thinking": "false"}},
            "chat_template_kwargs.enable_thinking\n  got:  'false'\n  need: true or false",
        ),
        (
            "{#- reads zzzz -#}" + CHATML,
            "messages",
            {"chat_template_kwargs": {"zzzz": 1}},
            (
                "chat_template_kwargs.zzzz has no effect\n"
                "  need: an argument that the chat template reads\n"
                "  do:   remove it"
            ),
        ),
        (
            CHATML,
            "text",
            {"system_prompt": "be"},
            (
                "system_prompt has no effect\n"
                "  got:  plain-text prompts\n"
                "  need: chat messages\n"
                "  do:   remove system_prompt, or write the prompts as chat messages"
            ),
        ),
    ],
)
def test_missing_template_and_settings_without_effect_are_refused(
    template: str | None, prompt_format: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_chat(tokenizer(template), prompt_format, **settings)
    assert str(caught.value) == message
