"""Prompts that are longer than a limit lose tokens, as in verl.

    left      the first tokens: the last `max_tokens` remain
    right     the last tokens: the first `max_tokens` remain
    middle    the middle: the first max_tokens // 2, and as many of the last ones as there is room for, remain

With messages, the tokens are those of the rendered conversation. `left` takes its start, and `right` its end, such as
the header of the assistant turn. Answers are never truncated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from purerl.data.answers import TokenizedExample
from purerl.data.chat import Chat, Prompt
from purerl.data.encoding import decode

__all__ = ["PromptLimit", "truncate", "truncate_example", "truncate_prompt", "truncate_text"]

T = TypeVar("T")


class PromptLimit(NamedTuple):
    """The maximum number of tokens of a prompt, and which of a longer one are left out: left, right or middle."""

    max_tokens: int
    side: str


def truncate(values: Sequence[T], limit: PromptLimit) -> list[T]:
    """The remaining `values`, one for each token of a truncated prompt.

    >>> [truncate([1, 2, 3, 4, 5, 6], PromptLimit(3, side)) for side in ("left", "right", "middle")]
    [[4, 5, 6], [1, 2, 3], [1, 5, 6]]
    """
    size = min(limit.max_tokens, len(values))
    first = {"left": 0, "right": size, "middle": size // 2}[limit.side] if size < len(values) else size
    return [*values[:first], *values[len(values) - (size - first) :]]


def truncate_prompt(chat: Chat, prompt: Prompt, limit: PromptLimit | None) -> Prompt:
    """`prompt` within `limit`. The text of a shorter prompt is that of its tokens."""
    if limit is None or len(prompt.tokens) <= limit.max_tokens:
        return prompt
    tokens = truncate(prompt.tokens, limit)
    return Prompt(decode(chat, tokens, skip_special_tokens=False), tokens)


def truncate_text(example: TokenizedExample, limit: PromptLimit | None) -> TokenizedExample:
    """`example`, a plain text that is learned, within `limit`. Its first token is not learned."""
    tokens = example.tokens if limit is None else truncate(example.tokens, limit)
    return example._replace(tokens=[*tokens], action=[False] + [True] * (len(tokens) - 1))


def truncate_example(example: TokenizedExample, limit: PromptLimit | None) -> TokenizedExample:
    """`example` with the tokens before the first one that is learned within `limit`."""
    if limit is None:
        return example
    start = example.action.index(True)
    tokens = truncate(example.tokens[:start], limit)
    action = [False] * len(tokens) + example.action[start:]
    return example._replace(tokens=[*tokens, *example.tokens[start:]], action=action)
