"""Decode token ids to one string per token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from purerl.errors import DataError

__all__ = ["Decode", "decode_to_numbers", "decode_tokens", "load_decoder"]

Decode = Callable[[Sequence[int]], str]

_MAX_BYTES_PER_CHARACTER = 4  # in UTF-8


def load_decoder(run: Path) -> Decode:
    """Return the decode function of the tokenizer in the run directory. Special tokens are kept.

    Without a tokenizer, an id is decoded to its number in brackets.

    Raises: DataError if the file of the tokenizer cannot be read.
    """
    path = run / "tokenizer" / "tokenizer.json"
    if not path.exists():
        return decode_to_numbers
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises no class of its own
        raise DataError(f"{str(path)!r} cannot be read", got=error, need="a tokenizer") from error
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def decode_to_numbers(ids: Sequence[int]) -> str:
    """Return the numbers of all ids in brackets."""
    return "".join(f"[{number}]" for number in ids)


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
