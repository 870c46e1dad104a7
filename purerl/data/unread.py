"""Contents of data files that a run does not read, named before it starts, with the nearest name that is read.

Nothing else reads the columns of demonstrations, pairs and labels than what is named here. Those of prompts are all
passed to reward functions and environments, so only names that are nearly those of purerl's own columns are listed, and
those of settings of rows that prompts do not show: plain text has no tools, and an environment has its own. So are
system prompts.

Whether the chat template reads a key of messages is tried: rows that have it are rendered with it, and without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from purerl.data.chat import Chat, Messages, render
from purerl.data.examples import DataSet, extract_answers, extract_prompt, iterate_chunks, rendered_at
from purerl.data.nested import iterate_values, shaped
from purerl.data.placeholders import THOUGHTS
from purerl.data.row_images import IMAGE_COLUMNS
from purerl.data.row_settings import ROW_SETTINGS, chat_of_row, kwargs_of_row
from purerl.data.template_arguments import template_variables
from purerl.errors import DataError, listed

__all__ = ["check_unread", "unread_note"]

_MESSAGE_KEYS = ("role", "content", "weight", "tool_calls", "tool_call_id", "name", "reasoning_content", "thinking")
_TRIED_ROWS = 8
_VALUES = {"tool_calls": [{"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {}}}]}
"""Values of keys that are not text."""
_SYSTEM = ("system_prompt", "system", "system_message")
"""Columns in which other libraries have a system prompt."""
_SYNONYMS = (
    (*THOUGHTS, "thoughts", "thought"),
    ("weight", "train", "trainable", "loss"),
    ("tool_calls", "function_call", "calls"),
    ("tools", "functions", "available_tools"),
    ("chat_template_kwargs", "template_kwargs", "enable_thinking"),
)


class Shown(NamedTuple):
    """A conversation, with how the row that has it is rendered."""

    chat: Chat
    messages: Messages


def check_unread(data: Sequence[DataSet], chat: Chat, read: Collection[str], *, shows_row_settings: bool) -> None:
    """Raise DataError if `unread_note` has anything to say: ``data.unused_columns = "error"``."""
    if note := unread_note(data, chat, read, shows_row_settings=shows_row_settings):
        what, _, got = note.partition(": ")
        need = "only columns and keys that are read: data.unused_columns is 'error'"
        raise DataError(f"the data have {what}", got=got, need=need, do="rename or remove them, or set it to 'note'")


def unread_note(data: Sequence[DataSet], chat: Chat, read: Collection[str], *, shows_row_settings: bool) -> str | None:
    """The columns of `data`, and the keys of their messages, that nothing reads, as a note; None if there are none.

    read                columns that the algorithm, teachers or reward functions read, beside those of the examples
    shows_row_settings  whether prompts show the tools and arguments of their rows. An environment has its own tools
    """
    names = (name for each in data for name in _unread(each, chat, read, shows_row_settings=shows_row_settings))
    found = [*dict.fromkeys(names)]
    return f"parts that nothing reads: {listed(found)}" if found else None


def _unread(data: DataSet, chat: Chat, read: Collection[str], *, shows_row_settings: bool) -> Iterator[str]:
    example_format = data.example_format
    is_chat = example_format.prompt_format == "messages"
    settings = ROW_SETTINGS if is_chat and shows_row_settings else ()
    own = {*example_format.all_columns, *settings, *(IMAGE_COLUMNS if example_format.has_images else ())}
    variables = (
        template_variables(chat.tokenizer, [{}]) | template_variables(chat.tokenizer) if is_chat else frozenset[str]()
    )
    for name in dict.fromkeys(name for table in data.tables for name in table.column_names):
        if name in own or name in read:
            continue
        similar = _nearest(name, [*own, *read])
        if example_format.example_type != "prompts" or similar or name in (*ROW_SETTINGS, *_SYSTEM):
            first = f" (a system prompt is the first message of {example_format.columns[0]!r})"
            yield f"column {name!r}{first if name in _SYSTEM else _hint(similar)}"
    if is_chat:
        yield from _unread_arguments(data, settings, variables)
        yield from _unread_keys(data, chat)


def _unread_arguments(data: DataSet, columns: Sequence[str], variables: Collection[str]) -> Iterator[str]:
    """The arguments of the chat template in rows that the template does not read."""
    names = dict[str, None]()
    for table in data.tables:
        present = [name for name in columns if name in table.column_names]
        for values in zip(*(iterate_values(table, name) for name in present), strict=True) if present else ():
            names |= dict.fromkeys(kwargs_of_row(dict(zip(present, values, strict=True))))
    for name in names:
        if name not in variables:
            place = f"{name!r}" if name in columns else f"'chat_template_kwargs.{name}'"
            yield f"{place}, an argument that the chat template does not read{_hint(_nearest(name, [*variables]))}"


def _unread_keys(data: DataSet, chat: Chat) -> Iterator[str]:
    """The keys of messages that neither the chat template nor purerl reads."""
    read = ["role", "content", *(["weight"] if data.example_format.example_type != "prompts" else [])]
    shapes = (shaped(table.schema.field(name)) for table in data.tables for name in data.example_format.columns)
    names = dict.fromkeys(field.name for shape in shapes for field in shape.value_type)
    tried: dict[str, list[Shown]] = {name: [] for name in names if name not in read}
    for shown in _conversations(data, chat) if tried else ():
        for key in [key for key, shown_before in tried.items() if len(shown_before) < _TRIED_ROWS]:
            if any(message.get(key) is not None for message in shown.messages):
                tried[key].append(shown)
                if _shows(shown, key):
                    del tried[key]  # it is read
        if all(len(each) == _TRIED_ROWS for each in tried.values()):
            break
    for key, each in tried.items():
        if each:
            known = [name for name in _MESSAGE_KEYS if name in read or _shows(_renamed(each[0], key, name), name)]
            yield f"key {key!r} of messages{_hint(_nearest(key, known))}"


def _conversations(data: DataSet, chat: Chat) -> Iterator[Shown]:
    for chunk in iterate_chunks(data.indices):
        for row in rendered_at(data, chunk):
            with suppress(DataError):  # such as an image without a file: tokenizing the row raises it with its name
                prompt, answers = extract_prompt(data.example_format, row), extract_answers(data.example_format, row)
                row_chat = chat_of_row(chat, row)
                yield from (Shown(row_chat, [*prompt, *answer]) for answer in answers or [[]])


def _shows(shown: Shown, key: str) -> bool:
    """Whether the chat template renders other text without `key`, or with another value of it."""
    keys, other = (THOUGHTS if key in THOUGHTS else (key,)), _VALUES.get(key, "a value of no meaning")
    without = [{name: message[name] for name in message if name not in keys} for message in shown.messages]
    changed = [{**message, key: other} if message.get(key) is not None else message for message in shown.messages]
    return len({_text(shown._replace(messages=messages)) for messages in (shown.messages, without, changed)}) > 1


def _renamed(shown: Shown, key: str, name: str) -> Shown:
    has_key = (message.get(key) is not None for message in shown.messages)
    values = ({name: _VALUES.get(name, "a value")} if has else {} for has in has_key)
    return shown._replace(messages=[{**each, **value} for each, value in zip(shown.messages, values, strict=True)])


def _text(shown: Shown) -> str | None:
    """The text that the chat template renders; None if it raises an error."""
    with suppress(DataError):
        return render(shown.chat, shown.messages, add_generation_prompt=shown.messages[-1]["role"] != "assistant")


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The name in `names` that is nearly `name`, or that other libraries call `name`."""
    same = (each for group in _SYNONYMS if name in group for each in group if each in names and each != name)
    similar = [] if name in _MESSAGE_KEYS else _similar(re.sub(r"\d+", "0", name), frozenset(names) - {name})
    return next(chain(same, similar), None)


@lru_cache(maxsize=2**15)
def _similar(name: str, names: frozenset[str]) -> list[str]:
    """The name in `names` that is nearly `name`. Columns that differ only in a number are compared once."""
    return get_close_matches(name, names, n=1, cutoff=0.8)


def _hint(nearest: str | None) -> str:
    return f" (did you mean {nearest!r}?)" if nearest else ""
