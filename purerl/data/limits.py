"""Whether all rows that a run may draw fit into its engines: checked before the first step.

Otherwise a row that is too long would stop the run when it is drawn, and again after each resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from purerl.data.chat import Chat, prompt_texts
from purerl.data.encoding import bounded_tokens
from purerl.data.examples import (
    DataSet,
    Example,
    extract_prompt,
    iterate_chunks,
    prompts_at,
    rendered_at,
    row_name,
    tokenized_at,
)
from purerl.data.row_settings import chat_of_row
from purerl.errors import DataError
from purerl.protocols import Capabilities

__all__ = ["check_answer_lengths", "check_lengths", "check_mismatched_lengths", "check_problem_lengths", "min_limit"]


def min_limit(*capabilities: Capabilities) -> int | None:
    """The smallest maximum sequence length; None if none of the engines has one."""
    limits = (each.max_sequence_length for each in capabilities)
    return min((limit for limit in limits if limit is not None), default=None)


def check_problem_lengths(chat: Chat, problems: Mapping[str, DataSet], *, new_tokens: int, limit: int | None) -> None:
    """Refuse evaluation problems whose prompt and `new_tokens` exceed `limit`. Raises DataError."""
    if limit is not None:
        for data in problems.values():
            do = "leave the row out, or lower max_tokens of the evaluation"
            check_lengths(chat, data, data.indices, new_tokens=new_tokens, limit=limit, do=do)


def check_lengths(chat: Chat, data: DataSet, indices: Iterable[int], *, new_tokens: int, limit: int, do: str) -> None:
    """Refuse rows whose prompt and `new_tokens` exceed `limit`; `do` is the remedy. Raises DataError.

    Prompts that are short enough by the bytes of their text are not tokenized.
    """
    for chunk in iterate_chunks(sorted(indices)):
        pairs = zip(chunk, rendered_at(data, chunk), strict=True)
        unclear = {index: row for index, row in pairs if not _is_short(chat, data, row, limit - new_tokens)}
        prompts = prompts_at(chat, data, [*unclear], [*unclear.values()])
        for index, prompt in zip(unclear, prompts, strict=True):
            if len(prompt.tokens) + new_tokens > limit:
                got = f"a prompt of {len(prompt.tokens):,} tokens, and up to {new_tokens:,} new tokens"
                raise DataError(row_name(data, index), got=got, need=f"at most {limit:,} together", do=do)


def _is_short(chat: Chat, data: DataSet, row: Example, limit: int) -> bool:
    """Whether the prompt of `row` has a token, and surely at most `limit`; false also if it cannot be rendered."""
    if not chat.is_byte_level or chat.escapes or chat.processor is not None:
        return False
    with suppress(DataError):
        (text,) = prompt_texts(chat_of_row(chat, row), [extract_prompt(data.example_format, row)])
        bound = bounded_tokens(text)
        return bound is not None and len(chat.first_tokens) + bound <= limit
    return False


def check_answer_lengths(chat: Chat, data: DataSet, indices: Iterable[int], *, limit: int) -> None:
    """Refuse demonstrations and preference pairs with more than `limit` tokens. Raises DataError."""
    for chunk in iterate_chunks(sorted(indices)):
        for index, row in zip(chunk, rendered_at(data, chunk), strict=True):
            length = max(len(example.tokens) for example in tokenized_at(chat, data, index, row))
            if length > limit:
                got, do = f"a prompt and an answer of {length:,} tokens", "leave the row out"
                raise DataError(row_name(data, index), got=got, need=f"at most {limit:,}", do=do)


def check_mismatched_lengths(chat: Chat, data: DataSet, indices: Iterable[int], *, limit: int) -> None:
    """Refuse labeled completions if the longest prompt with the longest answer has more than `limit` tokens.

    Any prompt may be combined with the answer of another row. Raises: DataError.
    """
    lengths = [
        (example.action.index(True), len(example.tokens) - example.action.index(True), index)
        for chunk in iterate_chunks(sorted(indices))
        for index, row in zip(chunk, rendered_at(data, chunk), strict=True)
        for example in tokenized_at(chat, data, index, row)
    ]
    prompt, _, first = max(lengths)
    answer, second = max((answer, index) for _, answer, index in lengths)
    if prompt + answer > limit:
        got = f"a prompt of {prompt:,} tokens, and an answer of {answer:,} tokens in {row_name(data, second)}"
        need = f"at most {limit:,} together: they may be combined to estimate a KL divergence"
        raise DataError(row_name(data, first), got=got, need=need, do="leave one of them out")
