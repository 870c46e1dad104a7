"""A TOML file for a model and data: both are read, and each line has a comment that says what was assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attrs import frozen

from purerl.config.schema import RunConfig
from purerl.config.tables import write
from purerl.data.chat import Chat, text_note
from purerl.data.columns import (
    EXAMPLE_FORMATS,
    ExampleFormat,
    ExampleType,
    column_format,
    find_ground_truth_column,
    select_format,
)
from purerl.data.examples import DataSet, iterate_chunks, prompts_at, read_examples, read_renamed, rows_at, tokenized_at
from purerl.data.nested import shaped_schema
from purerl.data.open import check_first_rows, open_run_chat
from purerl.errors import DataError
from purerl.models.pretrained import config_of
from purerl.models.tokenizer import load_tokenizer
from purerl.opening.engines import preview_engine
from purerl.opening.images import open_processor
from purerl.plugins import locate
from purerl.recipes import find
from purerl.rewards.ground_truth import find_ground_truth

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Method", "init"]

Method = Literal["grpo", "ppo", "sft", "dpo", "kto", "reward_model"]

_METHODS: Mapping[ExampleType, tuple[Method, ...]] = {
    "prompts": ("grpo", "ppo"),
    "demonstrations": ("sft",),
    "preferences": ("dpo", "reward_model"),
    "labels": ("kto",),
}
"""The ways to train on each type of examples. The first one is chosen."""

_ANSWERS = ("solution", "ground_truth", "final_answer", "target")
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("instruction", "question", "problem", "query", "input"),
    "completion": ("response", "output", "reply", "answer", *_ANSWERS),
    "messages": ("conversations", "conversation", "chat", "dialogue"),
    "chosen": ("chosen_response", "preferred", "accepted"),
    "rejected": ("rejected_response", "dispreferred"),
    "label": ("desirable", "is_desirable", "liked"),
    "text": ("content", "document"),
}
"""Names of columns in other data sets, by the name that purerl reads."""

_REWARDS = (
    ("purerl.rewards.math:gsm8k", "{}", ""),
    ("purerl.rewards.math:math", r"\boxed{{{}}}", r"0123456789\^="),
    ("purerl.rewards.exact:exact_match", "{}", ""),
)
"""Rewards, a completion with the ground truth {} as its answer, and characters of which each ground truth has one."""
_TRIED_ROWS = 256

_TUNED: Mapping[Method, str] = {
    "grpo": "gsm8k",
    "ppo": "postfix_ppo",
    "sft": "chat",
    "dpo": "preferences",
    "kto": "postfix_kto",
    "reward_model": "preference_classifier",
}
"""Recipes that have chosen a learning rate for a model and data."""


class _Line(NamedTuple):
    """A setting with its value, what was assumed, and remarks in lines of their own."""

    key: str
    value: Any
    comment: str = ""
    remarks: Sequence[str] = ()

    def __str__(self) -> str:
        comment = f"  {_comment(self.comment)}" if self.comment else ""
        return "\n".join([*map(_comment, self.remarks), f"{self.key} = {write(self.value)}{comment}"])


class _Match(NamedTuple):
    """Columns that are examples of a format, if they are renamed: {name that purerl reads: name in the file}."""

    example_format: ExampleFormat
    renamed: Mapping[str, str]
    has_answers: bool


class _Tokens(NamedTuple):
    """The tokens of a row: of its prompt, before the first one that is learned, from there on, and of all."""

    prompt: int
    start: int
    answer: int
    total: int


@frozen
class _Facts:
    """Facts about a model and data.

    is_given           whether the user has chosen the method
    renamed            other names of columns, as in data.columns
    limit              the maximum number of tokens of a sequence; None: unlimited
    new_tokens         the maximum number of tokens of a completion; 0 for a run that learns from data
    rows               the tokens of each row
    max_prompt_tokens  the limit of prompts with which all rows fit; None if they fit without, or with none
    """

    method: Method
    is_given: bool
    examples: DataSet
    renamed: Mapping[str, str]
    chat: Chat
    limit: int | None
    new_tokens: int
    rows: Sequence[_Tokens]
    max_prompt_tokens: int | None

    @property
    def num_left_out(self) -> int:
        """The number of rows whose prompts are too long."""
        return sum(self.max_prompt_tokens is not None and each.prompt > self.max_prompt_tokens for each in self.rows)


def init(model: str, data: str, method: Method | None = None) -> str:
    """The text of a TOML file for `purerl train` that trains `model` on the data set at `data` by `method`.

    If `method` is not given, it is the first one that learns from the type of the examples. The values are those of the
    recipe with the name of the method, except for what depends on the model and the data: names of columns, lengths,
    the batch size, and the reward. If the prompts have no answers, the reward is to be filled in.

    Every row is tokenized. No weights are loaded.

    Raises: DataError if the data cannot be read, or have no columns for `method`. ConfigError if the model or its
    tokenizer cannot be read, or does not fit the data.
    """
    config, facts = _look_at(model, data, method)
    sections = {
        "": _first_lines(config, facts),
        "data": _data_lines(config, facts),
        "trainer": _trainer_lines(config, facts),
    }
    if config.rollout is not None:
        sections["rollout"] = _rollout_lines(config, facts)
    options = {"model": model, "data": data, **({"method": method} if method else {})}
    command = " ".join(["purerl init", *(f"--{name} {quote(value)}" for name, value in options.items())])
    text = [
        _comment(f"Written by: {command}"),
        _comment("The comments say what was assumed. Every other setting has its default: `purerl config` lists them."),
    ]
    for name, lines in sections.items():
        text += ["", *([f"[{name}]"] if name else [])]
        text += map(str, lines)
    return "\n".join([*text, ""])


def _comment(text: str) -> str:
    return "# " + "".join(character if character.isprintable() else " " for character in text)


# --- reading -----------------------------------------------------------------------------------------------------


def _look_at(model: str, data: str, method: Method | None) -> tuple[RunConfig, _Facts]:
    match = _find_columns(shaped_schema(read_renamed(data, {}).schema), data, method)
    example_type = match.example_format.example_type
    chosen = method or _METHODS[example_type][0]
    config: RunConfig = find(chosen)(model=model, data=data)
    examples = read_examples([data], example_type, columns=match.renamed)
    tokenizer, processor = load_tokenizer(config.model), open_processor(config.model, [examples], None)
    samples = config.rollout is not None
    chat = open_run_chat(config.data, config.model, examples, (), tokenizer, processor, needs_stop_token=samples)
    check_first_rows(chat, examples)
    engine = preview_engine("trainer", config.trainer, config.model)
    limit = engine and engine.max_sequence_length
    rows, new_tokens = [*_count_tokens(chat, examples)], _new_tokens(config, limit)

    def fits(largest: _Tokens) -> bool:
        # With labels, any prompt may be combined with any answer.
        tokens = largest.start + largest.answer if examples.example_format.label else largest.total + new_tokens
        return limit is None or tokens <= limit

    return config, _Facts(
        *(chosen, method is not None, examples, match.renamed, chat, limit, new_tokens, rows),
        max_prompt_tokens=_longest_prompt(rows, fits),
    )


def _count_tokens(chat: Chat, data: DataSet) -> Iterator[_Tokens]:
    """The tokens of each row; of a pair those of the longer answer."""
    for chunk in iterate_chunks(data.indices):
        rows = rows_at(data, chunk)
        if data.example_format.example_type == "prompts":
            lengths = [len(prompt.tokens) for prompt in prompts_at(chat, data, chunk, rows)]
            yield from (_Tokens(length, length, 0, length) for length in lengths)
            continue
        answers = [tokenized_at(chat, data, index, row) for index, row in zip(chunk, rows, strict=True)]
        starts = [max(each.action.index(True) for each in row) for row in answers]
        totals = [max(len(each.tokens) for each in row) for row in answers]
        rests = [total - start for total, start in zip(totals, starts, strict=True)]
        is_whole = data.example_format.is_whole
        prompts = totals if is_whole else [len(prompt.tokens) for prompt in prompts_at(chat, data, chunk, rows)]
        yield from map(_Tokens, prompts, starts, rests, totals)


def _find_columns(schema: pa.Schema, path: str, method: Method | None) -> _Match:
    """The columns for `method`; otherwise the format with the most columns, if possible under their own names.

    Raises: DataError if there are none.
    """
    types = [each for each, methods in _METHODS.items() if method is None or method in methods]
    formats = [each for each in EXAMPLE_FORMATS if each.example_type in types]
    matches = [match for each in formats if (match := _match(schema, each, is_given=method is not None)) is not None]
    if matches:
        return max(matches, key=_rank)
    if method is not None:
        select_format(schema, types[0], path)
    raise DataError(
        f"data set {path!r} has no columns that a method learns from",
        got=", ".join(f"{field.name} ({field.type})" for field in schema),
        need="prompts, demonstrations, preference pairs, or labeled completions",
        do="pass --method, which says which column is missing, or rename the columns: docs/how-to/data.md lists them",
    )


def _rank(match: _Match) -> tuple[int, bool, int]:
    is_complete = match.example_format.example_type != "prompts" or match.has_answers
    return len(match.example_format.all_columns), is_complete, -len(match.renamed)


def _match(schema: pa.Schema, example_format: ExampleFormat, *, is_given: bool) -> _Match | None:
    """The columns of `schema` that are those of `example_format`, or None.

    A column of answers becomes the completion only if the user has chosen the method.
    """
    from pyarrow import types

    def is_label(kind: pa.DataType) -> bool:
        return types.is_boolean(kind)

    def is_in_format(kind: pa.DataType) -> bool:
        return column_format(kind) == example_format.prompt_format

    def is_answer(kind: pa.DataType) -> bool:
        return column_format(kind) == "text" or types.is_integer(kind) or types.is_floating(kind)

    renamed = dict[str, str]()
    for name in example_format.all_columns:
        others = [each for each in _OTHER_NAMES.get(name, ()) if is_given or each not in ("answer", *_ANSWERS)]
        column = _column(schema, name, others, is_label if name == example_format.label else is_in_format)
        if column is None:
            return None
        renamed |= {name: column} if column != name else {}
    has_answers = find_ground_truth_column(schema) is not None
    answer = _column(schema, "answer", _ANSWERS, is_answer)
    if example_format.example_type == "prompts" and not has_answers and answer is not None:
        return _Match(example_format, {**renamed, "answer": answer}, has_answers=True)
    return _Match(example_format, renamed, has_answers)


def _column(schema: pa.Schema, name: str, others: Sequence[str], fits: Callable[[pa.DataType], bool]) -> str | None:
    """The column `name` if there is one, otherwise the first of `others`; None if its type does not fit."""
    found = [each for each in ([name] if name in schema.names else others) if each in schema.names]
    return next((each for each in found if fits(schema.field(each).type)), None)


# --- writing -----------------------------------------------------------------------------------------------------


def _first_lines(config: RunConfig, facts: _Facts) -> Iterator[_Line]:
    model = config_of(config.model)
    template = f"{'a' if facts.chat.tokenizer.chat_template else 'no'} chat template"
    context = f"sequences of at most {facts.limit:,} tokens" if facts.limit else "sequences of any length"
    kind = next(iter(getattr(model, "architectures", None) or [model.model_type]))
    yield _Line("name", config.name, f"the run directory is runs/{config.name}")
    yield _Line("model", config.model.path, f"{kind}, {context}, {template}")
    yield _Line("algorithm", facts.method, _reason(facts))
    if config.rollout is not None:
        yield _Line("generator", "hf", "samples in the process of the trainer; vllm and sglang are faster")
        yield _choose_reward(facts)
    kept = len(facts.rows) - facts.num_left_out
    size = min(config.batch_size, kept)
    reason = f"as in the recipe {facts.method}" if size == config.batch_size else "as many as there are rows"
    yield _Line("num_epochs", config.num_epochs, f"steps: {-(-kept // size):,}, for {_count(kept, 'row')}")
    yield _Line("batch_size", size, reason)


def _reason(facts: _Facts) -> str:
    others = [each for each in _METHODS[facts.examples.example_format.example_type] if each != facts.method]
    more = f"; or --method {' or '.join(others)}" if others else ""
    return "--method" if facts.is_given else f"the data have {facts.examples.example_format}{more}"


def _choose_reward(facts: _Facts) -> _Line:
    """The first reward that gives 1 to the ground truth of the first rows; a line to fill in if there is none."""
    rows = rows_at(facts.examples, facts.examples.indices[:_TRIED_ROWS])
    truths = [(truth, row) for row in rows if (truth := find_ground_truth(row)) is not None]
    fill_in = "FILL IN: a function of yours, def reward(completion, example) -> float"
    if not truths:
        return _Line("rewards", ["my_rewards.py:reward"], f"{fill_in}; the data have no answers in a column 'answer'")
    missing = f"; {len(rows) - len(truths)} of them have none: remove them" if len(truths) < len(rows) else ""
    for name, form, needed in _REWARDS:
        function = locate(name)
        if all(_accepts(function, form, needed, truth, row) for truth, row in truths):
            return _Line(
                "rewards", [name], f"it gives 1 to the answers of the first {_count(len(rows), 'row')}{missing}"
            )
    return _Line("rewards", ["my_rewards.py:reward"], f"{fill_in}; no reward accepts the answers of the first rows")


def _accepts(function: Callable[..., float], form: str, needed: str, truth: str, row: Mapping[str, Any]) -> bool:
    if needed and not any(character in truth for character in needed):
        return False
    try:
        return function(form.format(truth), row) == 1
    except (ValueError, TypeError):  # a ground truth that the reward cannot read
        return False


def _count(number: int, noun: str) -> str:
    """`number` with its noun.

    >>> _count(1, "row"), _count(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _data_lines(config: RunConfig, facts: _Facts) -> Iterator[_Line]:
    example_format = facts.examples.example_format
    longest = max(each.total for each in facts.rows)
    notes = []
    if example_format.has_text_prompts and (note := text_note(facts.chat.tokenizer)):
        notes.append(note)
    if example_format.example_type != "prompts":
        unread = sorted({*facts.examples.tables[0].column_names} - {*example_format.all_columns})
        notes += [f"not read: {', '.join(unread)}"] if unread else []
    limit = facts.max_prompt_tokens
    if limit is None and facts.limit is not None and longest > facts.limit:
        notes.append(f"some rows have more than {facts.limit:,} tokens: remove them, the run refuses them")
    rows = f"{_count(len(facts.rows), 'row')}: {example_format}; the longest has {_count(longest, 'token')}"
    yield _Line("files", list(config.data.files), rows, notes)
    if facts.renamed:
        yield _Line("columns", dict(facts.renamed), "by their names; the name that purerl reads = that in the file")
    if limit is not None:
        yield _Line(
            "max_prompt_tokens", limit, f"leaves out {_count(facts.num_left_out, 'row')}: longer prompts do not fit"
        )


def _trainer_lines(config: RunConfig, facts: _Facts) -> Iterator[_Line]:
    yield _Line("kind", "hf", "transformers, in this process")
    reason = f"the default; `purerl config {_TUNED[facts.method]}` shows a recipe that was tuned"
    yield _Line("lr", config.trainer.lr, reason)


def _rollout_lines(config: RunConfig, facts: _Facts) -> Iterator[_Line]:
    rollout, tokens = config.rollout, facts.new_tokens
    reason = f"as in the recipe {facts.method}"
    yield _Line("samples_per_prompt", rollout.samples_per_prompt, reason)
    yield _Line("max_tokens", tokens, reason if tokens == rollout.max_tokens else "half of the context of the model")


def _new_tokens(config: RunConfig, limit: int | None) -> int:
    """The new tokens of a completion: those of the recipe, at most half of the context; 0 for a run without them."""
    if config.rollout is None:
        return 0
    return config.rollout.max_tokens if limit is None else min(config.rollout.max_tokens, limit // 2)


def _longest_prompt(rows: Sequence[_Tokens], fits: Callable[[_Tokens], bool]) -> int | None:
    """The longest prompt with which all rows fit whose prompts are not longer; None if none does, or if all rows fit.

    `fits` is called with the largest numbers of these rows.
    """
    largest, longest = _Tokens(0, 0, 0, 0), None
    for prompt, group in groupby(sorted(rows), key=lambda each: each.prompt):
        largest = _Tokens(*map(max, zip(largest, *group, strict=True)))
        if not fits(largest):
            return longest
        longest = prompt
    return None
