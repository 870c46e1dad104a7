"""Tokenization of prompts with answers, and the mask of the tokens to learn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from purerl.data.boundaries import encode_after_prompt, encode_with_cuts
from purerl.data.chat import (
    Chat,
    TextOrMessages,
    add_system_prompt,
    empty_prompt,
    eos_tokens,
    roles_of,
    with_expansions,
)
from purerl.data.encoding import encode_strings
from purerl.data.messages import is_learned
from purerl.data.row_images import images_of
from purerl.data.spans import learned_spans
from purerl.errors import DataError
from purerl.images import Image

__all__ = ["TokenizedExample", "tokenize_answer", "tokenize_text"]


class TokenizedExample(NamedTuple):
    """The tokens of a prompt and its answer, and their images; `action` is True for the tokens to learn.

    is_split   whether a token of the joint text would cross the border of a prompt and an answer
    added_end  whether the last token is the EOS token, because the chat template does not end a turn
    """

    tokens: list[int]
    action: list[bool]
    images: Sequence[Image] = ()
    is_split: bool = False
    added_end: bool = False


def tokenize_answer(chat: Chat, prompt: TextOrMessages, answer: TextOrMessages) -> TokenizedExample:
    """Tokenize `prompt` followed by `answer` and mark the tokens to learn. Both are strings, or both are messages.

    Strings: the tokens to learn are the answer and the EOS token after it. Messages: the tokens to learn are every
    assistant turn in the answer without the weight 0, each with the token that ends it. If the chat template has
    ``{% generation %}`` markers, they define the assistant turns, without the generation prompt and without space after
    the end token. Otherwise a turn is the text that it adds to the conversation before it, and the stop token that
    begins what follows, if the template does not end a turn. After the last turn, such a template gets the EOS token.

    The tokens before a turn are those that the model would sample after: see `purerl.data.boundaries`.

    Raises: DataError if the prompt is empty, if there is nothing to learn, or if the template has no markers and
    renders earlier turns differently when more messages follow.
    """
    if isinstance(prompt, str):
        return _tokenize_text(chat, prompt, str(answer))
    prompt = add_system_prompt(chat, prompt)
    messages = [*prompt, *answer]
    text, spans = learned_spans(chat, messages, len(prompt)) if any(map(is_learned, answer)) else ("", [])
    if not spans:
        what = "the conversation has no assistant tokens to learn"
        need = "an assistant turn after the prompt, without the weight 0"
        raise DataError(what, got=roles_of(messages), need=need, do="remove the row")
    tokens, ends, is_split = encode_with_cuts(chat, text, [*chain.from_iterable(spans)])
    action = [False] * len(tokens)
    for start, end in zip(ends[::2], ends[1::2], strict=True):
        action[start:end] = [True] * (end - start)
    example = _with_end(chat, TokenizedExample(tokens, action, (), is_split))
    return _with_image_tokens(chat, example, images_of(messages))


def tokenize_text(chat: Chat, text: str) -> TokenizedExample:
    """Tokenize plain `text` and the EOS token after it. Every token is learned but the first, which nothing precedes.

    The first one is the token that the tokenizer adds before a text, if it adds one.

    Raises: DataError if there is nothing to learn.
    """
    [tokens] = encode_strings(chat, [text])
    eos = eos_tokens(chat.tokenizer)
    if not eos or [*eos] != tokens[-1:]:
        tokens = [*tokens, *eos]
    if len(tokens) < 2:
        got, need = f"a text of {len(tokens)} tokens: {text!r:.100}", "at least two tokens"
        raise DataError("there is nothing to learn", got=got, need=need, do="remove the row")
    return TokenizedExample(tokens, [False] + [True] * (len(tokens) - 1))


def _with_end(chat: Chat, example: TokenizedExample) -> TokenizedExample:
    """`example` with the EOS token after its last turn, if the chat template has no token that ends a turn."""
    eos = eos_tokens(chat.tokenizer)
    if not example.action[-1] or chat.ends_turns or not eos or example.tokens[-1] in chat.stop_tokens:
        return example
    return example._replace(tokens=[*example.tokens, *eos], action=[*example.action, True], added_end=True)


def _tokenize_text(chat: Chat, prompt: str, answer: str) -> TokenizedExample:
    tokens, [start], is_split = encode_after_prompt(chat, prompt, answer)
    if not start:
        raise empty_prompt(prompt)
    eos = eos_tokens(chat.tokenizer)
    if not eos or [*eos] != tokens[start:][-1:]:
        tokens = [*tokens, *eos]
    if len(tokens) == start:
        got, need = f"an answer without tokens: {answer!r:.100}", "text, or a tokenizer with an EOS token"
        raise DataError("there is nothing to learn", got=got, need=need, do="remove the row")
    return TokenizedExample(tokens, [k >= start for k in range(len(tokens))], (), is_split)


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
    return example._replace(tokens=tokens, action=[*chain.from_iterable(parts)], images=images)
