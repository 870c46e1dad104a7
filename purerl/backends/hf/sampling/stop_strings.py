"""Detection of stop strings in the text of a completion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model

__all__ = ["StopStrings", "window"]


def window(stop_strings: Sequence[str]) -> int:
    """The maximum number of tokens at the end of a completion that can contain one of `stop_strings`.

    A string of n bytes has at most n tokens. Four tokens are added before them, because the first token of a sequence
    may be decoded differently, also if it is only a part of a character.

    >>> window(["a", "bc"])
    6
    """
    return max(len(string.encode()) for string in stop_strings) + 4


class StopStrings:
    """Finds stop strings with the tokenizer of `model`, which is loaded at the first use."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._model)

    def contains(self, tokens: Sequence[int], stop_strings: Sequence[str]) -> bool:
        """Whether one of `stop_strings` occurs in the text of `tokens`, special tokens included."""
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return any(string in text for string in stop_strings)
