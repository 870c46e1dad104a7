"""The rows of one or more data files, and the order in which they are drawn.

The order is a pure function of the seed and the draw index. A checkpoint stores only the number of draws so far. An
example is a row with all columns of its file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen

from purerl.data.answers import TokenizedExample, tokenize_answer, tokenize_text
from purerl.data.chat import Chat, Messages, Prompt, TextOrMessages, tokenize_prompts
from purerl.data.columns import ExampleFormat, ExampleType, check_rows, rename_columns, select_format
from purerl.data.files import read_table
from purerl.data.json_text import with_conversations
from purerl.data.messages import is_learned
from purerl.data.nested import MESSAGE_COLUMNS, decoded, rows_of, shaped_schema
from purerl.data.row_images import IMAGE_COLUMNS, has_images, located, with_images
from purerl.data.row_settings import ROW_SETTINGS, chat_of_row, check_row_settings
from purerl.data.settings import Order
from purerl.data.truncation import PromptLimit, truncate_example, truncate_prompt, truncate_text
from purerl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "NOT_RENAMED",
    "DataSet",
    "Example",
    "extract_answers",
    "extract_prompt",
    "indices_of_draws",
    "iterate_chunks",
    "part_of_draw",
    "positions_of_draws",
    "prompts_at",
    "read_examples",
    "read_renamed",
    "rendered_at",
    "row_name",
    "rows_at",
    "rows_name",
    "split_out",
    "tokenized_at",
    "value_counts",
]

Example = dict[str, Any]

_CHUNK_SIZE = 1024

NOT_RENAMED: Mapping[str, str] = MappingProxyType({})


@frozen
class DataSet:
    """The rows of one or more files to draw from.

    An index numbers the rows of all files, in the order of `paths`. Rows that are left out keep their index, so an
    index always refers to the same row of the same file.

    paths           paths of the files
    tables          their contents
    example_format  the columns of the prompt and the answers, the same in every file
    parts           indices to draw from: one part for all files, or one part per file if the files have weights
    weights         relative sampling weight of each part
    order           "shuffled", or "sequential": the order of the indices
    order_seed      seed of the order; None: that of the run
    truncation      how prompts are truncated; None: they are not
    """

    paths: tuple[str, ...]
    tables: tuple[pa.Table, ...]
    example_format: ExampleFormat
    parts: tuple[Sequence[int], ...]
    weights: tuple[float, ...]
    order: Order = "shuffled"
    order_seed: int | None = None
    truncation: PromptLimit | None = None

    @property
    def indices(self) -> list[int]:
        """The indices of all parts, sorted."""
        return sorted(chain.from_iterable(self.parts))

    @property
    def num_rows(self) -> int:
        """The number of indices."""
        return sum(map(len, self.parts))


def read_examples(
    paths: Sequence[str],
    example_type: ExampleType,
    *,
    weights: Sequence[float] = (),
    limit: int | None = None,
    columns: Mapping[str, str] = NOT_RENAMED,
) -> DataSet:
    """Read the files at `paths` as examples of `example_type`. Without `weights`, use at most `limit` rows.

    `columns` has other names of columns, see `rename_columns`.

    Raises: DataError in the cases of `read_table`, `rename_columns`, `select_format` and `check_rows`, and if the files
    have different formats.
    """
    tables, formats = [], []
    for path in paths:
        table = read_renamed(path, columns)
        formats.append(select_format(shaped_schema(table.schema), example_type, path))
        tables.append(table)
    for example_format, path in zip(formats, paths, strict=True):
        if example_format.columns != formats[0].columns or example_format.prompt_format != formats[0].prompt_format:
            got = f"{formats[0]} in {paths[0]!r}, {example_format} in {path!r}"
            need, do = "the same columns in the same format in all files", "rename columns, or convert one of the files"
            raise DataError("the files of one run have different formats", got=got, need=need, do=do)
    example_format = formats[0]._replace(has_parts=any(each.has_parts for each in formats))
    for table, path in zip(tables, paths, strict=True):
        check_rows(table, example_format, path)
        if example_format.prompt_format == "messages":
            check_row_settings(table, path)
    images = [has_images(table, example_format, path) for table, path in zip(tables, paths, strict=True)]
    example_format = example_format._replace(has_images=any(images))
    ends = [0, *accumulate(table.num_rows for table in tables)]
    ranges = [range(start, end) for start, end in pairwise(ends)]
    parts = tuple(ranges) if weights else (range(ends[-1])[:limit],)
    return DataSet(tuple(paths), tuple(tables), example_format, parts, tuple(weights) or (1.0,))


def read_renamed(path: str, columns: Mapping[str, str]) -> pa.Table:
    """The rows of the file at `path`: with other names of columns, and with messages in place of JSON text of messages.

    Raises: DataError as `read_table`, `rename_columns` and `with_conversations`.
    """
    return with_conversations(rename_columns(read_table(path), columns, path), path)


def value_counts(data: DataSet, column: str) -> Counter[Any]:
    """The values of `column` in the rows of `data`, with their numbers of rows. A file without the column has None."""
    columns = (decoded(t[column], column) if column in t.column_names else [None] * t.num_rows for t in data.tables)
    values = [*chain.from_iterable(columns)]
    return Counter(values[index] for part in data.parts for index in part)


def indices_of_draws(data: DataSet, seed: int, first: int, count: int) -> list[int]:
    """The indices of the draws `first`, ..., `first + count - 1` from `data`."""
    draws = [part_of_draw(draw, data.weights) for draw in range(first, first + count)]
    indices = {}
    for part in {part for part, _ in draws}:
        numbers = [number for drawn_part, number in draws if drawn_part == part]  # consecutive
        positions = _positions(data, part, seed, numbers)
        indices[part] = iter([data.parts[part][position] for position in positions])
    return [next(indices[part]) for part, _ in draws]


def _positions(data: DataSet, part: int, seed: int, numbers: Sequence[int]) -> list[int]:
    """The positions of the draws `numbers`, which are consecutive, in a part of `data`."""
    size = len(data.parts[part])
    if data.order == "sequential":
        return [number % size for number in numbers]
    seed = seed if data.order_seed is None else data.order_seed
    # Each part has its own seed, so that parts of equal size get different permutations. torch uses 32 bits of it.
    return positions_of_draws(size, seed + part * 65_537, numbers[0], len(numbers))


def part_of_draw(draw: int, weights: Sequence[float]) -> tuple[int, int]:
    """The part that a draw comes from, and the number of earlier draws from that part.

    Part k of weight w_k gets the fraction s_k = w_k / (w_k + w_(k+1) + ...) of the draws that the earlier parts do not
    use: floor(n s_k) of the first n of them. After any number of draws, the number of draws from part k differs from
    its fraction of all draws by less than k + 1. No state is stored.

    >>> [part_of_draw(draw, (3, 1))[0] for draw in range(8)]
    [1, 0, 0, 0, 1, 0, 0, 0]
    """
    remaining_weight = sum(weights)
    for part, weight in enumerate(weights[:-1]):
        fraction = weight / remaining_weight
        earlier = int(draw * fraction)
        if int((draw + 1) * fraction) > earlier:
            return part, earlier
        draw, remaining_weight = draw - earlier, remaining_weight - weight
    return len(weights) - 1, draw


def positions_of_draws(size: int, seed: int, first: int, count: int) -> list[int]:
    """The positions, in 0, ..., `size - 1`, of the draws `first`, ..., `first + count - 1`.

    Every epoch is a different permutation.

    >>> sorted(positions_of_draws(5, seed=0, first=5, count=5))
    [0, 1, 2, 3, 4]
    """
    return [_permutation(size, seed, draw // size)[draw % size] for draw in range(first, first + count)]


@lru_cache(maxsize=16)
def _permutation(size: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator).tolist()


def rows_at(data: DataSet, indices: Sequence[int]) -> list[Example]:
    """The rows at `indices`, in that order. Relative paths of images start at the directory of their file."""
    return _rows_at(data, data.tables, indices)


def rendered_at(data: DataSet, indices: Sequence[int]) -> list[Example]:
    """As `rows_at`, with those columns only from which prompts and answers are made. A file may have many others."""
    needed = {*data.example_format.all_columns, *MESSAGE_COLUMNS, *ROW_SETTINGS, *IMAGE_COLUMNS}
    names = ([name for name in table.column_names if name in needed] for table in data.tables)
    return _rows_at(data, [table.select(each) for table, each in zip(data.tables, names, strict=True)], indices)


def _rows_at(data: DataSet, tables: Sequence[pa.Table], indices: Sequence[int]) -> list[Example]:
    locations = [_locate_row(data, index) for index in indices]
    rows = {}
    for file in {file for file, _ in locations}:
        numbers = [row for row_file, row in locations if row_file == file]
        taken = rows_of(tables[file].take(numbers))
        if data.example_format.has_images:
            path = Path(data.paths[file])
            folder = path if path.is_dir() else path.parent
            taken = [located(data.example_format, row, folder) for row in taken]
        rows[file] = iter(taken)
    return [next(rows[file]) for file, _ in locations]


def _locate_row(data: DataSet, index: int) -> tuple[int, int]:
    """The file that holds the row at `index`, and its row number in that file."""
    ends = [0, *accumulate(table.num_rows for table in data.tables)]
    file = bisect_right(ends, index) - 1
    return file, index - ends[file]


def extract_prompt(example_format: ExampleFormat, example: Example) -> TextOrMessages:
    """The prompt of `example`, as stored in the file, but for images: see `purerl.data.row_images.with_images`."""
    return _prompt_of(example_format, _converted(example_format, example))


def extract_answers(example_format: ExampleFormat, example: Example) -> list[TextOrMessages]:
    """The answers to the prompt of `example`: none, the demonstration, or the chosen and the rejected answer."""
    return _answers_of(example_format, _converted(example_format, example))


def _prompt_of(example_format: ExampleFormat, converted: Example) -> TextOrMessages:
    if example_format.columns == ("messages",):
        return list(takewhile(lambda message: message["role"] != "assistant", converted["messages"]))
    if example_format.columns == ("chosen", "rejected"):
        both = [converted["chosen"], converted["rejected"]]
        prefix = [chosen for chosen, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*both, strict=False))]
        return prefix[: min(map(_last_learned, both))]
    return converted[example_format.columns[0]]


def _last_learned(messages: Messages) -> int:
    """The index of the last turn that is learned, which belongs to the answer also if both of a pair have it."""
    return max((k for k, message in enumerate(messages) if is_learned(message)), default=len(messages))


def _answers_of(example_format: ExampleFormat, converted: Example) -> list[TextOrMessages]:
    if example_format.columns[0] in {"messages", "chosen"}:
        start = len(_prompt_of(example_format, converted))
        return [converted[name][start:] for name in example_format.columns]
    return [converted[name] for name in example_format.columns[1:]]


def _converted(example_format: ExampleFormat, example: Example) -> Example:
    is_plain = not example_format.has_parts and not example_format.has_images
    return example if is_plain else with_images(example_format, example)


def prompts_at(chat: Chat, data: DataSet, indices: Sequence[int], examples: Sequence[Example]) -> list[Prompt]:
    """Tokenize the prompts of `examples`, the rows at `indices`, and truncate them as `data` says.

    Raises: DataError that names the row.
    """
    chats = [chat_of_row(chat, example) for example in examples]
    if all(each is chat for each in chats):
        with suppress(DataError):  # which would not name the row
            prompts = tokenize_prompts(chat, [extract_prompt(data.example_format, example) for example in examples])
            return [truncate_prompt(chat, prompt, data.truncation) for prompt in prompts]
    rows = zip(indices, examples, chats, strict=True)
    return [_prompt_at(each, data, index, example) for index, example, each in rows]


def _prompt_at(chat: Chat, data: DataSet, index: int, example: Example) -> Prompt:
    with _name_row_in_errors(data, index):
        [prompt] = tokenize_prompts(chat, [extract_prompt(data.example_format, example)])
        return truncate_prompt(chat, prompt, data.truncation)


def tokenized_at(chat: Chat, data: DataSet, index: int, example: Example) -> list[TokenizedExample]:
    """Tokenize `example`, the row at `index`: its prompt, truncated as `data` says, with each answer.

    Of a column `text` it is the text, truncated in the same way. Raises: DataError that names the row.
    """
    with _name_row_in_errors(data, index):
        if data.example_format.is_whole:
            return [truncate_text(tokenize_text(chat, example["text"]), data.truncation)]
        chat, converted = chat_of_row(chat, example), _converted(data.example_format, example)
        prompt, answers = _prompt_of(data.example_format, converted), _answers_of(data.example_format, converted)
        return [truncate_example(tokenize_answer(chat, prompt, answer), data.truncation) for answer in answers]


@contextmanager
def _name_row_in_errors(data: DataSet, index: int) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{row_name(data, index)}: {error}") from error


def row_name(data: DataSet, index: int) -> str:
    """The row at `index` for error messages: its row number and its file."""
    file, row = _locate_row(data, index)
    return f"row {row} of {data.paths[file]!r}"


def rows_name(data: DataSet, indices: Sequence[int], *, limit: int = 8) -> str:
    """The rows at `indices` for messages: their numbers, at most `limit`, and their files."""
    shown = [_locate_row(data, index) for index in indices[:limit]]
    files = {file: [str(row) for row_file, row in shown if row_file == file] for file, _ in shown}
    listed = "; ".join(
        f"{'row' if len(rows) == 1 else 'rows'} {', '.join(rows)} of {data.paths[file]!r}"
        for file, rows in files.items()
    )
    return f"{listed}; and {len(indices) - limit:,} more" if len(indices) > limit else listed


def iterate_chunks(indices: Iterable[int]) -> Iterator[list[int]]:
    """Iterate over `indices` in chunks, so that not all rows are converted to Python objects in one call."""
    remaining = iter(indices)
    while chunk := list(islice(remaining, _CHUNK_SIZE)):
        yield chunk


def split_out(
    data: DataSet, is_left_out: Callable[[Sequence[int], list[Example]], list[bool]]
) -> tuple[DataSet, DataSet]:
    """Split `data` into the rows that stay and the rows that `is_left_out` selects.

    `is_left_out` gets the indices and rows of one chunk at a time, as `rendered_at`.
    """
    selected = {
        index
        for part in data.parts
        for chunk in iterate_chunks(part)
        for index, left_out in zip(chunk, is_left_out(chunk, rendered_at(data, chunk)), strict=True)
        if left_out
    }
    parts = tuple([index for index in part if index not in selected] for part in data.parts)
    return evolve(data, parts=parts), evolve(data, parts=(sorted(selected),), weights=(1.0,))
