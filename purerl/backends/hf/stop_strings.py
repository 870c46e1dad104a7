"""Stop texts: whether the end of a completion spells one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from purerl.backends.tokenizer import load_tokenizer
from purerl.protocols import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Texts", "span"]


def span(stop: Sequence[str]) -> int:
    """How many tokens at the end of a completion can have to do with one of `stop`.

    A text of n bytes has at most n tokens. Four more go before them, because the first token of a sequence, and a
    character that it begins in the middle of, may be decoded differently.

    >>> span(["a", "bc"])
    6
    """
    return max(len(text.encode()) for text in stop) + 4


class Texts:
    """Decodes tokens with `model`'s tokenizer, which is loaded when a text is first asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._tokenizer: PreTrainedTokenizerBase | None = None

    def stopped(self, tokens: Sequence[int], stop: Sequence[str]) -> bool:
        """Whether one of `stop` occurs in the text of `tokens`, special tokens included."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._model)
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return any(one in text for one in stop)
