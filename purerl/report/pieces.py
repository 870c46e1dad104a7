"""The text of each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["Decode", "decoder", "pieces"]

Decode = Callable[[Sequence[int]], str]

_BYTES_OF_A_CHARACTER = 4


def decoder(run: Path) -> Decode:
    """From ids to text by the tokenizer in the directory of `run`; where there is none, an id's text is its number."""
    path = run / "tokenizer" / "tokenizer.json"
    if not path.exists():
        return _numbers
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def _numbers(ids: Sequence[int]) -> str:
    return "".join(f"[{number}]" for number in ids)


def pieces(decode: Decode, ids: Sequence[int]) -> list[str]:
    """The text of each of `ids`, which together are the text of all.

    A token is decoded behind the one before it, for some tokenizers drop a space at the beginning. A character that is
    spread over several tokens is the text of the last of them; the others' is empty.

    >>> pieces(lambda ids: bytes(ids).decode(errors="replace"), [65, 195, 169, 66])
    ['A', '', 'é', 'B']
    """
    found = []
    before = done = 0  # the ids up to `done` have their text, and `before` is where the last of them begins
    for end in range(1, len(ids) + 1):
        text = decode(ids[before:end])
        if text.endswith("\ufffd") and end - done < _BYTES_OF_A_CHARACTER and end < len(ids):
            found.append("")
            continue
        found.append(text[len(decode(ids[before:done])) :])
        before, done = done, end
    return found
