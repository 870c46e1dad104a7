"""The rows of a task: those of its files, those that a run learns from, and notes on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import evolve, frozen

from purerl.config.requirements import Requirements
from purerl.data.chat import Chat, text_note
from purerl.data.columns import ExampleType
from purerl.data.examples import DataSet, read_examples
from purerl.data.notes import data_notes
from purerl.data.open import (
    DataSplit,
    check_first_rows,
    check_labels,
    check_numbers,
    check_sources,
    open_data,
    read_data,
    read_problems,
    summary,
)
from purerl.data.settings import Data
from purerl.data.unread import check_unread
from purerl.evaluation.settings import Evaluate, Validation
from purerl.rollouts.opened import Task
from purerl.system.phases import phase

__all__ = ["DataFiles", "check_learned", "describe_data", "notes_on_data", "read_files", "split_files"]


@frozen
class DataFiles:
    """The rows of all data files of a run, before its tokenizer is known.

    examples  for training, with those of a validation set that is split off later
    problems  of evaluations, by name
    held_out  for validation, if it has files of its own
    """

    examples: DataSet
    problems: Mapping[str, DataSet]
    held_out: DataSet | None

    @property
    def others(self) -> list[DataSet]:
        """All but the training data."""
        return [*self.problems.values(), *([self.held_out] if self.held_out else [])]

    @property
    def learned(self) -> list[DataSet]:
        """All but the problems."""
        return [self.examples, *([self.held_out] if self.held_out else [])]


@phase("reading the data")
def read_files(
    settings: Data, evaluate: Evaluate | None, validation: Validation | None, example_type: ExampleType
) -> DataFiles:
    """The rows of the data files that are named, with training data of `example_type`.

    Raises: DataError and ConfigError as `read_examples` and `read_data`.
    """
    columns = settings.columns
    problems = read_problems(evaluate.data, evaluate.max_examples, columns) if evaluate else {}
    named = validation.data if validation else {}
    held_out = read_examples(named, example_type, columns=columns) if named else None
    others = [*problems.values(), *([held_out] if held_out else [])]
    return DataFiles(read_data(settings, example_type, others), problems, held_out)


def check_learned(files: DataFiles, needs: Requirements) -> None:
    """Raise DataError if a row that is learned from has no teacher, or no number in a column that is read."""
    for learned in files.learned:
        check_sources(learned, needs.teachers)
        for column in needs.number_columns:
            check_numbers(learned, column)


@phase("reading and tokenizing the prompts")
def split_files(
    files: DataFiles, chat: Chat, settings: Data, evaluate: Evaluate | None, validation: Validation | None
) -> DataSplit:
    """The rows of `files` that are used, and those of the validation set; the first ones are tokenized.

    Raises: DataError and ConfigError as `check_first_rows`, `open_data` and `check_labels`.
    """
    if files.held_out is not None:
        check_first_rows(chat, files.held_out)
    limit = evaluate.max_examples if evaluate else None
    is_evaluated = evaluate is not None
    split = open_data(settings, files.examples, files.problems, chat, max_problems=limit, is_evaluated=is_evaluated)
    if files.examples.example_format.label:
        check_labels(split.examples)
    held_out = (files.held_out or split.held_out) if validation else None
    if validation and held_out:
        held_out = evolve(held_out, parts=(held_out.indices[: validation.max_examples],), weights=(1.0,))
    return split._replace(held_out=held_out)


def notes_on_data(
    split: DataSplit, chat: Chat, read: Collection[str], *, shows_row_settings: bool, refuses_unread: bool
) -> tuple[str, ...]:
    """Notes on the files of `split`; `read` are the columns that the algorithm and the rewards read.

    Raises: DataError if nothing reads some of their contents, with `refuses_unread`.
    """
    used = [split.examples, *split.problems.values(), *([split.held_out] if split.held_out else [])]
    if refuses_unread:
        check_unread(used, chat, read, shows_row_settings=shows_row_settings)
    return tuple(dict.fromkeys(data_notes(used, chat, read, shows_row_settings=shows_row_settings)))


def describe_data(task: Task) -> str | None:
    """Lines about the data of a run before its first step, for users; None if there is nothing to say."""
    training = task.training
    learned = [training.examples, *([training.held_out] if training.held_out else [])] if training else []
    is_text = any(each.example_format.has_text_prompts for each in (*learned, *task.problems.values()))
    counts = training.counts if training else {}
    lines = [summary(counts), *task.notes, text_note(task.chat.tokenizer) if is_text else None]
    return "\n".join(filter(None, lines)) or None
