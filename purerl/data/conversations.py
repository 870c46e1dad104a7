"""A prompt and its answer as another model reads them: rendered by the chat template of that model's tokenizer.

Nothing is kept of the policy's tokens: a reward model has a tokenizer and a template of its own, and has learned from
whole conversations as this template writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from purerl.data.boundaries import encode_after_prompt
from purerl.data.chat import Chat, Messages, TextOrMessages, add_system_prompt, eos_tokens, render, tokenize_prompts
from purerl.data.encoding import encode_rendered
from purerl.data.special_tokens import encode, is_marked, unmark
from purerl.errors import DataError

__all__ = ["ReadConversation", "read_conversation", "read_steps"]


class ReadConversation(NamedTuple):
    """The tokens of a conversation, and the indices of those at which it is scored."""

    tokens: list[int]
    ends: list[int]


# Text of the policy in `answer` is marked, by `purerl.data.special_tokens.mark`, so that special tokens that it spells
# are read as text.


def read_conversation(
    chat: Chat, prompt: TextOrMessages, answer: Messages, *, pad_token: int | None
) -> ReadConversation:
    """Read `prompt` and `answer`, the messages after it, as the model of `chat` reads them, up to the end.

    The end is the last token that is not `pad_token`, as in transformers' sequence classifiers. If the prompt is a
    string, the contents of all messages follow it, and then the EOS token.

    Raises: DataError if the chat template raises an error.
    """
    before, text, after = _texts(chat, prompt, answer)
    if is_marked(text):
        own = [*before, *encode(chat.tokenizer, text, is_continuation=bool(before)).tokens]
    elif isinstance(prompt, str):
        own = encode_after_prompt(chat, prompt, text).tokens
    else:
        own = encode_rendered(chat, [text])[0]
    tokens = own if own[-1:] == after else [*own, *after]
    last = next((k for k in reversed(range(len(tokens))) if tokens[k] != pad_token), len(tokens) - 1)
    return ReadConversation(tokens, [last])


def read_steps(chat: Chat, prompt: TextOrMessages, answer: Messages, *, ends: Sequence[int]) -> ReadConversation:
    """The same, scored at the token with the character before each of `ends`, positions in the last message.

    Raises: DataError if the chat template raises an error, or changes the last message.
    """
    before, text, after = _texts(chat, prompt, answer)
    encoded = encode(chat.tokenizer, text, is_continuation=bool(before))
    positions = _positions(text, str(answer[-1]["content"]), ends)
    ends_before = [sum(start < position for start in encoded.starts) - 1 for position in positions]
    indices = [len(before) + max(0, index) for index in ends_before]
    return ReadConversation([*before, *encoded.tokens, *after], indices)


def _texts(chat: Chat, prompt: TextOrMessages, answer: Messages) -> tuple[list[int], str, list[int]]:
    """Tokens, the text that follows them, and the tokens that follow the text."""
    if isinstance(prompt, str):
        text = "".join(str(message["content"]) for message in answer)
        return tokenize_prompts(chat, [prompt])[0].tokens, text, [*eos_tokens(chat.tokenizer)]
    return [], render(chat, [*add_system_prompt(chat, prompt), *answer]), []


def _positions(text: str, content: str, ends: Sequence[int]) -> list[int]:
    """The positions of `ends` of `content` in the rendered `text`. Templates may remove space around a message."""
    core = content.strip()
    first, removed = text.rfind(core), len(content) - len(content.lstrip())
    if first < 0:
        got, need = f"{unmark(core)!r:.200} is not in its result", "a template that keeps the text of the last message"
        raise DataError("the chat template changes the last message", got=got, need=need)
    limit = len(text) if content in text else first + len(core)
    return [min(first + end - removed, limit) for end in ends]
