"""The tokens of a row for people: id, text and origin of each; and how a completion of the row ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from purerl.data.answers import TokenizedExample
from purerl.data.chat import Chat, Prompt, TextOrMessages
from purerl.data.encoding import decode, encode_continuation
from purerl.data.origins import CONTEXT, MODEL, find_origins
from purerl.data.pieces import decode_tokens

__all__ = ["ShownEnding", "ShownRow", "ShownToken", "endings_of", "show_row", "show_sampled"]


class ShownToken(NamedTuple):
    """A token, its text, and its origin: a role, or one of the names in `purerl.data.origins`."""

    id: int
    text: str
    origin: str

    @property
    def is_learned(self) -> bool:
        """Whether it is learned, or was sampled by the model."""
        return self.origin == MODEL


class ShownRow(NamedTuple):
    """The tokens of a row, whose texts together are the text of all of them, and what could not be found in them."""

    tokens: tuple[ShownToken, ...]
    problems: tuple[str, ...] = ()


class ShownEnding(NamedTuple):
    """A stop token or a stop string: its text, and the tokens of this text alone."""

    kind: str
    text: str
    tokens: tuple[ShownToken, ...]


def show_row(chat: Chat, prompt: TextOrMessages, answer: TextOrMessages, example: TokenizedExample) -> ShownRow:
    """The tokens of `example`, which are those of `prompt` and `answer` in `chat`; see `find_origins`."""
    origins = find_origins(chat, prompt, answer, example.tokens, example.action, example.images)
    return ShownRow(_shown(chat, example.tokens, origins.tokens), origins.problems)


def show_sampled(
    chat: Chat, prompt: TextOrMessages, tokenized: Prompt, tokens: Sequence[int], is_sampled: Sequence[bool]
) -> ShownRow:
    """The `tokens` of a row of which the model has sampled some; `tokenized` has those of `prompt` in `chat`.

    The tokens with which both begin have their origins. Everything else that was not sampled is context.
    """
    pairs = zip(tokens, tokenized.tokens, is_sampled, strict=False)
    common = sum(1 for _ in takewhile(lambda each: each[0] == each[1] and not each[2], pairs))
    is_model = [False] * len(tokenized.tokens)
    origins = find_origins(chat, prompt, "", tokenized.tokens, is_model, tokenized.images)
    rest = [MODEL if own else CONTEXT for own in is_sampled[common:]]
    return ShownRow(_shown(chat, tokens, [*origins.tokens[:common], *rest]), origins.problems)


def endings_of(chat: Chat, stop_strings: Sequence[str]) -> tuple[ShownEnding, ...]:
    """The stop tokens of `chat`, and `stop_strings`, which end a completion whatever tokens they consist of."""
    tokens = [(chat.tokenizer.decode([token]), [token]) for token in chat.stop_tokens]
    strings = [(string, encode_continuation(chat, string)) for string in stop_strings]
    return tuple(
        ShownEnding(kind, text, _shown(chat, ids, [MODEL] * len(ids)))
        for kind, group in (("stop token", tokens), ("stop string", strings))
        for text, ids in group
    )


def _shown(chat: Chat, ids: Sequence[int], origins: Sequence[str]) -> tuple[ShownToken, ...]:
    texts = decode_tokens(lambda part: decode(chat, part, skip_special_tokens=False), ids)
    return tuple(map(ShownToken, ids, texts, origins))
