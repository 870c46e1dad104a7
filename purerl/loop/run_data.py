"""The data of a run, checked against its reward functions and the tokenizers of its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from purerl.config.requirements import Requirements, is_reward
from purerl.config.schema import RunConfig
from purerl.data.examples import DataSet, rows_at, value_counts
from purerl.data.notes import data_notes
from purerl.data.open import (
    RunData,
    check_first_rows,
    check_labels,
    check_numbers,
    check_sources,
    open_data,
    open_run_chat,
    read_data,
    read_problems,
)
from purerl.data.unread import check_unread
from purerl.loop.model_rewards import check_questions
from purerl.loop.validation import read_held_out, select_held_out
from purerl.models.tokenizer import check_same_ids, load_tokenizer, set_pad_token
from purerl.opening.engines import check_role_model
from purerl.opening.images import open_processor
from purerl.opening.recorded import check_recorded, check_recorded_tokens
from purerl.rewards.routing import COLUMN
from purerl.rewards.runner import RewardRunner

__all__ = ["check_rows", "first_example", "open_run_data"]


def open_run_data(config: RunConfig, needs: Requirements, runner: RewardRunner) -> RunData:
    """The data of a run, checked against its reward functions and the tokenizers of the models that it needs."""
    check_recorded(config, needs.algorithm)
    evaluate, purpose = config.evaluate, needs.example_type
    problems = read_problems(evaluate.data, evaluate.max_examples, config.data.columns) if evaluate else {}
    held_out = read_held_out(config.validation, purpose, config.data.columns)
    others = [*problems.values(), *([held_out] if held_out else [])]
    examples = read_data(config.data, purpose, others)
    scored = [*([examples] if config.rollout else []), *problems.values()]
    check_rows(runner, scored)
    check_questions(needs, scored)
    if runner.routed:
        runner.check_effect({source for each in scored for source in value_counts(each, COLUMN)})
    for learned in (examples, *([held_out] if held_out else [])):
        check_sources(learned, needs.teachers)
        for column in needs.number_columns:
            check_numbers(learned, column)
    tokenizer = load_tokenizer(config.model)
    check_recorded_tokens(config, tokenizer)
    if needs.trains_classifier:
        set_pad_token(tokenizer)
    for name, role in needs.models.items():
        if role.settings.model != config.model and not is_reward(name):
            check_same_ids(tokenizer, role.settings.model, name)
    processor = open_processor(config.model, [examples, *others], config.environment)
    sampled = [section for section in (config.rollout, evaluate) if section]
    needs_stop_token = any(not section.stop_strings for section in sampled)
    chat = open_run_chat(
        config.data, config.model, examples, others, tokenizer, processor, needs_stop_token=needs_stop_token
    )
    for name, role in needs.models.items():
        check_role_model(config, name, role)
    limit = evaluate.max_examples if evaluate else None
    if held_out is not None:
        check_first_rows(chat, held_out)
    data = open_data(config.data, examples, problems, chat, max_problems=limit, is_evaluated=evaluate is not None)
    if purpose == "labels":
        check_labels(data.examples)
    data = evolve(data, validation=select_held_out(config.validation, held_out or data.validation))
    read = {*needs.number_columns, *([COLUMN] if needs.teachers else []), *runner.columns}
    return evolve(data, notes=_data_notes(config, data, read))


def _data_notes(config: RunConfig, data: RunData, read: set[str]) -> tuple[str, ...]:
    """Notes on the files of `data`; `read` are columns that the algorithm and the rewards read.

    Raises: DataError if nothing reads some of their contents, and ``data.unused_columns`` is "error".
    """
    used = [data.examples, *data.problems.values(), *([data.validation] if data.validation else [])]
    shows = config.environment is None and not (config.rollout and config.rollout.workflow)
    if config.data.unused_columns == "error":
        check_unread(used, data.chat, read, shows_row_settings=shows)
    return tuple(dict.fromkeys(data_notes(used, data.chat, read, shows_row_settings=shows)))


def first_example(data: RunData) -> Mapping[str, Any]:
    """The first row of the training data."""
    return rows_at(data.examples, data.examples.indices[:1])[0]


def check_rows(runner: RewardRunner, data: Iterable[DataSet]) -> None:
    """Raise ConfigError if a reward cannot read the columns or the images of `data`, or if a row has no reward."""
    for each in data:
        for table in each.tables:
            runner.check_columns(table.column_names)
        if each.example_format.has_images:
            runner.check_images()
        if runner.routed:
            runner.check_sources(value_counts(each, COLUMN), ", ".join(each.paths))
