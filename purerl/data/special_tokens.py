"""Text that spells a special token of the tokenizer, such as ``<|im_end|>``, in prompts.

A tokenizer reads such text as the token itself. To read it as text, `mark` puts two private characters around it before
the chat template renders it. `encode` then tokenizes the marked text as ordinary text, and all other text, with the
special tokens of the template, as usual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

__all__ = [
    "Encoded",
    "absorbing_tokens",
    "encode",
    "is_marked",
    "mark",
    "pattern_of",
    "special_texts",
    "spelled",
    "unmark",
]

_START, _END = "\ue0f0", "\ue0f1"  # private use: they have no meaning in any text
_PIECES = re.compile(f"{_START}(.*?){_END}", re.DOTALL)


class Encoded(NamedTuple):
    """The tokens of a text, and for each of them the index of its first character."""

    tokens: list[int]
    starts: list[int]


def special_texts(tokenizer: Any) -> list[str]:
    """The texts of the special tokens of `tokenizer`."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """The pattern that finds each of `texts`, a longer one before a shorter one."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def spelled(tokenizer: Any, text: str) -> str | None:
    """The first special token that `text` spells; None if it spells none."""
    match = pattern_of(special_texts(tokenizer)).search(text)
    return match and match[0]


def absorbing_tokens(tokenizer: Any) -> frozenset[int]:
    """The tokens that may stand for more text than that before them, so that no other token shows it.

    The token of unknown text, which may stand for several characters; added tokens that remove space after them.
    """
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"][-1:] for text in "\U000ffffe\U000fffff")
    unknown = {*first} & {*second} | {tokenizer.unk_token_id} - {None}  # no tokenizer knows these two characters
    return frozenset(unknown | {k for k, token in tokenizer.added_tokens_decoder.items() if token.rstrip})


def mark(tokenizer: Any, text: str) -> str:
    """`text` with marks around each special token that it spells. Marks that are in it already are removed."""
    return pattern_of(special_texts(tokenizer)).sub(f"{_START}\\g<0>{_END}", unmark(text))


def unmark(text: str) -> str:
    """`text` without marks."""
    return text.replace(_START, "").replace(_END, "")


def is_marked(text: str) -> bool:
    """Whether `text` has a mark."""
    return _START in text or _END in text


def encode(tokenizer: Any, text: str, *, is_continuation: bool = False) -> Encoded:
    """Tokenize rendered `text`: between marks as ordinary text, elsewhere as usual. No special tokens are added.

    A continuation follows other tokens, so that no space is added at its start.
    """
    parts = _PIECES.split(text)  # outside, marked, outside, marked, ..., outside
    widths = (len(part) + 2 * (k % 2) for k, part in enumerate(parts))
    starts = accumulate(widths, initial=0)
    pairs = [
        pair
        for k, (part, start) in enumerate(zip(parts, starts, strict=False))
        for pair in _encode_part(
            tokenizer, unmark(part), start + k % 2, is_text=k % 2 == 1, follows=bool(start + k % 2) or is_continuation
        )
    ]
    return Encoded([token for token, _ in pairs], [start for _, start in pairs])


def _encode_part(tokenizer: Any, part: str, start: int, *, is_text: bool, follows: bool) -> Iterator[tuple[int, int]]:
    """The tokens of the part that starts at `start`, without the space that some tokenizers add to a text."""
    options = {"add_special_tokens": False, "split_special_tokens": is_text, "return_offsets_mapping": True}
    before = tokenizer("\n", **options)["input_ids"] if follows else []
    encoded, shift = tokenizer("\n" + part, **options), 1
    if not before or encoded["input_ids"][: len(before)] != before:
        before, shift, encoded = [], 0, tokenizer(part, **options)
    for token, (first, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if shift == 0 or first >= shift:
            yield token, start + first - shift
