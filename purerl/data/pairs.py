"""Pairs that teach nothing, or only the length: equal answers, and an answer that is the start of the other one.

What is compared is what a run learns from: the tokens. Two answers that are written in different ways may have the same
ones, as when they differ in a key that nothing reads, or in space that the chat template removes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import compress

from purerl.data.answers import TokenizedExample
from purerl.data.chat import Chat, TextOrMessages
from purerl.data.encoding import decode
from purerl.data.examples import DataSet, extract_answers, iterate_chunks, rendered_at, rows_name, tokenized_at
from purerl.data.messages import is_learned
from purerl.data.row_images import text_of
from purerl.errors import DataError

__all__ = ["compare_answers", "pair_notes"]


def compare_answers(chat: Chat, chosen: TokenizedExample, rejected: TokenizedExample) -> str | None:
    """The reason that the answers of a pair are nearly the same; None if they are not.

    They are equal if the tokens to learn are. Otherwise one may be the start of the other in characters, but for the
    tokens that end it.
    """
    if [*compress(chosen.tokens, chosen.action)] == [*compress(rejected.tokens, rejected.action)]:
        return "the chosen answer equals the rejected answer"
    pairs = enumerate(zip(chosen.tokens, rejected.tokens, strict=False))
    start = next((k for k, (first, second) in pairs if first != second), 0)  # the texts before it are equal
    texts = [_text(chat, example, start) for example in (chosen, rejected)]
    if texts[1].startswith(texts[0]):
        return "the chosen answer is the start of the rejected answer"
    return "the rejected answer is the start of the chosen answer" if texts[0].startswith(texts[1]) else None


def _text(chat: Chat, example: TokenizedExample, start: int) -> str:
    """The text from the token `start` to the last one that is learned and does not end a completion."""
    ends = {*chat.end_tokens, *chat.stop_tokens}
    pairs = enumerate(zip(example.tokens, example.action, strict=True), start=1)
    end = max((k for k, (token, is_learned) in pairs if is_learned and token not in ends), default=0)
    return decode(chat, example.tokens[start:end], skip_special_tokens=False)


def _words(answer: TextOrMessages) -> str:
    """The letters and digits of the text to learn, without thoughts, which a template may leave out."""
    turns = [] if isinstance(answer, str) else [message for message in answer if is_learned(message)]
    text = answer if isinstance(answer, str) else "".join(text_of(message.get("content")) for message in turns)
    return re.sub(r"<think>.*?</think>|\W+", "", text, flags=re.DOTALL)


def pair_notes(data: DataSet, chat: Chat) -> Iterator[str]:
    """The pairs of `data` whose answers are nearly the same, counted and named by row, for each reason."""
    if data.example_format.example_type != "preferences":
        return
    rows: dict[str, list[int]] = {}
    for chunk in iterate_chunks(data.indices):
        for index, row in zip(chunk, rendered_at(data, chunk), strict=True):
            with suppress(DataError):  # the row is refused when it is drawn, or before
                first, second = map(_words, extract_answers(data.example_format, row))
                is_near = first.startswith(second) or second.startswith(first)  # others need no tokens
                if is_near and (reason := compare_answers(chat, *tokenized_at(chat, data, index, row))):
                    rows.setdefault(reason, []).append(index)
    for reason, indices in rows.items():
        pairs = "1 pair" if len(indices) == 1 else f"{len(indices):,} pairs"
        yield f"{pairs} in which {reason}: {rows_name(data, indices)}"
