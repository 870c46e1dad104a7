"""Prompts and conversations as tokens, and which of them are learned, under templates of several manners."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.data.chat import Chat, TokenizedExample, open_chat, tokenize_answer, tokenize_prompts
from purerl.errors import ConfigError, DataError

from .made import CHATML, FORGETFUL, HEADERS, MARKED, STRICT, assistant, system, tokenizer, user

CONVERSATION = [system("be"), user("hi"), assistant("yo"), user("2"), assistant("3")]


def _chat(rendering: str, **settings: Any) -> Chat:
    return open_chat(tokenizer(rendering), "messages", **settings)


def _shown(chat: Chat, row: TokenizedExample) -> str:
    """The text of a row, with what is learned in parentheses."""
    text, learning = "", False
    for token, action in zip(row.tokens, row.action, strict=True):
        text += {(False, True): "(", (True, False): ")"}.get((learning, action), "") + chat.tokenizer.decode([token])
        learning = action
    return text + ")" * learning


# --- prompts -----------------------------------------------------------------------------------------------------


def test_a_text_is_tokenized_as_it_is_with_the_tokenizers_own_beginning() -> None:
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
def test_messages_end_with_the_header_of_the_assistants_turn(template: str, text: str) -> None:
    chat = _chat(template)
    (prompt,) = tokenize_prompts(chat, [[user("hi")]])
    assert prompt.text == text
    assert chat.tokenizer.decode(prompt.tokens) == text, "special tokens are the template's business: one <bos> at most"
    assert len(prompt.tokens) < len(text) / 2, "and are one token each"


def test_the_system_prompt_is_that_of_conversations_that_have_none() -> None:
    chat = _chat(CHATML, system_prompt="be good")
    without, own = tokenize_prompts(chat, [[user("hi")], [system("be bad"), user("hi")]])
    assert without.text.startswith("<|im_start|>system\nbe good<|im_end|>\n<|im_start|>user\nhi")
    assert own.text.startswith("<|im_start|>system\nbe bad<|im_end|>\n<|im_start|>user\nhi")


def test_arguments_reach_the_template() -> None:
    (thinking,) = tokenize_prompts(_chat(CHATML), [[user("hi")]])
    (silent,) = tokenize_prompts(_chat(CHATML, chat_template_kwargs={"enable_thinking": False}), [[user("hi")]])
    assert silent.text == thinking.text + "<think></think>"


def test_what_ends_a_turn_ends_a_completion_before_the_end_token_does() -> None:
    found = {name: _chat(template).ends for name, template in (("chatml", CHATML), ("headers", HEADERS))}
    words = {name: tokenizer().convert_ids_to_tokens(ends) for name, ends in found.items()}
    assert words == {"chatml": ["<|im_end|>", "<eos>"], "headers": ["<|eot|>", "<eos>"]}
    assert open_chat(tokenizer(CHATML, eos="<|im_end|>"), "messages").ends == found["chatml"][:1]
    assert open_chat(tokenizer(eos=None), "text").ends == ()


def test_a_completion_also_ends_where_the_model_says_but_nothing_is_learned_of_it() -> None:
    made = tokenizer(HEADERS)
    own = made.convert_tokens_to_ids(["<|im_end|>", "<eos>"])
    plain, more = open_chat(made, "messages"), open_chat(made, "messages", ends=[*own, 10**6])
    assert made.convert_ids_to_tokens(more.stops) == ["<|eot|>", "<eos>", "<|im_end|>"]
    assert more.ends == plain.ends == plain.stops
    assert open_chat(made, "text", ends=own).stops == tuple(reversed(own))
    assert open_chat(tokenizer(eos=None), "text", ends=[10**6]).stops == ()


# --- what is learned ----------------------------------------------------------------------------------------------


def test_of_a_text_the_answer_and_the_end_token_are_learned() -> None:
    chat = open_chat(tokenizer(), "text")
    assert _shown(chat, tokenize_answer(chat, "1+1=", "2")) == "<bos>1+1=(2<eos>)"
    assert tokenize_answer(_chat(CHATML), "1+1=", "2") == tokenize_answer(chat, "1+1=", "2"), "whatever ends a turn"


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["what is added", "what is marked"])
def test_every_turn_of_the_assistants_is_learned_with_its_end_and_nothing_else(template: str) -> None:
    chat = _chat(template)
    before = "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    between = "\n<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\n"
    both = tokenize_answer(chat, CONVERSATION[:2], CONVERSATION[2:])
    assert _shown(chat, both) == f"{before}(yo<|im_end|>){between}(3<|im_end|>)\n"
    last = tokenize_answer(chat, CONVERSATION[:4], CONVERSATION[4:])
    assert _shown(chat, last) == f"{before}yo<|im_end|>{between}(3<|im_end|>)\n"
    assert both.tokens == last.tokens


def test_the_prompt_of_a_rollout_is_the_beginning_of_a_demonstration() -> None:
    for template in (CHATML, HEADERS, MARKED, FORGETFUL):
        chat = _chat(template, system_prompt="be")
        (prompt,) = tokenize_prompts(chat, [[user("hi")]])
        row = tokenize_answer(chat, [user("hi")], [assistant("yo")])
        assert row.tokens[: len(prompt.tokens)] == prompt.tokens
        assert row.action.index(True) == len(prompt.tokens)


def test_a_template_without_line_breaks_ends_with_the_end_of_the_turn() -> None:
    chat = _chat(HEADERS)
    row = tokenize_answer(chat, CONVERSATION[:2], CONVERSATION[2:])
    assert _shown(chat, row).endswith("(yo<|eot|>)<|start_header|>user<|end_header|>\n\n2<|eot|>"
                                      "<|start_header|>assistant<|end_header|>\n\n(3<|eot|>)")  # fmt: skip


# --- what is refused ---------------------------------------------------------------------------------------------


def _refused(template: str, prompt: list, answer: list) -> str:
    with pytest.raises(DataError) as caught:
        tokenize_answer(_chat(template), prompt, answer)
    return str(caught.value)


def test_a_template_that_renders_the_beginning_otherwise_is_refused_where_it_matters() -> None:
    assert _refused(FORGETFUL, CONVERSATION[:2], CONVERSATION[2:]) == (
        "the chat template renders the beginning of a conversation otherwise than the whole\n"
        "  got:  another beginning after 3 messages\n"
        "  need: turns that stay as they are when others follow, or a template with {% generation %} marks\n"
        "  do:   learn one answer at a time, from columns `prompt` and `completion`, or name another template"
    )
    chat = _chat(FORGETFUL)
    row = tokenize_answer(chat, CONVERSATION[:4], CONVERSATION[4:])
    assert _shown(chat, row).endswith("<|im_start|>assistant\n(<think></think>3<|im_end|>)\n")


def test_what_has_nothing_to_learn_or_nothing_before_it_is_refused() -> None:
    for template in (CHATML, MARKED):
        for answer, roles in (([user("yo")], "user, user"), ([], "user")):
            assert _refused(template, [user("hi")], answer) == (
                f"a conversation without anything to learn\n  got:  {roles}\n  need: a turn of the assistant's"
            )
        assert _refused(template, [], [assistant("yo")]) == (
            "a conversation that the assistant begins\n  need: a message before it: something to answer"
        )


def test_a_conversation_that_the_template_refuses_is_told() -> None:
    with pytest.raises(DataError) as caught:
        tokenize_prompts(_chat(STRICT, system_prompt="be"), [[user("hi")]])
    assert str(caught.value) == (
        "the chat template refuses a conversation: no system prompts\n  got:  system, user"
    )  # fmt: skip


def test_a_prompt_without_tokens_is_refused() -> None:
    made = tokenizer()
    made.backend_tokenizer.post_processor = None
    with pytest.raises(DataError, match="prompt ''\n  got:  no tokens\n  need: something to continue"):
        tokenize_prompts(open_chat(made, "text"), ["a", ""])


@pytest.mark.parametrize(
    ("template", "form", "settings", "message"),
    [
        (
            None,
            "messages",
            {},
            (
                "the tokenizer of '' has no chat template\n"
                "  got:  prompts that are chat messages\n"
                "  need: a template that renders them\n"
                "  do:   name a model that has one, put chat_template.jinja beside its tokenizer, "
                "or make the prompts texts"
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
                "  do:   leave it out"
            ),
        ),
        (
            CHATML,
            "messages",
            {"chat_template_kwargs": {"add_generation_prompt": False}},
            (
                "chat_template_kwargs.add_generation_prompt\n  got:  an argument that is set for every prompt\n"
                "  do:   leave it out"
            ),
        ),
        (
            CHATML,
            "text",
            {"system_prompt": "be"},
            (
                "system_prompt has no effect\n"
                "  got:  prompts that are texts\n"
                "  need: chat messages\n"
                "  do:   leave system_prompt out, or write the prompts as messages"
            ),
        ),
    ],
)
def test_a_tokenizer_or_a_setting_that_does_not_do(
    template: str | None, form: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_chat(tokenizer(template), form, **settings)
    assert str(caught.value) == message
