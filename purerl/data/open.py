"""From the settings of a run's data to what is drawn from: files are read, filtered, and split.

First files and their columns, which is cheap; then the tokenizer. Engines are opened after that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve

from purerl.data.chat import Chat, check_settings, open_chat
from purerl.data.columns import ExampleType, PromptFormat, all_begin_with
from purerl.data.examples import (
    NOT_RENAMED,
    DataSet,
    Example,
    extract_prompt,
    prompts_at,
    read_examples,
    rendered_at,
    row_name,
    split_out,
    tokenized_at,
)
from purerl.data.files import digests
from purerl.data.nested import decoded, shaped
from purerl.data.settings import TRUNCATED_SIDES, Data
from purerl.data.split import is_validation
from purerl.data.template_check import check_template
from purerl.data.truncation import PromptLimit
from purerl.errors import ConfigError, DataError
from purerl.models.processor import Processor
from purerl.models.tokenizer import end_tokens
from purerl.settings import Model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "NUMBER_COLUMNS",
    "DataSplit",
    "check_first_rows",
    "check_labels",
    "check_numbers",
    "check_sources",
    "file_digests",
    "open_data",
    "open_run_chat",
    "prompt_format_of",
    "read_data",
    "read_problems",
    "summary",
]

_FIRST_ROWS = 16
VALIDATION = "validation"
"""The name of the data set that `validation_fraction` splits off."""

NUMBER_COLUMNS: Mapping[str, str] = {
    "margin": "set algorithm.margin to a constant, and leave algorithm.margin_coef out",
    "optimal_value": "estimate it with the reference model: `purerl eval --json`, then `purerl data values`",
}
"""Columns of numbers that an algorithm may read as fields of a row, with what to do if there is none."""


class DataSplit(NamedTuple):
    """The training data, the validation set that is split off, evaluation problems by name, and numbers of rows."""

    examples: DataSet
    held_out: DataSet | None
    problems: Mapping[str, DataSet]
    counts: Mapping[str, int]


def read_data(settings: Data, example_type: ExampleType, problems: Iterable[DataSet] = ()) -> DataSet:
    """The training data for `example_type`.

    Raises: DataError as `read_examples`; ConfigError for settings of chats that have no effect on these data and on
    `problems`.
    """
    examples = read_examples(settings.files, example_type, weights=settings.weights, columns=settings.columns)
    examples = evolve(examples, order=settings.order, order_seed=settings.seed)
    every = (examples, *problems)
    with _of_data():
        system, kwargs = settings.system_prompt, settings.chat_template_kwargs
        check_settings(prompt_format_of(every), system_prompt=system, chat_template_kwargs=kwargs)
    chats = [data for data in every if data.example_format.prompt_format == "messages"]
    if system is not None and all(
        all_begin_with(table, data.example_format, "system") for data in chats for table in data.tables
    ):
        got, do = "messages that all start with a system prompt", "leave data.system_prompt out"
        raise ConfigError("data.system_prompt has no effect", got=got, do=do)
    return examples


def read_problems(
    files: Mapping[str, str], limit: int | None, columns: Mapping[str, str] = NOT_RENAMED
) -> dict[str, DataSet]:
    """Evaluation problems by name, the first `limit` of each file. Raises DataError as `read_examples`."""
    return {name: read_examples([file], "prompts", limit=limit, columns=columns) for name, file in files.items()}


def file_digests(files: Iterable[str]) -> dict[str, str]:
    """A digest of each of `files`, by path."""
    return {path: digest for name in files for path, digest in digests(name).items()}


def check_sources(data: DataSet, names: Sequence[str]) -> None:
    """Raise DataError if the column `data_source` of a training row is not one of `names`, those of the teachers."""
    if not names:
        return
    for path, table in zip(data.paths, data.tables, strict=True):
        has_column = "data_source" in table.column_names
        values = set(decoded(table["data_source"], "data_source")) if has_column else {"no such column"}
        unknown = sorted("a row without a value" if value is None else str(value) for value in values - {*names})
        if unknown:
            need = f"in every row one of: {', '.join(names)}, the names of roles.teachers"
            raise DataError(f"column 'data_source' of {path!r}", got=", ".join(unknown[:5]), need=need)


def check_numbers(data: DataSet, column: str) -> None:
    """Raise DataError unless every row has a finite number in `column`, which is one of `NUMBER_COLUMNS`."""
    import pyarrow as pa

    for path, table in zip(data.paths, data.tables, strict=True):
        kind = shaped(table.schema.field(column)) if column in table.column_names else pa.null()
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            got = "no such column" if pa.types.is_null(kind) else f"type {kind}"
            need = "a number in every row"
            raise DataError(f"column {column!r} of {path!r}", got=got, need=need, do=NUMBER_COLUMNS[column])
        values = decoded(table[column], column)
        invalid = [row for row, value in enumerate(values) if value is None or not math.isfinite(value)]
        if invalid:
            got, need = f"{values[invalid[0]]} in row {invalid[0]}", "a finite number in every row"
            raise DataError(f"column {column!r} of {path!r}", got=got, need=need, do="remove the row")


def check_labels(data: DataSet) -> None:
    """Raise DataError unless there are at least two labeled completions: each is compared with that of another row."""
    if data.num_rows < 2:
        got, need = "1 row", "at least 2: the completion of another row estimates a KL divergence"
        raise DataError(f"labeled completions of {', '.join(data.paths)}", got=got, need=need)


def open_data(
    settings: Data,
    examples: DataSet,
    problems: Mapping[str, DataSet],
    chat: Chat,
    *,
    max_problems: int | None,
    is_evaluated: bool,
) -> DataSplit:
    """`examples` without rows that are too long and without the validation set.

    Without `problems`, an evaluated run has the first `max_problems` of the validation set. All its rows are
    `held_out`.

    Raises: DataError if no row remains.
    """
    for data in (examples, *problems.values()):
        check_first_rows(chat, data)
    fraction, held_out = settings.validation_fraction, None
    examples, counts = _within_limit(settings, chat, examples)
    if fraction:
        rows = examples.num_rows
        prompt_of = partial(extract_prompt, examples.example_format)
        examples, held_out = split_out(
            examples, lambda _, drawn: [is_validation(prompt_of(row), fraction=fraction) for row in drawn]
        )
        counts[VALIDATION] = held_out.num_rows
        _check_remaining(examples, "prompts of the validation set", "lower data.validation_fraction")
        if not held_out.num_rows:
            got = f"none of {rows:,} rows in the validation set"
            raise DataError("data.validation_fraction", got=got, need="at least one", do="raise it")
        if is_evaluated and not problems:
            if examples.example_format.is_whole:
                need = "prompts: a column 'text' has none"
                raise ConfigError("evaluate.data is missing", need=need, do="set evaluate.data, or validation instead")
            problems = {VALIDATION: evolve(held_out, parts=(held_out.indices[:max_problems],))}
    counts["examples"] = examples.num_rows
    if problems:
        counts["problems"] = sum(data.num_rows for data in problems.values())
    return DataSplit(examples, held_out, problems, counts)


def _within_limit(settings: Data, chat: Chat, examples: DataSet) -> tuple[DataSet, dict[str, int]]:
    """`examples` without prompts that are too long, or with truncated ones, and the numbers of rows."""
    limit, counts = settings.max_prompt_tokens, {"rows": examples.num_rows}
    if limit is None:
        return examples, counts
    remaining, too_long = split_out(
        examples, lambda indices, rows: [length > limit for length in _lengths(chat, examples, indices, rows)]
    )
    indices = too_long.indices
    if settings.truncation in TRUNCATED_SIDES:
        if examples.example_format.has_images:
            need, do = "drop or error with images, whose tokens belong together", "leave truncation out"
            raise ConfigError("data.truncation", got=settings.truncation, need=need, do=do)
        counts["truncated"] = len(indices)
        return evolve(examples, truncation=PromptLimit(limit, settings.truncation)), counts
    if settings.truncation == "error" and indices:
        got, do = f"a prompt of more than {limit} tokens", "raise data.max_prompt_tokens, or set data.truncation"
        more = f", and {len(indices) - 1:,} more rows" if len(indices) > 1 else ""
        raise DataError(row_name(examples, indices[0]) + more, got=got, need=f"at most {limit}", do=do)
    _check_remaining(remaining, f"prompts of more than {limit} tokens", "raise data.max_prompt_tokens")
    return remaining, {**counts, "too_long": len(indices)}


def _lengths(chat: Chat, data: DataSet, indices: Sequence[int], rows: Sequence[Example]) -> list[int]:
    """The tokens of the prompt of each row; of a column `text`, those of the text."""
    if not data.example_format.is_whole:
        return [len(prompt.tokens) for prompt in prompts_at(chat, data, indices, rows)]
    pairs = zip(indices, rows, strict=True)
    return [len(text.tokens) for index, row in pairs for text in tokenized_at(chat, data, index, row)]


def prompt_format_of(data: Iterable[DataSet]) -> PromptFormat:
    """The format of the prompts: "messages" if any data set has messages, otherwise "text"."""
    return "messages" if any(each.example_format.prompt_format == "messages" for each in data) else "text"


@contextmanager
def _of_data() -> Iterator[None]:
    """Errors inside the block are about settings in the section `data`."""
    try:
        yield
    except ConfigError as error:
        is_setting = str(error).startswith(("system_prompt", "chat_template_kwargs"))
        raise ConfigError(f"data.{error}" if is_setting else str(error)) from error


def check_first_rows(chat: Chat, data: DataSet) -> None:
    """Tokenize the first rows of each part, and check the chat template, before a model is loaded.

    Raises: DataError as `tokenized_at`; ConfigError as `check_template`.
    """
    for part in data.parts:
        indices = part[:_FIRST_ROWS]
        rows = rendered_at(data, indices)
        prompts_at(chat, data, indices, rows)
        for index, row in zip(indices, rows, strict=True):
            tokenized_at(chat, data, index, row)
    check_template(chat, data)


def _check_remaining(data: DataSet, removed: str, do: str) -> None:
    names = data.paths if len(data.parts) > 1 else [", ".join(data.paths)]
    for name, part in zip(names, data.parts, strict=True):
        if not part:
            raise DataError(f"data set {name!r}", got=f"only {removed}", need="at least one other", do=do)


def open_run_chat(
    settings: Data,
    model: Model,
    examples: DataSet,
    problems: Iterable[DataSet],
    tokenizer: PreTrainedTokenizerBase,
    processor: Processor | None = None,
    *,
    needs_stop_token: bool,
) -> Chat:
    """The chat that turns the prompts of a run into tokens.

    processor         of the model, if the run has images
    needs_stop_token  whether some completions have no stop strings, so that only a stop token ends them

    Raises: ConfigError if the tokenizer or its chat template does not fit the data or the settings.
    """
    with _of_data():
        chat = open_chat(
            tokenizer,
            prompt_format_of((examples, *problems)),
            system_prompt=settings.system_prompt,
            chat_template_kwargs=settings.chat_template_kwargs,
            special_tokens=settings.special_tokens,
            extra_stop_tokens=end_tokens(model),
            processor=processor,
        )
    learns_text = examples.example_format.prompt_format == "text" and examples.example_format.example_type != "prompts"
    if (needs_stop_token and not chat.stop_tokens) or (learns_text and not chat.end_tokens):
        remedy = "" if learns_text else ", or set rollout.stop_strings and evaluate.stop_strings"
        raise ConfigError(
            f"the tokenizer of {model.path!r} has no end token",
            need="one that ends a completion: otherwise each has the maximum length, and the model cannot learn to end",
            do=f"set eos_token in its tokenizer_config.json{remedy}",
        )
    return chat


def summary(counts: Mapping[str, int]) -> str | None:
    """Rows that are left out or truncated, in one line; None without any.

    >>> summary({"rows": 10, "too_long": 1, "examples": 9})
    '9 of 10 rows are used for training (1 with a prompt that is too long)'
    """
    labels = {"too_long": "with a prompt that is too long", VALIDATION: "in the validation set"}
    parts = ", ".join(f"{counts[name]:,} {label}" for name, label in labels.items() if counts.get(name))
    used = f"{counts['examples']:,} of {counts['rows']:,} rows are used for training ({parts})" if parts else None
    truncated = f"{counts['truncated']:,} prompts are truncated" if counts.get("truncated") else None
    return "; ".join(filter(None, [used, truncated])) or None
