"""Texts as tokens, and tokens as text: plain text, rendered conversations, and text that follows other tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from string import ascii_letters, digits
from typing import Any, Protocol

import numpy as np

from purerl.data.special_tokens import encode, is_marked

__all__ = [
    "Encoding",
    "bounded_tokens",
    "decode",
    "encode_continuation",
    "encode_rendered",
    "encode_strings",
    "is_byte_level",
]

_MAX_NFC_GROWTH = 3
"""The largest ratio of the bytes of a text in normal form C, in UTF-8, to those of the text itself."""


class Encoding(Protocol):
    """The part of `purerl.data.chat.Chat` that decides how texts are encoded."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def escapes(self) -> bool: ...
    @property
    def first_tokens(self) -> tuple[int, ...]: ...
    @property
    def line_break_tokens(self) -> tuple[int, ...]: ...
    @property
    def absorbing_tokens(self) -> frozenset[int]: ...


def encode_strings(chat: Encoding, texts: Sequence[str]) -> list[list[int]]:
    """Tokenize plain-text prompts, with the special tokens that the tokenizer adds before a text.

    They are not added to a text that begins with them. Those that it adds after a text would end the prompt.
    """
    options = {"split_special_tokens": True} if chat.escapes else {}
    first = chat.first_tokens
    encoded = chat.tokenizer(list(texts), add_special_tokens=False, **options)["input_ids"]
    return [ids if first and ids[: len(first)] == [*first] else [*first, *ids] for ids in encoded]


def encode_rendered(chat: Encoding, texts: Sequence[str]) -> list[list[int]]:
    """Tokenize the results of `render`. The chat template has already added the special tokens."""
    if chat.escapes and any(map(is_marked, texts)):
        return [encode(chat.tokenizer, text).tokens for text in texts]
    backend = getattr(chat.tokenizer, "backend_tokenizer", None)
    if backend is None or backend.truncation or backend.padding or backend.encode_special_tokens:
        return chat.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    # What transformers builds around these numbers takes longer than they do, and a turn has few tokens.
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def encode_continuation(chat: Encoding, text: str) -> list[int]:
    """Tokenize rendered `text` that follows other tokens.

    Some tokenizers add a space at the start of a text. It is avoided by a character before it, whose tokens are removed
    again: a line break, or another one if that would merge with the text, or if the tokenizer removes or does not know
    it.
    """
    before, joined = chat.line_break_tokens, encode_rendered(chat, ["\n" + text])[0]
    if _is_prefix(chat, before, joined):
        return joined[len(before) :]
    own = encode_rendered(chat, [text])[0]
    return next(filter(None, [_encode_after(chat, character, text) for character in ".a0:"]), own)


def _encode_after(chat: Encoding, character: str, text: str) -> list[int] | None:
    """The tokens of `text` after `character`; None if it is not their prefix, or if there is a space of its own."""
    before, joined = encode_rendered(chat, [character, character + text])
    shown, alone = (decode(chat, tokens, skip_special_tokens=False) for tokens in (joined, before))
    has_space = shown.startswith(alone) and shown[len(alone) :][:1].isspace()
    return joined[len(before) :] if _is_prefix(chat, before, joined) and has_space == text[:1].isspace() else None


def _is_prefix(chat: Encoding, before: Sequence[int], joined: Sequence[int]) -> bool:
    """Whether `joined` are the tokens `before`, and those of all text that follows."""
    return bool(before) and joined[: len(before)] == [*before] and before[-1] not in chat.absorbing_tokens


def decode(chat: Encoding, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
    """The text of `tokens`."""
    # transformers checks the type of each element of a list, which takes longer than decoding.
    return chat.tokenizer.decode(np.asarray(tokens, dtype=np.int64), skip_special_tokens=skip_special_tokens)


def is_byte_level(tokenizer: Any) -> bool:
    """Whether `tokenizer` is a byte-level BPE: at least one token of a text with a letter or digit of ASCII.

    It makes at most one token of each byte of a text, which may be normalized to form C before. Of another tokenizer,
    such as SentencePiece, no such bounds are known.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE" or backend.truncation or backend.padding:
        return False
    from tokenizers.normalizers import NFC

    if not isinstance(backend.normalizer, NFC | None):
        return False
    state = json.loads(backend.pre_tokenizer.__getstate__()) if backend.pre_tokenizer else {}
    *others, last = state.get("pretokenizers", [state])
    keeps_text = all(each["type"] in ("Split", "Digits") and each.get("behavior") != "Removed" for each in others)
    knows_ascii = None not in map(backend.token_to_id, ascii_letters + digits)
    return last.get("type") == "ByteLevel" and keeps_text and knows_ascii


def bounded_tokens(text: str) -> int | None:
    """An upper bound of the number of tokens of `text`, of a tokenizer for which `is_byte_level` is true.

    None if the text has no letter or digit of ASCII: then it may have no token.
    """
    if not any(character.isalnum() and character.isascii() for character in text):
        return None
    return _MAX_NFC_GROWTH * len(text.encode()) + 1  # a space may be added before the text
