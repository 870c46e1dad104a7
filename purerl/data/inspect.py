"""The report of `purerl data inspect`: the contents of a data file and the problems in its rows.

Every row is checked, and every image is decoded. The report also lists problems that do not stop a run, such as
duplicate prompts. No model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from attrs import evolve, frozen

from purerl.data.chat import Chat, open_chat, text_note
from purerl.data.columns import (
    ColumnStyle,
    ExampleFormat,
    ExampleType,
    column_format,
    detect_formats,
    detect_style,
    find_ground_truth_column,
    is_complete_message,
    select_format,
)
from purerl.data.examples import NOT_RENAMED, DataSet, Example, extract_answers, extract_prompt, read_renamed, rows_at
from purerl.data.messages import find_problem
from purerl.data.nested import shaped, shaped_schema
from purerl.data.notes import data_notes
from purerl.data.open import NUMBER_COLUMNS
from purerl.data.rendered_row import RenderedRow, render_row
from purerl.data.roles import ROLES
from purerl.data.row_images import has_images, images_of
from purerl.data.row_settings import chat_of_row
from purerl.data.settings import SpecialTokens
from purerl.data.shown_tokens import ShownEnding, ShownRow, endings_of
from purerl.data.turn_notes import PREFILL
from purerl.errors import ConfigError, DataError, ImageError
from purerl.images import Image, check_pillow
from purerl.system.phases import phase

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

    from purerl.models.processor import Processor

__all__ = ["Column", "Problem", "Report", "inspect"]

_QUANTILES = {"min": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})


@frozen
class Column:
    """A column: its name, its type ("messages", or the name of the Arrow type), and the number of null values."""

    name: str
    type: str
    nulls: int


@frozen
class Problem:
    """A problem, and the 0-based indices of the rows that have it."""

    message: str
    rows: tuple[int, ...]


@frozen
class Report:
    """The contents of a data file.

    path                 the path of the data set
    rows                 the number of rows
    columns              name, type and null count of every column
    style                the library whose column names the file follows
    formats              the supported formats of the file, one per example type; empty if no run can use it
    ground_truth_column  the first column that purerl's reward functions read the ground truth from, or None
    prompt_lengths       quantiles of the prompt lengths in tokens; empty without a tokenizer
    sample               the first valid row as text, one string per answer; the tokens to learn are between ⟦ and ⟧;
                         empty without a tokenizer
    shown                the tokens of these texts, with the origin of each
    endings              how a completion ends; empty without a tokenizer
    problems             problems in the rows
    errors               if `formats` is empty: for each example type, why the file cannot be used for it
    notes                what is no problem, but may be a surprise
    """

    path: str
    rows: int
    columns: tuple[Column, ...]
    style: ColumnStyle
    formats: tuple[ExampleFormat, ...]
    ground_truth_column: str | None
    prompt_lengths: Mapping[str, int]
    sample: tuple[str, ...]
    problems: tuple[Problem, ...]
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shown: tuple[ShownRow, ...] = ()
    endings: tuple[ShownEnding, ...] = ()


@phase("inspecting the data")
def inspect(
    path: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    open_processor: Callable[[], Processor] | None = None,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] = _NO_KWARGS,
    max_prompt_tokens: int | None = None,
    special_tokens: SpecialTokens = "keep",
    stop_strings: Sequence[str] = (),
    extra_stop_tokens: Sequence[int] = (),
    columns: Mapping[str, str] = NOT_RENAMED,
    get_ground_truth: Callable[[Example], str] | None = None,
    limit: int | None = None,
) -> Report:
    """Inspect the first `limit` rows of the data set at `path`. Without `tokenizer`, nothing is rendered or tokenized.

    `open_processor` is called if rows have images; it loads the processor of the model that `tokenizer` belongs to.
    `get_ground_truth` is the function by which reward functions read the ground truth of a row. Without it, a missing
    ground truth is not listed. Prompts that spell a special token are listed, unless `special_tokens` is "escape".
    `columns` has other names of columns, see `rename_columns`. `extra_stop_tokens` are those of the model.

    Raises: DataError if the file cannot be read. ConfigError if a setting has no effect, if the prompts are messages
    and `tokenizer` has no chat template, if rows have images and Pillow is missing, and as `open_processor`.
    """
    settings: dict[str, Any] = {"system_prompt": system_prompt, "chat_template_kwargs": chat_template_kwargs}
    settings["special_tokens"] = special_tokens
    if tokenizer is None:
        _refuse_without_tokenizer(**settings, max_prompt_tokens=max_prompt_tokens, stop_strings=stop_strings)
    table = read_renamed(path, columns).slice(0, limit)
    schema, described = shaped_schema(table.schema), _describe(table)
    (formats, errors), style = _formats(table, path), detect_style(schema)
    ground_truth_column = find_ground_truth_column(schema)
    if not formats:
        return Report(path, table.num_rows, described, style, (), ground_truth_column, {}, (), (), errors)
    example_format = max(formats, key=lambda each: len(each.all_columns))
    data = DataSet((path,), (table,), example_format, (range(table.num_rows),), (1.0,))
    rows = _rows(data)
    invalid = [(row, message) for row, example in enumerate(rows) for message in _check_row(example_format, example)]
    chat = tokenizer and _open_chat(tokenizer, example_format, open_processor, extra_stop_tokens, **settings)
    valid = set[int]() if chat is None else {*range(len(rows))} - {row for row, _ in invalid}
    rendered = {row: render_row(chat, example_format, rows[row], max_prompt_tokens) for row in sorted(valid) if chat}
    problems = [
        *invalid,
        *_find_duplicates(example_format, rows),
        *(_find_equal_answers(example_format, rows) if tokenizer is None else ()),
        *_find_invalid_ground_truth(get_ground_truth, ground_truth_column, rows),
        *((row, problem) for row, result in rendered.items() for problem in result.problems),
    ]
    first = next((result for result in rendered.values() if result.texts), RenderedRow())
    readable = [row for row, example in enumerate(rows) if _is_readable(example_format, example, chat)]
    return Report(
        *(path, len(rows), described, style, formats, ground_truth_column),
        prompt_lengths=_quantiles([result.prompt_length for result in rendered.values() if result.prompt_length]),
        sample=first.texts,
        problems=_group_by_message(problems),
        notes=_notes(tokenizer, evolve(data, parts=(readable,)), chat),
        shown=first.show(),
        endings=endings_of(chat, stop_strings) if chat else (),
    )


def _open_chat(
    tokenizer: PreTrainedTokenizerBase,
    example_format: ExampleFormat,
    open_processor: Callable[[], Processor] | None,
    extra_stop_tokens: Sequence[int],
    **settings: Any,
) -> Chat:
    settings["extra_stop_tokens"] = extra_stop_tokens
    processor = open_processor() if open_processor is not None and example_format.has_images else None
    return open_chat(tokenizer, example_format.prompt_format, processor=processor, **settings)


def _describe(table: pa.Table) -> tuple[Column, ...]:
    return tuple(
        Column(field.name, _type_name(shaped(field)), table.column(field.name).null_count) for field in table.schema
    )


def _notes(tokenizer: PreTrainedTokenizerBase | None, data: DataSet, chat: Chat | None) -> tuple[str, ...]:
    is_text = tokenizer is not None and data.example_format.has_text_prompts
    note = text_note(tokenizer) if is_text else None
    return (*([note] if note else []), *data_notes([data], chat, NUMBER_COLUMNS))


def _is_readable(example_format: ExampleFormat, example: Example, chat: Chat | None) -> bool:
    if _find_missing_value(example_format, example):
        return False
    try:
        extract_prompt(example_format, example)
        return chat is None or bool(chat_of_row(chat, example))
    except DataError:
        return False


def _refuse_without_tokenizer(**settings: Any) -> None:
    for name, value in settings.items():
        if value not in (None, {}, "keep", ()):
            what, do = f"{name} has no effect without a tokenizer", "pass one (on the command line: --model DIR)"
            raise ConfigError(what, need="a tokenizer", do=do)


def _type_name(arrow_type: pa.DataType) -> str:
    return "messages" if column_format(arrow_type) == "messages" else str(arrow_type)


def _formats(table: pa.Table, path: str) -> tuple[tuple[ExampleFormat, ...], tuple[str, ...]]:
    """The supported formats of `table`; if there are none, why."""
    schema = shaped_schema(table.schema)
    try:
        formats = [select_format(schema, each.example_type, path) for each in detect_formats(schema)]
        formats = [each._replace(has_images=has_images(table, each, path)) for each in formats]
    except DataError as error:
        return (), (str(error),)
    return tuple(formats), () if formats else tuple(_format_errors(schema, path))


def _rows(data: DataSet) -> list[Example]:
    """The rows of `data`, with absolute paths of images."""
    if data.example_format.has_images:
        check_pillow()
    return rows_at(data, data.indices)


def _format_errors(schema: pa.Schema, path: str) -> Iterator[str]:
    for example_type in get_args(ExampleType):
        try:
            select_format(schema, example_type, path)
        except DataError as error:
            yield f"{example_type}: {error}"


def _find_missing_value(example_format: ExampleFormat, example: Example) -> str | None:
    empty = [name for name in example_format.all_columns if example[name] is None]
    if empty:
        return f"no value in column {empty[0]!r}"
    is_complete = all(is_complete_message(message) for message in _messages(example_format, example))
    return None if is_complete else "a message without a role or without content"


def _messages(example_format: ExampleFormat, example: Example) -> list[Mapping[str, Any]]:
    if example_format.prompt_format == "text":
        return []
    return [message for name in example_format.columns for message in example[name]]


def _check_row(example_format: ExampleFormat, example: Example) -> Iterator[str]:
    """The problems of a single row. A missing value is reported alone, because the other checks need all values."""
    if missing := _find_missing_value(example_format, example):
        yield missing
        return
    is_chat = example_format.prompt_format == "messages"
    messages = _messages(example_format, example)
    unknown = [message["role"] for message in messages if message["role"] not in ROLES]
    if unknown:
        yield f"a message with the unknown role {unknown[0]!r}"
    yield from dict.fromkeys(filter(None, map(find_problem, messages)))
    try:
        prompt, answers = extract_prompt(example_format, example), extract_answers(example_format, example)
    except ImageError as error:
        yield "; ".join(line.strip() for line in str(error).splitlines()[:2])
        return
    if is_chat:
        yield from dict.fromkeys(filter(None, map(_image_problem, images_of([*prompt, *chain(*answers)]))))
    if not prompt:
        yield "an empty text" if example_format.is_whole else "an empty prompt"
    elif is_chat and prompt[-1]["role"] == "assistant":
        yield PREFILL
    if is_chat and not all(any(message["role"] == "assistant" for message in answer) for answer in answers):
        yield "nothing to learn: no assistant turn"


def _image_problem(image: Image) -> str | None:
    try:
        image.read()
    except ImageError:
        return "an image whose file cannot be read"
    try:
        image.check()
    except ImageError:
        return "an image that cannot be decoded"


def _find_duplicates(example_format: ExampleFormat, rows: Sequence[Example]) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for row, example in enumerate(rows):
        if _find_missing_value(example_format, example):
            continue
        try:
            prompt = repr(extract_prompt(example_format, example))
        except ImageError:
            continue
        if prompt in seen:
            yield row, "duplicate of an earlier prompt"
        seen.add(prompt)


def _find_equal_answers(example_format: ExampleFormat, rows: Sequence[Example]) -> Iterator[tuple[int, str]]:
    """Pairs whose answers are written in the same way. With a tokenizer, `compare_answers` finds them, and others."""
    if example_format.example_type == "preferences":
        for row, example in enumerate(rows):
            if example["chosen"] == example["rejected"] is not None:
                yield row, "the chosen answer equals the rejected answer"


def _find_invalid_ground_truth(
    get_ground_truth: Callable[[Example], str] | None, column: str | None, rows: Sequence[Example]
) -> Iterator[tuple[int, str]]:
    if get_ground_truth is None or column is None:
        return
    for row, example in enumerate(rows):
        try:
            is_missing = not get_ground_truth(example).strip()
        except KeyError:
            is_missing = True
        except TypeError:
            yield row, "a ground truth that is neither a string nor a number"
            continue
        if is_missing:
            yield row, f"no ground truth in {column!r}"


def _group_by_message(problems: Iterable[tuple[int, str]]) -> tuple[Problem, ...]:
    rows: dict[str, list[int]] = {}
    for row, message in problems:
        rows.setdefault(message, []).append(row)
    return tuple(Problem(message, tuple(indices)) for message, indices in rows.items())


def _quantiles(lengths: Sequence[int]) -> dict[str, int]:
    """The smallest length that is greater than or equal to the given fraction of `lengths`, for each quantile."""
    ordered = sorted(lengths)
    return {name: ordered[max(ceil(share * len(ordered)), 1) - 1] for name, share in _QUANTILES.items() if ordered}
