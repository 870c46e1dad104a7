"""Notes on data before the first step: parts that nothing reads, and parts that are not read as they are written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from purerl.data.chat import Chat
from purerl.data.encoding import decode
from purerl.data.examples import DataSet
from purerl.data.json_text import count_conversations
from purerl.data.nested import CLEANED, count_added_keys, iterate_values
from purerl.data.pairs import pair_notes
from purerl.data.turn_notes import turn_notes
from purerl.data.unread import unread_note

__all__ = ["data_notes"]


def data_notes(
    data: Sequence[DataSet], chat: Chat | None, read: Collection[str], *, shows_row_settings: bool = True
) -> list[str]:
    """Notes on `data`. Without `chat`, none on what nothing reads. The other arguments are those of `unread_note`."""
    unread = chat and unread_note(data, chat, read, shows_row_settings=shows_row_settings)
    rendered = (_rendered_prompts(each, chat) for each in data if chat)
    turns = (turn_notes(each, chat, shows_tools=shows_row_settings) for each in data if chat)
    notes = (*rendered, *map(_notes, data), *turns)
    return [*([unread] if unread else []), *chain.from_iterable(notes)]


def _rendered_prompts(data: DataSet, chat: Chat) -> Iterator[str]:
    """A note on plain-text prompts that begin with the special tokens of the tokenizer."""
    first = decode(chat, chat.first_tokens, skip_special_tokens=False) if chat.first_tokens else ""
    if data.example_format.prompt_format == "text" and first and not chat.escapes:
        column = data.example_format.columns[0]
        count = sum(
            value.startswith(first) for table in data.tables for value in iterate_values(table, column) if value
        )
        if count:
            prompts = "1 prompt begins" if count == 1 else f"{count:,} prompts begin"
            yield f"{prompts} with {first!r}, which the tokenizer does not add again"


def _notes(data: DataSet) -> Iterator[str]:
    yield from _added_keys(data)
    yield from _json_text(data)
    yield from pair_notes(data)


def _added_keys(data: DataSet) -> Iterator[str]:
    for path, table in zip(data.paths, data.tables, strict=True):
        names = [name for name in CLEANED if name in table.column_names]
        counts = {name: count_added_keys(table.column(name)) for name in names}
        columns = ", ".join(f"{name} ({count:,})" for name, count in counts.items() if count)
        if columns:
            yield (
                f"{path!r}: keys without a value are left out of the structures in {columns}, because Parquet and "
                "Arrow give each row the keys of all rows"
            )


def _json_text(data: DataSet) -> Iterator[str]:
    if data.example_format.prompt_format == "messages":
        return
    for path, table in zip(data.paths, data.tables, strict=True):
        for name in data.example_format.columns:
            if count := count_conversations(table, name):
                yield (
                    f"{path!r}: {count:,} of {table.num_rows:,} values of {name!r} are JSON text of messages. All are "
                    "read as plain text"
                )
