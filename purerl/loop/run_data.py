"""The data of a run, checked against its reward functions and the tokenizers of its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from purerl.algos.algebra import Algorithm
from purerl.config.reward_roles import is_reward
from purerl.config.roles import ModelRole, teacher_names, trains_classifier
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
from purerl.loop.workflows import number_columns, purpose_of
from purerl.models.tokenizer import check_same_ids, load_tokenizer, set_pad_token
from purerl.opening.engines import check_role_model
from purerl.opening.images import open_processor
from purerl.opening.recorded import check_recorded, check_recorded_tokens
from purerl.rewards.routing import COLUMN
from purerl.rewards.runner import RewardRunner

__all__ = ["check_rows", "first_example", "open_run_data"]


def open_run_data(
    config: RunConfig, algorithm: Algorithm, roles: Mapping[str, ModelRole], runner: RewardRunner
) -> RunData:
    """The data of a run, checked against its reward functions and the tokenizers of the models in `roles`."""
    check_recorded(config, algorithm)
    evaluate, purpose = config.evaluate, purpose_of(config, algorithm)
    problems = read_problems(evaluate.data, evaluate.max_examples, config.data.columns) if evaluate else {}
    held_out = read_held_out(config.validation, purpose, config.data.columns)
    others = [*problems.values(), *([held_out] if held_out else [])]
    examples = read_data(config.data, purpose, others)
    scored = [*([examples] if config.rollout else []), *problems.values()]
    check_rows(runner, scored)
    check_questions(config, scored)
    if runner.routed:
        runner.check_effect({source for each in scored for source in value_counts(each, COLUMN)})
    for learned in (examples, *([held_out] if held_out else [])):
        check_sources(learned, teacher_names(config))
        for column in number_columns(algorithm):
            check_numbers(learned, column)
    tokenizer = load_tokenizer(config.model)
    check_recorded_tokens(config, tokenizer)
    if trains_classifier(algorithm):
        set_pad_token(tokenizer)
    for name, role in roles.items():
        if role.settings.model != config.model and not is_reward(name):
            check_same_ids(tokenizer, role.settings.model, name)
    processor = open_processor(config.model, [examples, *others], config.environment)
    sampled = [section for section in (config.rollout, evaluate) if section]
    needs_stop_token = any(not section.stop_strings for section in sampled)
    chat = open_run_chat(
        config.data, config.model, examples, others, tokenizer, processor, needs_stop_token=needs_stop_token
    )
    for name, role in roles.items():
        check_role_model(config, name, role)
    limit = evaluate.max_examples if evaluate else None
    if held_out is not None:
        check_first_rows(chat, held_out)
    data = open_data(config.data, examples, problems, chat, max_problems=limit, is_evaluated=evaluate is not None)
    if purpose == "labels":
        check_labels(data.examples)
    data = evolve(data, validation=select_held_out(config.validation, held_out or data.validation))
    return evolve(data, notes=_data_notes(config, data, {*number_columns(algorithm), *runner.columns}))


def _data_notes(config: RunConfig, data: RunData, read: set[str]) -> tuple[str, ...]:
    """Notes on the files of `data`; `read` are columns that the algorithm and the rewards read.

    Raises: DataError if nothing reads some of their contents, and ``data.unused_columns`` is "error".
    """
    used = [data.examples, *data.problems.values(), *([data.validation] if data.validation else [])]
    names = {*read, *([COLUMN] if teacher_names(config) else [])}
    shows = config.environment is None and not (config.rollout and config.rollout.workflow)
    if config.data.unused_columns == "error":
        check_unread(used, data.chat, names, shows_row_settings=shows)
    return tuple(dict.fromkeys(data_notes(used, data.chat, names, shows_row_settings=shows)))


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
