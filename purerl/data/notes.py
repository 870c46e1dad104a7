"""Notes on data before the first step: parts that nothing reads, and parts that are not read as they are written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from purerl.data.chat import Chat
from purerl.data.encoding import decode
from purerl.data.examples import DataSet, extract_prompt, iterate_chunks, rendered_at, rows_name
from purerl.data.json_text import count_conversations
from purerl.data.messages import is_learned
from purerl.data.nested import CLEANED, count_added_keys, iterate_values, shaped
from purerl.data.pairs import pair_notes
from purerl.data.turn_notes import turn_notes
from purerl.data.unread import unread_note
from purerl.errors import DataError

__all__ = ["data_notes"]


def data_notes(
    data: Sequence[DataSet], chat: Chat | None, read: Collection[str], *, shows_row_settings: bool = True
) -> list[str]:
    """Notes on `data`. Without `chat`, only those on files. The other arguments are those of `unread_note`."""
    of_files = chain.from_iterable((*_added_keys(each), *_json_text(each), *_weights_of_prompts(each)) for each in data)
    if chat is None:
        return [*of_files]
    unread = unread_note(data, chat, read, shows_row_settings=shows_row_settings)
    of_tokens = chain.from_iterable((*_first_tokens(each, chat), *pair_notes(each, chat)) for each in data)
    of_turns = chain.from_iterable(turn_notes(each, chat, shows_tools=shows_row_settings) for each in data)
    return [*([unread] if unread else []), *of_tokens, *of_files, *of_turns]


def _first_tokens(data: DataSet, chat: Chat) -> Iterator[str]:
    """Notes on plain-text prompts that spell the special tokens that the tokenizer adds before them."""
    first = decode(chat, chat.first_tokens, skip_special_tokens=False) if chat.first_tokens else ""
    if data.example_format.prompt_format == "messages" or not first or chat.escapes:
        return
    used, column = {*data.indices}, data.example_format.columns[0]
    values = enumerate(chain.from_iterable(iterate_values(table, column) for table in data.tables))
    texts = {index: value for index, value in values if value and first in value and index in used}
    begins = {index for index, value in texts.items() if value.startswith(first)}
    more = [index for index, value in texts.items() if value.count(first) > (index in begins)]
    if begins:
        prompts = "1 prompt begins" if len(begins) == 1 else f"{len(begins):,} prompts begin"
        yield f"{prompts} with {first!r}, which the tokenizer does not add again"
    if more:
        yield f"{first!r} is in {column!r} beside the one before the prompt: {rows_name(data, more)}"


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
                    f"{path!r}: {count:,} of {table.num_rows:,} values of {name!r} are text of messages, as JSON or "
                    "Python writes them. All are read as plain text: only a column of JSON lists is read as messages"
                )


def _weights_of_prompts(data: DataSet) -> Iterator[str]:
    """A note on turns with the weight 1 before the answers, where nothing is learned."""
    shapes = [shaped(table.schema.field(data.example_format.columns[0])) for table in data.tables]
    if data.example_format.example_type == "prompts" or not any("weight:" in str(shape) for shape in shapes):
        return
    rows: list[int] = []
    for chunk in iterate_chunks(data.indices):
        for index, row in zip(chunk, rendered_at(data, chunk), strict=True):
            with suppress(DataError):  # such as an image without a file, which is refused elsewhere
                prompt = extract_prompt(data.example_format, row)
                if any(is_learned(each) and each.get("weight") for each in prompt if not isinstance(each, str)):
                    rows.append(index)
    if rows:
        yield f"turns with the weight 1 that are not learned, because they are in the prompt: {rows_name(data, rows)}"
