"""What data files contain that a run does not read, named before it starts, with the nearest name that is read.

Nothing else reads the columns of demonstrations, pairs and labels than what is named here. Those of prompts are all
passed to reward functions and environments, so only names that are nearly those of purerl's own columns are listed, and
those of settings of rows that prompts do not show: plain text has no tools, and an environment has its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches

from purerl.data.chat import Chat
from purerl.data.examples import DataSet
from purerl.data.images import IMAGE_COLUMNS
from purerl.data.nested import iterate_values, shaped
from purerl.data.row_settings import ROW_SETTINGS, kwargs_of_row
from purerl.data.template_arguments import template_words
from purerl.errors import DataError

__all__ = ["check_unread", "unread_note"]

_MESSAGE_KEYS = ("role", "content", "weight", "tool_calls", "tool_call_id", "name", "reasoning_content", "thinking")
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of which a template gets all if a message has one: transformers copies it."""
_SYNONYMS = (
    (*_REASONING, "thoughts", "thought"),
    ("weight", "train", "trainable", "loss"),
    ("tool_calls", "function_call", "calls"),
    ("tools", "functions", "available_tools"),
    ("chat_template_kwargs", "template_kwargs", "enable_thinking"),
)


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
    listed = ", ".join(dict.fromkeys(names))
    return f"parts that nothing reads: {listed}" if listed else None


def _unread(data: DataSet, chat: Chat, read: Collection[str], *, shows_row_settings: bool) -> Iterator[str]:
    example_format = data.example_format
    is_chat = example_format.prompt_format == "messages"
    settings = ROW_SETTINGS if is_chat and shows_row_settings else ()
    own = {*example_format.all_columns, *settings, *(IMAGE_COLUMNS if example_format.has_images else ())}
    words = template_words(chat.tokenizer, [{}]) | template_words(chat.tokenizer) if is_chat else set[str]()
    for name in dict.fromkeys(name for table in data.tables for name in table.column_names):
        similar = _nearest(name, [*own, *read])
        is_listed = example_format.example_type != "prompts" or similar or name in ROW_SETTINGS
        if is_listed and name not in own and name not in read:
            yield f"column {name!r}{_hint(similar)}"
    if is_chat:
        yield from _unread_arguments(data, settings, words)
        yield from _unread_keys(data, words)


def _unread_arguments(data: DataSet, columns: Sequence[str], words: Collection[str]) -> Iterator[str]:
    """The arguments of the chat template in rows that the template does not read."""
    names = dict[str, None]()
    for table in data.tables:
        present = [name for name in columns if name in table.column_names]
        for values in zip(*(iterate_values(table, name) for name in present), strict=True) if present else ():
            names |= dict.fromkeys(kwargs_of_row(dict(zip(present, values, strict=True))))
    for name in names:
        if name not in words:
            place = f"{name!r}" if name in columns else f"'chat_template_kwargs.{name}'"
            yield f"{place}, an argument that the chat template does not read{_hint(_nearest(name, [*words]))}"


def _unread_keys(data: DataSet, words: Collection[str]) -> Iterator[str]:
    """The keys of messages that neither the chat template nor purerl reads."""
    learns = data.example_format.example_type != "prompts"
    read = {"role", "content", *(["weight"] if learns else []), *words}
    read |= {*_REASONING} if read & {*_REASONING} else set()
    shapes = (shaped(table.schema.field(name)) for table in data.tables for name in data.example_format.columns)
    keys = (field.name for shape in shapes for field in shape.value_type if str(field.type) != "null")
    for key in dict.fromkeys(keys):
        if key not in read:
            yield f"key {key!r} of messages{_hint(_nearest(key, [each for each in _MESSAGE_KEYS if each in read]))}"


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is nearly `name`, or that other libraries call `name`."""
    same = (each for group in _SYNONYMS if name in group for each in group if each in names and each != name)
    return next(same, None) or next(iter(get_close_matches(name, {*names} - {name}, n=1, cutoff=0.8)), None)


def _hint(nearest: str | None) -> str:
    return f" (did you mean {nearest!r}?)" if nearest else ""
