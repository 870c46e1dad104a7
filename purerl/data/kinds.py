"""Kinds of messages: what of a row can make a chat template render it in another way.

The first row of each kind is checked, so that the number of checks does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from purerl.data.chat import Chat, Messages, TextOrMessages
from purerl.data.examples import DataSet, Example, extract_answers, extract_prompt, iterate_chunks, rendered_at
from purerl.data.messages import is_learned
from purerl.data.placeholders import has_thoughts
from purerl.data.row_images import text_of
from purerl.data.row_settings import chat_of_row

__all__ = ["Kind", "iterate_conversations", "kinds_of", "message_kinds"]

Kind = tuple[Any, ...]
Conversation = tuple[Messages, Messages]

_LONGEST_VALUE = 16  # characters: longer values of arguments are texts, which differ in every row


def iterate_conversations(chat: Chat, data: DataSet) -> Iterator[tuple[int, Example, Chat, list[Conversation]]]:
    """Each row of `data` with its index, its chat, and its prompt with each answer; nothing for plain text.

    A row without answers has one conversation without an answer.
    """
    if chat.prompt_format == "text" or data.example_format.prompt_format == "text":
        return
    for chunk in iterate_chunks(data.indices):
        for index, row in zip(chunk, rendered_at(data, chunk), strict=True):
            prompt = _messages(extract_prompt(data.example_format, row))
            answers = [_messages(answer) for answer in extract_answers(data.example_format, row)] or [[]]
            yield index, row, chat_of_row(chat, row), [(prompt, answer) for answer in answers]


def _messages(part: TextOrMessages) -> Messages:
    return [] if isinstance(part, str) else part


def kinds_of(chat: Chat, prompt: Messages, answer: Messages) -> list[Kind]:
    """The kinds of the messages of a conversation, and the kind of the whole: its roles and the settings of its row."""
    roles = frozenset(message["role"] for message in (*prompt, *answer))
    first = prompt[0]["role"] if prompt else None
    return [*message_kinds(chat, prompt, answer), ("conversation", first, roles, _settings(chat))]


def message_kinds(chat: Chat, prompt: Messages, answer: Messages) -> list[Kind]:
    """The kind of each message of a conversation."""
    messages, settings = [*prompt, *answer], _settings(chat)
    last_question = max((k for k, message in enumerate(messages) if message["role"] == "user"), default=-1)
    previous = [None, *(message["role"] for message in messages)]
    return [
        (
            *(message["role"], previous[k], k == len(messages) - 1, k < last_question),
            *(k >= len(prompt) and is_learned(message), *_contents(message), settings),
        )
        for k, message in enumerate(messages)
    ]


def _contents(message: Mapping[str, Any]) -> Kind:
    content = message.get("content")
    parts = tuple(part.get("type") for part in content) if isinstance(content, list | tuple) else ()
    num_calls = min(len(message.get("tool_calls") or ()), 2)
    return bool(text_of(content).strip()), parts[:4], has_thoughts(message), num_calls


def _settings(chat: Chat) -> Kind:
    """The arguments of the chat template, short values as they are."""
    given = {name: value for name, value in chat.chat_template_kwargs.items() if name != "tools"}
    values = ((name, repr(value)) for name, value in sorted(given.items()))
    own = tuple((name, value if len(value) <= _LONGEST_VALUE else True) for name, value in values)
    return bool(chat.chat_template_kwargs.get("tools")), own
