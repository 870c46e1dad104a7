"""Checks of a chat template with rows of the data, before the first step.

Is the token that stops generation learned after each kind of answer: plain, with thoughts, with calls of tools, last
and not last? Is the text of each kind of message in what the template renders? The first row of each kind is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from purerl.data.answers import TokenizedExample, has_generation_markers
from purerl.data.chat import Chat, Messages, TextOrMessages, render
from purerl.data.examples import (
    DataSet,
    extract_answers,
    extract_prompt,
    iterate_chunks,
    row_name,
    rows_at,
    tokenized_at,
)
from purerl.data.images import text_of
from purerl.data.messages import is_learned
from purerl.data.row_settings import chat_of_row
from purerl.data.special_tokens import unmark
from purerl.errors import ConfigError, DataError

__all__ = ["check_template", "learns_every_end"]

_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def check_template(chat: Chat, data: DataSet) -> None:
    """Check the chat template of `chat` with the first row of each kind in `data`.

    Raises: ConfigError if the end of a turn is not learned, or if the template leaves out the text of a message.
    DataError as `tokenized_at`.
    """
    if chat.prompt_format == "text" or data.example_format.prompt_format == "text":
        return
    seen = set[Any]()
    for index, row in _rows(data):
        prompt, answers = extract_prompt(data.example_format, row), extract_answers(data.example_format, row)
        conversations = [_conversation(prompt, answer) for answer in answers] or [_conversation(prompt, [])]
        kinds = {kind for messages in conversations for kind in _kinds(messages)}
        if kinds <= seen:
            continue
        seen |= kinds
        row_chat = chat_of_row(chat, row)
        for messages in conversations:
            _check_shown(row_chat, messages, row_name(data, index))
        for example in tokenized_at(chat, data, index, row) if answers else ():
            if not learns_every_end(chat, example):
                raise _not_learned(row_chat, example, row_name(data, index))


def _rows(data: DataSet) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for chunk in iterate_chunks(data.indices):
        yield from zip(chunk, rows_at(data, chunk), strict=True)


def _conversation(prompt: TextOrMessages, answer: TextOrMessages) -> Messages:
    return [message for part in (prompt, answer) if not isinstance(part, str) for message in part]


def _kinds(messages: Messages) -> Iterator[tuple[Any, ...]]:
    """The kind of each message: its role; of an answer also what it has, and whether it is the last message."""
    for k, message in enumerate(messages):
        if is_learned(message):
            content = text_of(message.get("content"))
            has_thoughts = "</think>" in content or any(message.get(name) for name in _THOUGHTS)
            yield "assistant", has_thoughts, bool(message.get("tool_calls")), k == len(messages) - 1
        elif message["role"] != "assistant":
            yield (message["role"],)


# --- the end of a turn ---------------------------------------------------------------------------------------------


def learns_every_end(chat: Chat, example: TokenizedExample) -> bool:
    """Whether each run of learned tokens has one that stops generation."""
    return all(chat.stop_tokens and {*run} & {*chat.stop_tokens} for run in _learned_runs(example))


def _learned_runs(example: TokenizedExample) -> list[list[int]]:
    runs = groupby(zip(example.tokens, example.action, strict=True), key=lambda pair: pair[1])
    return [[token for token, _ in run] for is_action, run in runs if is_action]


def _not_learned(chat: Chat, example: TokenizedExample, row: str) -> ConfigError:
    run = next(run for run in _learned_runs(example) if not {*run} & {*chat.stop_tokens})
    ends = " or ".join(map(repr, chat.stop_strings)) or "a stop token, which the tokenizer does not have"
    do = "use a chat template that ends each turn with it, or put one answer in each row"
    if has_generation_markers(chat):
        do = "put {% endgeneration %} after that token in the chat template, or remove the markers from the template"
    return ConfigError(
        "the end of a turn is not learned, so the model would not learn to stop",
        got=f"in {row} the learned text ends with {chat.tokenizer.decode(run[-12:])!r}",
        need=f"{ends} among the learned tokens of each turn",
        do=do,
    )


# --- the text of messages ------------------------------------------------------------------------------------------


def _check_shown(chat: Chat, messages: Messages, row: str) -> None:
    """Raise ConfigError if the text of a message that is not the assistant's is not in what the template renders."""
    try:
        text = unmark(render(chat, messages, add_generation_prompt=messages[-1]["role"] != "assistant"))
    except DataError:  # tokenizing the row raises it with its name
        return
    missing = [message for message in messages if message["role"] != "assistant" and not _is_shown(message, text)]
    if missing:
        raise ConfigError(
            f"the chat template leaves out the text of a message of the role {missing[0]['role']!r}",
            got=f"{row}, without {text_of(missing[0].get('content'))!r:.100}",
            need="a template that shows the text of each message",
            do="use another chat template, or remove messages of this role",
        )


def _is_shown(message: Mapping[str, Any], text: str) -> bool:
    """Whether each line of `message` is in `text`, as it is or in JSON. Templates may remove space around it."""
    lines: Sequence[str] = [line.strip() for line in text_of(message.get("content")).splitlines()]
    forms = ((line, json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]) for line in lines)
    return all(any(form in text for form in each) for each in forms)
