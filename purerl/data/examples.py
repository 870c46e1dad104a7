"""Examples: rows of one or several files, and the order in which they are drawn.

That order is a pure function of the seed and of the number of a draw, so the number of draws so far is all that a
checkpoint holds of it. An example is a row with all the columns that its file has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate, islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen

from purerl.data.chat import Chat, Given, Prompt, TokenizedExample, tokenize_answer, tokenize_prompts
from purerl.data.columns import Layout, Purpose, check_rows, recognize
from purerl.data.files import read_table
from purerl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DataSet",
    "Example",
    "answers_of",
    "chunks",
    "indices_of_draws",
    "part_of_draw",
    "positions_of_draws",
    "prompt_of",
    "prompts_at",
    "read_examples",
    "row_name",
    "rows_at",
    "split_out",
    "tokenized_at",
]

Example = dict[str, Any]

_CHUNK = 1024


@frozen
class DataSet:
    """Rows of several files, to be drawn from.

    An index counts rows through all the files, in the order in which these were named, rows that are left out included:
    it says which row of which file it is.

    paths     the files
    tables    what they hold
    layout    how prompts and answers are read from a row, of whichever file
    parts     indices to be drawn: one part of all files, or where files have weights, one of each
    weights   of the parts
    """

    paths: tuple[str, ...]
    tables: tuple[pa.Table, ...]
    layout: Layout
    parts: tuple[Sequence[int], ...]
    weights: tuple[float, ...]

    @property
    def indices(self) -> list[int]:
        """All that are drawn from."""
        return sorted(index for part in self.parts for index in part)


def read_examples(
    paths: Sequence[str], purpose: Purpose, *, weights: Sequence[float] = (), limit: int | None = None
) -> DataSet:
    """What the files at `paths` hold for `purpose`, at most `limit` rows.

    Raises: DataError as `read_table`, `recognize` and `check_rows` do, and for files of different layouts.
    """
    tables, layouts = [], []
    for path in paths:
        table = read_table(path)
        layouts.append(recognize(table.schema, purpose, path))
        tables.append(table)
    for layout, path in zip(layouts, paths, strict=True):
        if layout != layouts[0]:
            got = f"{layouts[0]} in {paths[0]!r}, {layout} in {path!r}"
            do = "rename columns, or render one of them"
            raise DataError("files of one run", got=got, need="the same columns of the same form", do=do)
    for table, path in zip(tables, paths, strict=True):
        check_rows(table, layouts[0], path)
    ends = [0, *accumulate(table.num_rows for table in tables)]
    ranges = [range(first, end) for first, end in pairwise(ends)]
    parts = tuple(ranges) if weights else (range(ends[-1])[:limit],)
    return DataSet(tuple(paths), tuple(tables), layouts[0], parts, tuple(weights) or (1.0,))


# --- order -------------------------------------------------------------------------------------------------------


def indices_of_draws(data: DataSet, seed: int, first: int, count: int) -> list[int]:
    """Indices of the draws `first`, ..., `first + count - 1` from `data`."""
    places = [part_of_draw(draw, data.weights) for draw in range(first, first + count)]
    found = {}
    for part in {part for part, _ in places}:
        numbers = [number for other, number in places if other == part]  # one after the other
        # A seed of its own, so that parts of one size are not shuffled alike; torch reads no more than 32 bits of it.
        order = positions_of_draws(len(data.parts[part]), seed + part * 65_537, numbers[0], len(numbers))
        found[part] = iter([data.parts[part][place] for place in order])
    return [next(found[part]) for part, _ in places]


def part_of_draw(draw: int, weights: Sequence[float]) -> tuple[int, int]:
    """Which part a draw is from, and how many draws before it were from that part.

    Part k of weight w_k takes its share s_k = w_k / (w_k + w_(k+1) + ...) of the draws that the parts before it left:
    of n of them floor(n s_k). So after any number of draws each part has had its share, to within one draw for each
    part before it and one of its own; and nothing has to be remembered.

    >>> [part_of_draw(draw, (3, 1))[0] for draw in range(8)]
    [1, 0, 0, 0, 1, 0, 0, 0]
    """
    left = sum(weights)
    for part, weight in enumerate(weights[:-1]):
        share = weight / left
        before = int(draw * share)
        if int((draw + 1) * share) > before:
            return part, before
        draw, left = draw - before, left - weight
    return len(weights) - 1, draw


def positions_of_draws(size: int, seed: int, first: int, count: int) -> list[int]:
    """Places of the draws `first`, ..., `first + count - 1` from `size` examples.

    Every pass over the examples is a permutation of its own.

    >>> sorted(positions_of_draws(5, seed=0, first=5, count=5))
    [0, 1, 2, 3, 4]
    """
    return [_permutation(size, seed, draw // size)[draw % size] for draw in range(first, first + count)]


@lru_cache(maxsize=16)
def _permutation(size: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator).tolist()


# --- rows --------------------------------------------------------------------------------------------------------


def rows_at(data: DataSet, indices: Sequence[int]) -> list[Example]:
    """The rows at `indices`, in that order."""
    places = [_place(data, index) for index in indices]
    found = {}
    for file in {file for file, _ in places}:
        rows = [row for other, row in places if other == file]
        found[file] = iter(data.tables[file].take(rows).to_pylist())
    return [next(found[file]) for file, _ in places]


def _place(data: DataSet, index: int) -> tuple[int, int]:
    """Which file the row at `index` is in, and which of its rows."""
    ends = [0, *accumulate(table.num_rows for table in data.tables)]
    file = bisect_right(ends, index) - 1
    return file, index - ends[file]


def prompt_of(layout: Layout, example: Example) -> Given:
    """The prompt of `example`, as the file has it."""
    if layout.columns == ("messages",):
        return list(takewhile(lambda message: message["role"] != "assistant", example["messages"]))
    if layout.columns == ("chosen", "rejected"):
        both = zip(example["chosen"], example["rejected"], strict=False)
        return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
    return example[layout.columns[0]]


def answers_of(layout: Layout, example: Example) -> list[Given]:
    """What follows the prompt of `example`: nothing, what is demonstrated, or what is chosen and what is rejected."""
    if layout.columns[0] in {"messages", "chosen"}:
        begin = len(prompt_of(layout, example))
        return [example[name][begin:] for name in layout.columns]
    return [example[name] for name in layout.columns[1:]]


def prompts_at(chat: Chat, data: DataSet, indices: Sequence[int], examples: Sequence[Example]) -> list[Prompt]:
    """The tokenized prompts of `examples`, the rows at `indices`. Raises DataError that names the row."""
    given = [prompt_of(data.layout, example) for example in examples]
    try:
        return tokenize_prompts(chat, given)
    except DataError:
        for index, one in zip(indices, given, strict=True):
            with _named(data, index):
                tokenize_prompts(chat, [one])
        raise


def tokenized_at(chat: Chat, data: DataSet, index: int, example: Example) -> list[TokenizedExample]:
    """The prompt of `example`, the row at `index`, with each answer to it. Raises DataError that names the row."""
    with _named(data, index):
        return [
            tokenize_answer(chat, prompt_of(data.layout, example), answer)
            for answer in answers_of(data.layout, example)
        ]


@contextmanager
def _named(data: DataSet, index: int) -> Iterator[None]:
    """What is refused inside is refused of the row at `index`."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{row_name(data, index)}: {error}") from error


def row_name(data: DataSet, index: int) -> str:
    """What the row at `index` is called: its number in its file, and that file."""
    file, row = _place(data, index)
    return f"row {row} of {data.paths[file]!r}"


def chunks(indices: Sequence[int]) -> Iterator[list[int]]:
    """`indices`, as many at a time as are read at once."""
    left = iter(indices)
    while chunk := list(islice(left, _CHUNK)):
        yield chunk


def split_out(
    data: DataSet, is_left_out: Callable[[Sequence[int], list[Example]], list[bool]]
) -> tuple[DataSet, DataSet]:
    """What is left in of `data`, and what `is_left_out` leaves out, asked for a number of rows at a time."""
    out = {index for part in data.parts for chunk in chunks(part) for index in _where(data, chunk, is_left_out)}
    kept = tuple([index for index in part if index not in out] for part in data.parts)
    return evolve(data, parts=kept), evolve(data, parts=(sorted(out),), weights=(1.0,))


def _where(data: DataSet, indices: Sequence[int], test: Callable) -> list[int]:
    return [index for index, true in zip(indices, test(indices, rows_at(data, indices)), strict=True) if true]
