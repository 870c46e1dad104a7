"""The border between a prompt and what follows it, in tokens.

A model samples after the tokens of the prompt alone. So these stand in training data too. What follows has the tokens
that remain when both texts are tokenized together. A token of the joint text may cross the border: it has characters of
both sides, and is never sampled. Then the text after the border is tokenized as a continuation. So it is if the last
token of the prompt stands for text of the answer: a token of unknown text, or a special token that removes space after
it.

Special tokens that a tokenizer adds stand once: those before a text are not added to one that begins with them, as a
text does that a template has rendered, and those after a text come only at the end of an answer, if they are its EOS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from purerl.data.chat import Chat
from purerl.data.encoding import encode_continuation, encode_rendered, encode_strings
from purerl.data.special_tokens import spelled

__all__ = ["Pieces", "encode_after_prompt", "encode_with_cuts"]


class Pieces(NamedTuple):
    """The tokens of a text with cuts.

    tokens    of the whole text
    ends      for each cut, the number of tokens before it
    is_split  whether a token of the joint text would cross a cut, or stand for text after it
    """

    tokens: list[int]
    ends: list[int]
    is_split: bool


def encode_with_cuts(chat: Chat, text: str, cuts: Sequence[int]) -> Pieces:
    """Tokenize rendered `text`, so that no token crosses any of `cuts`, which are ascending numbers of characters.

    The tokens before a cut are those of the text before it. What is learned starts at every other cut, from the first.
    """
    return _with_cuts(text, cuts, lambda piece: encode_rendered(chat, [piece])[0], chat)


def encode_after_prompt(chat: Chat, prompt: str, answer: str) -> Pieces:
    """Tokenize a plain-text `prompt` and `answer`, with the special tokens that the tokenizer adds before a text."""
    if chat.escapes and spelled(chat.tokenizer, prompt):  # its special tokens are text; those of an answer are tokens
        before = encode_strings(chat, [prompt])[0]
        return Pieces([*before, *encode_continuation(chat, answer)], [len(before)], is_split=False)
    return _with_cuts(prompt + answer, [len(prompt)], lambda piece: encode_strings(chat, [piece])[0], chat)


def _with_cuts(text: str, cuts: Sequence[int], encode: Callable[[str], list[int]], chat: Chat) -> Pieces:
    tokens, ends, is_split = encode(text), list[int](), False
    base, before = 0, list[int]()  # where the text was last split, and the tokens before that

    for number, cut in enumerate(cuts):
        piece = text[base:cut]
        prefix = encode(piece) if base == 0 else [*before, *encode_continuation(chat, piece)]
        is_absorbed = number % 2 == 0 and _is_absorbed(chat, prefix, tokens, text[cut:])
        if tokens[: len(prefix)] != prefix or is_absorbed:
            base, before, is_split = cut, prefix, True
            tokens = [*prefix, *encode_continuation(chat, text[cut:])]
        ends.append(len(prefix))
    return Pieces(tokens, ends, is_split)


def _is_absorbed(chat: Chat, prefix: list[int], tokens: list[int], following: str) -> bool:
    """Whether the last token of `prefix` stands for a part of the text `following` in `tokens`."""
    if not {*prefix[-1:]} & chat.absorbing_tokens:
        return False
    token = chat.tokenizer.added_tokens_decoder.get(prefix[-1])
    removes_space = token is not None and token.rstrip
    may_absorb = following[:1].isspace() if removes_space else bool(following)
    return may_absorb and tokens != [*prefix, *encode_continuation(chat, following)]
