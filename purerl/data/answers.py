"""Tokenization of prompts with answers, and the mask of the tokens to learn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from purerl.data.chat import (
    Chat,
    Messages,
    TextOrMessages,
    add_system_prompt,
    apply_template,
    encode_rendered,
    eos_tokens,
    render,
    roles_of,
    tokenize_prompts,
    with_expansions,
)
from purerl.data.images import images_of
from purerl.data.messages import is_learned
from purerl.data.special_tokens import encode, is_marked
from purerl.errors import DataError
from purerl.images import Image

__all__ = ["TokenizedExample", "tokenize_answer"]


class TokenizedExample(NamedTuple):
    """The tokens of a prompt and its answer, and their images; `action` is True for the tokens to learn."""

    tokens: list[int]
    action: list[bool]
    images: Sequence[Image] = ()


def tokenize_answer(chat: Chat, prompt: TextOrMessages, answer: TextOrMessages) -> TokenizedExample:
    """Tokenize `prompt` followed by `answer` and mark the tokens to learn. Both are strings, or both are messages.

    Strings: the tokens to learn are the answer and the EOS token after it. Messages: the tokens to learn are every
    assistant turn in the answer without the weight 0, each with the token that ends it. If the chat template has
    ``{% generation %}`` markers, they define the assistant turns. Otherwise a turn consists of the tokens that it adds
    to the conversation before it.

    Raises: DataError if the prompt is empty, if there is nothing to learn, or if the template has no markers and
    renders earlier turns differently when more messages follow.
    """
    if isinstance(prompt, str):
        prompt_tokens = tokenize_prompts(chat, [prompt])[0].tokens
        answer_tokens = [*encode_rendered(chat, [str(answer)])[0], *eos_tokens(chat.tokenizer)]
        action = [False] * len(prompt_tokens) + [True] * len(answer_tokens)
        return TokenizedExample(prompt_tokens + answer_tokens, action)
    prompt = add_system_prompt(chat, prompt)
    messages = [*prompt, *answer]
    tokenize = _tokenize_with_markers if _has_generation_markers(chat) else _tokenize_by_turns
    example = tokenize(chat, messages, len(prompt)) if any(map(is_learned, answer)) else TokenizedExample([], [])
    if not any(example.action):
        what = "the conversation has no assistant tokens to learn"
        need = "an assistant turn after the prompt, without the weight 0"
        raise DataError(what, got=roles_of(messages), need=need, do="remove the row")
    return _with_image_tokens(chat, example, images_of(messages))


def _has_generation_markers(chat: Chat) -> bool:
    template = chat.tokenizer.get_chat_template(tools=chat.chat_template_kwargs.get("tools"))
    return re.search(r"{%-?\s*generation\s*-?%}", str(template)) is not None


def _tokenize_with_markers(chat: Chat, messages: Messages, first: int) -> TokenizedExample:
    """Mark the tokens that the template marks, starting with message `first`, but for turns that are not learned.

    Raises: DataError if some turns are not learned, and the template does not mark each turn once.
    """
    tokens, marked = _encode_with_markers(chat, messages)
    is_assistant = messages[first]["role"] == "assistant"
    start = _prefix_length(chat, tokens, messages[:first], add_generation_prompt=is_assistant)
    learned = [*map(is_learned, (message for message in messages if message["role"] == "assistant"))]
    runs = [(marks, len([*run])) for marks, run in groupby(marked)]
    num_runs = sum(marks for marks, _ in runs)
    if not all(learned[len(learned) - sum(message["role"] == "assistant" for message in messages[first:]) :]):
        if num_runs != len(learned):
            got, need = (
                f"{num_runs} marked parts for {len(learned)} turns",
                "one for each, to leave out those of weight 0",
            )
            raise DataError("the {% generation %} markers of the chat template", got=got, need=need)
        turns = iter(learned)
        runs = [(marks and next(turns), length) for marks, length in runs]
    action = [marks for marks, length in runs for _ in range(length)]
    return TokenizedExample(tokens, [k >= start and learns for k, learns in enumerate(action)])


def _encode_with_markers(chat: Chat, messages: Messages) -> tuple[list[int], list[bool]]:
    """The tokens of `messages`, and whether the template marks each of them as the assistant's."""
    options: dict[str, Any] = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    text = render(chat, messages) if chat.escapes else ""
    if not is_marked(text):
        encoded = apply_template(chat, messages, **options)
        return list(encoded["input_ids"]), list(map(bool, encoded["assistant_masks"]))
    encoded = apply_template(chat, messages, **options, tokenizer_kwargs={"return_offsets_mapping": True})
    is_assistant = [False] * len(text)
    for (start, end), marked in zip(encoded["offset_mapping"], encoded["assistant_masks"], strict=True):
        is_assistant[start:end] = [bool(marked)] * (end - start)
    tokens, starts = encode(chat.tokenizer, text)
    return tokens, [is_assistant[start] for start in starts]


def _tokenize_by_turns(chat: Chat, messages: Messages, first: int) -> TokenizedExample:
    """Mark the tokens that each turn to learn, starting with message `first`, adds to the messages before it."""
    tokens = encode_rendered(chat, [render(chat, messages)])[0]
    action = [False] * len(tokens)
    for turn in range(first, len(messages)):
        if is_learned(messages[turn]):
            start = _prefix_length(chat, tokens, messages[:turn], add_generation_prompt=True)
            end = _prefix_length(chat, tokens, messages[: turn + 1])
            # Tokens after the end token, for example a line break, are not part of the answer.
            end = max((k + 1 for k in range(start, end) if tokens[k] in chat.end_tokens), default=end)
            action[start:end] = [True] * (end - start)
    return TokenizedExample(tokens, action)


def _prefix_length(chat: Chat, tokens: Sequence[int], messages: Messages, **kwargs: Any) -> int:
    """The number of tokens of `messages`. Raises DataError if they are not a prefix of `tokens`."""
    prefix = encode_rendered(chat, [render(chat, messages, **kwargs)])[0]
    if tokens[: len(prefix)] != prefix:
        raise DataError(
            "the chat template changes earlier turns when more messages follow",
            got=f"different tokens for the first {len(messages)} messages",
            need="turns that stay the same when messages follow, or a template with {% generation %} markers",
            do="put one answer in each row, in columns `prompt` and `completion`, or use another chat template",
        )
    return len(prefix)


def _with_image_tokens(chat: Chat, example: TokenizedExample, images: Sequence[Image]) -> TokenizedExample:
    """`example`, in which each image has one token, with all of its tokens. None of them is learned."""
    if chat.processor is None:
        return example
    lengths = iter([len(chat.processor.expansion(image)) for image in images])
    tokens, placeholder = with_expansions(chat, example.tokens, images), chat.processor.image_token_id
    parts = (
        [False] * next(lengths) if token == placeholder else [is_learned]
        for token, is_learned in zip(example.tokens, example.action, strict=True)
    )
    return TokenizedExample(tokens, [*chain.from_iterable(parts)], images)
