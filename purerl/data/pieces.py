"""The text of each token of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Decode", "decode_tokens"]

Decode = Callable[[Sequence[int]], str]

_MAX_BYTES_PER_CHARACTER = 4  # in UTF-8


def decode_tokens(decode: Decode, ids: Sequence[int]) -> list[str]:
    """Return one string per token. Their concatenation is the text of all tokens.

    Each token is decoded together with the one before it, because some tokenizers drop a space at the start of the
    text. If the bytes of a character are split over several tokens, the last of these tokens gets the character and
    the others get an empty string.

    >>> decode_tokens(lambda ids: bytes(ids).decode(errors="replace"), [65, 195, 169, 66])
    ['A', '', 'é', 'B']
    """
    strings = []
    previous = start = 0  # tokens before `start` are decoded; `previous` is the first token of the last decoded string
    for end in range(1, len(ids) + 1):
        text = decode(ids[previous:end])
        if text.endswith("\ufffd") and end - start < _MAX_BYTES_PER_CHARACTER and end < len(ids):
            strings.append("")
            continue
        strings.append(text[len(decode(ids[previous:start])) :])
        previous, start = start, end
    return strings
