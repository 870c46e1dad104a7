"""What a file holds, and what is wrong with it: a report for people, made without a model.

Every row is looked at, so a report names rows that a run would trip over, and others that it would not notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from attrs import frozen

from purerl.data.chat import Chat, TokenizedExample, open_chat, tokenize_answer, tokenize_prompts
from purerl.data.columns import Layout, Purpose, Style, form_of, ground_truth, is_whole, layouts_of, recognize, style_of
from purerl.data.examples import Example, answers_of, prompt_of
from purerl.data.files import read_table
from purerl.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

__all__ = ["Column", "Problem", "Report", "inspect"]

_QUANTILES = {"least": 0.0, "half": 0.5, "9 in 10": 0.9, "99 in 100": 0.99, "all": 1.0}
_NONE: Mapping[str, Any] = MappingProxyType({})
_ROLES = {"system", "developer", "user", "assistant", "tool"}


@frozen
class Column:
    """A column: its name, its type ("messages", or as Arrow calls it), and in how many rows there is nothing in it."""

    name: str
    type: str
    nulls: int


@frozen
class Problem:
    """What is wrong, and with which rows, counted from 0."""

    what: str
    rows: tuple[int, ...]


@frozen
class Report:
    """What a file holds.

    style      whose manner its columns are in: verl's, TRL's, or two plain ones
    layouts    what it can be used for, and from which columns; none where it cannot be used
    truth      the column of right answers, if one has a name of that sort
    lengths    of prompts, in tokens: up to how many the given share of them has; empty without a tokenizer
    sample     a row as the model sees it, each answer on its own; what is learned stands between ⟦ and ⟧
    problems   what is wrong with which rows
    reasons    why it cannot be used, for each purpose; none where it can be
    """

    path: str
    rows: int
    columns: tuple[Column, ...]
    style: Style
    layouts: tuple[Layout, ...]
    truth: str | None
    lengths: Mapping[str, int]
    sample: tuple[str, ...]
    problems: tuple[Problem, ...]
    reasons: tuple[str, ...] = ()


def inspect(
    path: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] = _NONE,
    max_prompt_tokens: int | None = None,
    limit: int | None = None,
) -> Report:
    """A report on the file at `path`, of its first `limit` rows; without a `tokenizer` nothing is rendered or counted.

    Raises: DataError where the file cannot be read, ConfigError where `tokenizer` does not do for it.
    """
    for name, value in {
        "system_prompt": system_prompt,
        "chat_template_kwargs": chat_template_kwargs,
        "max_prompt_tokens": max_prompt_tokens,
    }.items():
        if value and tokenizer is None:
            raise ConfigError(f"{name} has no effect", need="a tokenizer", do="name a model")
    table = read_table(path).slice(0, limit)
    columns = [Column(field.name, _type(field.type), table.column(field.name).null_count) for field in table.schema]
    layouts, truth, style = layouts_of(table.schema), ground_truth(table.schema), style_of(table.schema)
    rows = table.to_pylist()
    if not layouts:
        reasons = tuple(_reasons(table.schema, path))
        return Report(path, len(rows), tuple(columns), style, (), truth, {}, (), (), reasons)
    # What asks most of a row comes last, and its prompt is that of the others.
    layout = layouts[-1]
    unsound = [(row, what) for row, example in enumerate(rows) for what in _unsound(layout, example)]
    views = {}
    if tokenizer is not None:
        chat = open_chat(tokenizer, layout.form, system_prompt=system_prompt, chat_template_kwargs=chat_template_kwargs)
        sound = sorted({*range(len(rows))} - {row for row, _ in unsound})
        views = {row: _view(chat, layout, rows[row], max_prompt_tokens) for row in sound}
    refused = [(row, view.problem) for row, view in views.items() if view.problem]
    problems = _grouped([*unsound, *_repeated(layout, rows), *_untold(truth, rows), *refused])
    lengths = _quantiles([view.size for view in views.values() if view.size])
    sample = next((view.texts for view in views.values() if view.texts), ())
    return Report(path, len(rows), tuple(columns), style, tuple(layouts), truth, lengths, sample, problems)


def _type(kind: pa.DataType) -> str:
    return "messages" if form_of(kind) == "messages" else str(kind)


def _reasons(schema: pa.Schema, path: str) -> Iterator[str]:
    for purpose in get_args(Purpose):
        try:
            recognize(schema, purpose, path)
        except DataError as error:
            yield f"{purpose}: {error}"


# --- problems ----------------------------------------------------------------------------------------------------


def _gap(layout: Layout, example: Example) -> str | None:
    """What a row misses."""
    empty = [name for name in layout.columns if example[name] is None]
    if empty:
        return f"nothing in column {empty[0]!r}"
    whole = all(is_whole(one) for one in _messages(layout, example))
    return None if whole else "a message without a role or without content"


def _messages(layout: Layout, example: Example) -> list[Mapping[str, Any]]:
    return [one for name in layout.columns if layout.form == "messages" for one in example[name]]


def _unsound(layout: Layout, example: Example) -> Iterator[str]:
    """What is wrong with a row by itself; of a row that misses something, only that."""
    if gap := _gap(layout, example):
        yield gap
        return
    messages = _messages(layout, example)
    strange = [one["role"] for one in messages if one["role"] not in _ROLES]
    if strange:
        yield f"a message of the role {strange[0]!r}"
    prompt, answers = prompt_of(layout, example), answers_of(layout, example)
    if not prompt:
        yield "an empty prompt"
    elif layout.form == "messages" and prompt[-1]["role"] == "assistant":
        yield "a prompt that ends with the assistant's turn"
    if layout.form == "messages" and not all(any(one["role"] == "assistant" for one in answer) for answer in answers):
        yield "nothing to learn: no turn of the assistant's"
    if layout.purpose == "preferences" and answers[0] == answers[1]:
        yield "the chosen answer is the rejected one"


def _repeated(layout: Layout, rows: Sequence[Example]) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for row, example in enumerate(rows):
        if not _gap(layout, example):
            prompt = repr(prompt_of(layout, example))
            if prompt in seen:
                yield row, "the prompt of an earlier row"
            seen.add(prompt)


def _untold(truth: str | None, rows: Sequence[Example]) -> Iterator[tuple[int, str]]:
    if truth is not None:
        outer, _, inner = truth.partition(".")
        for row, example in enumerate(rows):
            value = (example[outer] or {}).get(inner) if inner else example[outer]
            if value is None or value == "":
                yield row, f"no right answer in {truth!r}"


def _grouped(found: Iterable[tuple[int, str]]) -> tuple[Problem, ...]:
    rows: dict[str, list[int]] = {}
    for row, what in found:
        rows.setdefault(what, []).append(row)
    return tuple(Problem(what, tuple(numbers)) for what, numbers in rows.items())


# --- rendering ---------------------------------------------------------------------------------------------------


class _View(NamedTuple):
    """A row as the model sees it: tokens of its prompt, texts, and what is wrong with it."""

    size: int = 0
    texts: tuple[str, ...] = ()
    problem: str | None = None


def _view(chat: Chat, layout: Layout, example: Example, most: int | None) -> _View:
    try:
        given = prompt_of(layout, example)
        prompt = tokenize_prompts(chat, [given])[0]
        rows = [tokenize_answer(chat, given, answer) for answer in answers_of(layout, example)]
    except DataError as error:
        return _View(problem=str(error).splitlines()[0])
    texts = tuple(_marked(chat, row) for row in rows) or (prompt.text,)
    longer = most is not None and len(prompt.tokens) > most
    return _View(len(prompt.tokens), texts, f"a prompt of more than {most} tokens" if longer else None)


def _marked(chat: Chat, row: TokenizedExample) -> str:
    """The text of `row`, with what is learned of it between ⟦ and ⟧."""
    runs = groupby(zip(row.tokens, row.action, strict=True), key=lambda pair: pair[1])
    texts = [(learned, chat.tokenizer.decode([token for token, _ in run])) for learned, run in runs]
    return "".join(f"⟦{text}⟧" if learned else text for learned, text in texts)


def _quantiles(sizes: Sequence[int]) -> dict[str, int]:
    """Up to how many tokens the given share of prompts has."""
    ordered = sorted(sizes)
    return {name: ordered[max(ceil(share * len(ordered)), 1) - 1] for name, share in _QUANTILES.items() if ordered}
