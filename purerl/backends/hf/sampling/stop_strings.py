"""Detection of stop strings in the text of a completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
        self._tokenizer: PreTrainedTokenizerBase | None = None

    def contains(self, tokens: Sequence[int], stop_strings: Sequence[str]) -> bool:
        """Whether one of `stop_strings` occurs in the text of `tokens`, special tokens included."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._model)
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return any(string in text for string in stop_strings)
