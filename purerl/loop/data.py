"""From the settings of a run's data to what is drawn from: read, rendered, and parted.

In that order: files and their columns first, which cost little; then the tokenizer; the engines come after all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve

from purerl.backends.tokenizer import end_tokens
from purerl.config.schema import Evaluate, RunConfig
from purerl.data.chat import Chat, check_settings, open_chat
from purerl.data.columns import ExampleType, PromptFormat, all_begin_with
from purerl.data.examples import (
    DataSet,
    Example,
    extract_prompt,
    prompts_at,
    read_examples,
    rows_at,
    split_out,
    tokenized_at,
)
from purerl.data.files import digests
from purerl.data.split import is_validation
from purerl.errors import ConfigError, DataError
from purerl.loop.run import RunData

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["files_of", "form_of", "glance", "open_data", "read_data", "read_problems", "summary"]

_GLANCE = 16


def read_data(config: RunConfig, purpose: ExampleType) -> tuple[DataSet, dict[str, DataSet]]:
    """The files that `config` names to learn from, which have what `purpose` needs, and to be evaluated on.

    Raises: DataError as `read_examples` does; ConfigError for settings of conversations that have no effect on these.
    """
    data = config.data
    examples = read_examples(data.files, purpose, weights=data.weights)
    problems = read_problems(config.evaluate) if config.evaluate else {}
    every = (examples, *problems.values())
    with _of_data():
        check_settings(form_of(every), system_prompt=data.system_prompt, chat_template_kwargs=data.chat_template_kwargs)
    chats = [one for one in every if one.example_format.prompt_format == "messages"]
    if data.system_prompt and all(
        all_begin_with(table, one.example_format, "system") for one in chats for table in one.tables
    ):
        got, do = "messages that all begin with a system prompt of their own", "leave data.system_prompt out"
        raise ConfigError("data.system_prompt has no effect", got=got, do=do)
    return examples, problems


def files_of(config: RunConfig) -> dict[str, str]:
    """A digest of each file that `config` learns from or is evaluated on, by the file's path."""
    named = [*config.data.files, *(config.evaluate.data.values() if config.evaluate else [])]
    return {path: digest for name in named for path, digest in digests(name).items()}


def read_problems(settings: Evaluate) -> dict[str, DataSet]:
    """The problems to be evaluated on, by their names. Raises DataError as `read_examples` does."""
    return {name: read_examples([file], "prompts", limit=settings.max_examples) for name, file in settings.data.items()}


def open_data(
    config: RunConfig, examples: DataSet, problems: Mapping[str, DataSet], tokenizer: PreTrainedTokenizerBase
) -> RunData:
    """`batch_size` without those that are too long or held out; `problems`, or those held out if there are none.

    Raises: ConfigError where `tokenizer` does not do for them, DataError where nothing is left.
    """
    chat = _chat(config, examples, problems, tokenizer)
    for one in (examples, *problems.values()):
        glance(chat, one)
    data, counts = config.data, {"rows": len(examples.indices)}
    if data.max_prompt_tokens is not None:
        too_long = partial(_are_too_long, chat, examples, data.max_prompt_tokens)
        examples, longer = split_out(examples, too_long)
        counts["too_long"] = len(longer.indices)
        _check_left(examples, f"prompts of more than {data.max_prompt_tokens} tokens", "raise data.max_prompt_tokens")
    if data.validation_fraction:
        rows = len(examples.indices)
        examples, out = split_out(examples, partial(_are_held_out, examples, data.validation_fraction))
        counts["held_out"] = len(out.indices)
        _check_left(examples, "prompts that are held out", "lower data.validation_fraction")
        if not out.indices:
            raise DataError(
                "data.validation_fraction", got=f"none of {rows:,} rows", need="at least one", do="raise it"
            )
        if config.evaluate:
            problems = {"held_out": evolve(out, parts=(out.indices[: config.evaluate.max_examples],))}
    counts["examples"] = len(examples.indices)
    if problems:
        counts["problems"] = sum(len(one.indices) for one in problems.values())
    return RunData(examples, problems, chat, counts)


def _are_too_long(chat: Chat, data: DataSet, most: int, indices: Sequence[int], rows: Sequence[Example]) -> list[bool]:
    return [len(prompt.tokens) > most for prompt in prompts_at(chat, data, indices, rows)]


def _are_held_out(data: DataSet, share: float, indices: Sequence[int], rows: Sequence[Example]) -> list[bool]:
    return [is_validation(extract_prompt(data.example_format, row), fraction=share) for row in rows]


def form_of(data: Iterable[DataSet]) -> PromptFormat:
    """Messages, if there are any."""
    return "messages" if any(one.example_format.prompt_format == "messages" for one in data) else "text"


@contextmanager
def _of_data() -> Iterator[None]:
    """A setting that is refused inside is one of the section `data`."""
    try:
        yield
    except ConfigError as error:
        is_setting = str(error).startswith(("system_prompt", "chat_template_kwargs"))
        raise ConfigError(f"data.{error}" if is_setting else str(error)) from error


def glance(chat: Chat, data: DataSet) -> None:
    """Render the first rows of each part, so that what is wrong with all of them is known before a model is loaded."""
    for part in data.parts:
        indices = part[:_GLANCE]
        found = rows_at(data, indices)
        prompts_at(chat, data, indices, found)
        for index, example in zip(indices, found, strict=True):
            tokenized_at(chat, data, index, example)


def _check_left(data: DataSet, but: str, do: str) -> None:
    names = data.paths if len(data.parts) > 1 else [", ".join(data.paths)]
    for name, part in zip(names, data.parts, strict=True):
        if not part:
            raise DataError(f"data set {name!r}", got=f"nothing but {but}", need="at least one other", do=do)


def _chat(
    config: RunConfig, examples: DataSet, problems: Mapping[str, DataSet], tokenizer: PreTrainedTokenizerBase
) -> Chat:
    data, form, ends = config.data, form_of((examples, *problems.values())), end_tokens(config.model)
    with _of_data():
        chat = open_chat(
            tokenizer,
            form,
            system_prompt=data.system_prompt,
            chat_template_kwargs=data.chat_template_kwargs,
            extra_stop_tokens=ends,
        )
    endless = [part for part in (config.rollout, config.evaluate) if part and not part.stop_strings]
    learned = examples.example_format.prompt_format == "text" and examples.example_format.example_type != "prompts"
    if (endless and not chat.stop_tokens) or (learned and not chat.end_tokens):
        raise ConfigError(
            f"the tokenizer of {config.model.path!r} has no end token",
            need="one that ends a completion: without it, each goes on to its limit, and none learns to end",
            do="set eos_token in its tokenizer_config.json"
            + ("" if learned else ", or rollout.stop_strings and evaluate.stop_strings to texts that end one"),
        )
    return chat


def summary(counts: Mapping[str, int]) -> str | None:
    """What was left out, in one line; None where nothing was.

    >>> summary({"rows": 10, "too_long": 1, "examples": 9})
    '9 of 10 rows to learn from (1 with too long a prompt)'
    """
    labels = {"too_long": "with too long a prompt", "held_out": "held out"}
    out = ", ".join(f"{counts[name]:,} {label}" for name, label in labels.items() if counts.get(name))
    return f"{counts['examples']:,} of {counts['rows']:,} rows to learn from ({out})" if out else None
