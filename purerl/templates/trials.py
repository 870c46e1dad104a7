"""A chat template tried on every kind of row, as a run would use it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from purerl.data.chat import Chat, Messages, open_chat
from purerl.data.examples import DataSet, Example, extract_answers, extract_prompt, prompts_at, tokenized_at
from purerl.data.notes import data_notes
from purerl.data.open import check_first_rows
from purerl.data.row_settings import chat_of_row
from purerl.data.template_arguments import SWITCHES, template_variables
from purerl.envs.tool_formats import find_tool_format
from purerl.errors import ConfigError, DataError
from purerl.templates.conversations import TOOL, TRIALS, Trial, as_data
from purerl.templates.episodes import fault_of_episode
from purerl.templates.proof import fault_of_answer, fault_of_prompt, open_raw, said

__all__ = ["KINDS", "RESULTS", "Cell", "try_template"]


_PARTS = re.compile("thoughts|reasoning_content|tool_calls|tools")
RESULTS = ("wrong", "works", "note", "refused")
KINDS = (*(trial.name for trial in TRIALS), "episodes", "episodes with tools", "tool format")
"""The kinds of rows and runs, in the order of the columns of the table."""


@frozen
class Cell:
    """The result of one trial.

    result    one of `RESULTS`
    kwargs    the arguments of the template with which it is
    message   the refusal, the note, the fault of a wrong result, or the format of calls
    """

    result: str
    kwargs: Mapping[str, Any]
    message: str = ""


def try_template(tokenizer: Any, stop_tokens: Sequence[int] = ()) -> dict[str, Cell]:
    """The result of each of `KINDS` with the chat template of `tokenizer`; `stop_tokens` also end a turn.

    Each kind is tried without arguments of the template, and with each value of a switch of thoughts that the template
    reads. The cell is that of the first arguments with the best result; a wrong result of any is that of the kind.
    """
    variables = template_variables(tokenizer) | template_variables(tokenizer, [TOOL])
    variants = [{}, *({name: value} for name in SWITCHES if name in variables for value in (False, True))]
    cells = {name: [_cell(name, tokenizer, kwargs, stop_tokens) for kwargs in variants] for name in KINDS}
    return {name: min(each, key=lambda cell: RESULTS.index(cell.result)) for name, each in cells.items()}


def _cell(name: str, tokenizer: Any, kwargs: Mapping[str, Any], stop_tokens: Sequence[int]) -> Cell:
    try:
        chat = open_chat(tokenizer, "messages", chat_template_kwargs=kwargs, extra_stop_tokens=stop_tokens)
        if name == "tool format":
            return Cell("works", kwargs, find_tool_format(chat, [dict(TOOL)]))
        if name.startswith("episodes"):
            fault, notes = fault_of_episode(chat, with_tools=name != "episodes"), []
        else:
            fault, notes = _fault(chat, next(trial for trial in TRIALS if trial.name == name))
    except (ConfigError, DataError) as error:
        return Cell("refused", kwargs, str(error))
    if fault:
        return Cell("wrong", kwargs, fault)
    return Cell("note" if notes else "works", kwargs, "; ".join(notes))


def _fault(chat: Chat, trial: Trial) -> tuple[str | None, list[str]]:
    """The fault of the rows of `trial`, and the notes on their texts. Raises ConfigError or DataError as a run does."""
    notes: list[str] = []
    for row in trial.rows:
        data = as_data(row, trial.example_type)
        check_first_rows(chat, data)
        notes += [note for note in data_notes([data], chat, ()) if _PARTS.search(note)]
        fault = _fault_of_row(chat_of_row(chat, row), data, dict(row), notes)
        if fault:
            return fault, notes
    return None, notes


def _fault_of_row(chat: Chat, data: DataSet, row: Example, notes: Sequence[str]) -> str | None:
    prompt, answers = extract_prompt(data.example_format, row), extract_answers(data.example_format, row)
    conversations = [[*prompt, *answer] for answer in answers] or [[*prompt]]
    raw = open_raw(chat.tokenizer, chat.chat_template_kwargs, conversations[0])
    if raw is None:
        return "the template cannot be applied"
    if not answers:
        return fault_of_prompt(chat, raw, conversations[0], prompts_at(chat, data, [0], [row])[0])
    examples = tokenized_at(chat, data, 0, row)
    unread = {text for note in notes for messages in conversations for text in _unread(note, messages)}
    faults = (fault_of_answer(chat, raw, *pair, unread) for pair in zip(conversations, examples, strict=True))
    return next(filter(None, faults), None)


def _unread(note: str, messages: Messages) -> Iterator[str]:
    """The texts of `messages` that `note` says are left out."""
    for message in messages:
        if "reasoning_content" in note or "thoughts of a turn" in note:
            yield from said({"reasoning_content": message.get("reasoning_content")})
            content, end, _ = str(message.get("content")).rpartition("</think>")
            yield from said({"content": content}) if end else ()
        if "tool_calls" in note:
            yield from said({"tool_calls": message.get("tool_calls")})
