"""Checks of a chat template with rows of the data, before the first step.

Is the token that stops generation learned after each kind of answer: plain, with thoughts, with calls of tools, last
and not last? Is all that is to be learned, and is the text of each kind of message in what the template renders? The
first row of each kind is checked, with placeholders in place of its texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from purerl.data.answers import TokenizedExample
from purerl.data.chat import Chat, Messages, TextOrMessages, add_system_prompt, render
from purerl.data.continuation import generation_prompt
from purerl.data.examples import DataSet, row_name, tokenized_at
from purerl.data.kinds import iterate_conversations, kinds_of
from purerl.data.messages import is_learned
from purerl.data.placeholders import THOUGHTS, Piece, has_inline_thoughts, with_placeholders
from purerl.data.roles import check_role
from purerl.data.row_images import text_of
from purerl.data.spans import has_generation_markers, learned_spans
from purerl.data.template_arguments import template_words
from purerl.errors import ConfigError, DataError

__all__ = ["Problem", "Rendered", "check_template", "find_problem", "learns_every_end", "rendered_placeholders"]


class Problem(NamedTuple):
    """A problem of a chat template with a row: the lines of an error."""

    what: str
    got: str
    need: str
    do: str


def check_template(chat: Chat, data: DataSet) -> None:
    """Check the chat template of `chat` with the first row of each kind in `data`.

    Raises: ConfigError for a problem of `find_problem`, and if the end of a turn is not learned. DataError for an
    unknown role, and as `tokenized_at`.
    """
    seen = set[Any]()
    for index, row, row_chat, conversations in iterate_conversations(chat, data):
        kinds = {kind for each in conversations for kind in kinds_of(row_chat, *each)}
        if kinds <= seen:
            continue
        seen |= kinds
        name = row_name(data, index)
        for role in dict.fromkeys(message["role"] for each in conversations for part in each for message in part):
            check_role(row_chat, role, name)
        for example in tokenized_at(chat, data, index, row):
            if not learns_every_end(chat, example):
                raise _error(_not_learned(row_chat, _last_text(row_chat, example)), name)
        for prompt, answer in conversations:
            if problem := find_problem(row_chat, prompt, answer):
                raise _error(problem, name)


def _error(problem: Problem, row: str) -> ConfigError:
    return ConfigError(problem.what, got=f"in {row} {problem.got}", need=problem.need, do=problem.do)


def learns_every_end(chat: Chat, example: TokenizedExample) -> bool:
    """Whether each run of learned tokens has one that stops generation."""
    return all(_has_end(chat, run) for run in _learned_runs(example))


def _has_end(chat: Chat, run: Sequence[int]) -> bool:
    return not {*run}.isdisjoint(chat.stop_tokens)


def _learned_runs(example: TokenizedExample) -> list[list[int]]:
    runs = groupby(zip(example.tokens, example.action, strict=True), key=lambda pair: pair[1])
    return [[token for token, _ in run] for is_action, run in runs if is_action]


def _last_text(chat: Chat, example: TokenizedExample) -> str:
    run = next(run for run in _learned_runs(example) if not _has_end(chat, run))
    return chat.tokenizer.decode(run[-12:])


def _not_learned(chat: Chat, last: str) -> Problem:
    ends = " or ".join(map(repr, chat.stop_strings)) or "a stop token, which the tokenizer does not have"
    do = "use a chat template that ends each turn with it, or put one answer in each row"
    if has_generation_markers(chat):
        do = "put {% endgeneration %} after that token in the chat template, or remove the markers from the template"
    return Problem(
        "the end of a turn is not learned, so the model would not learn to stop",
        f"the learned text ends with {last!r}",
        f"{ends} among the learned tokens of each turn",
        do,
    )


class Rendered(NamedTuple):
    """A conversation with placeholders as a chat template renders it.

    messages  as they are
    first     the index of the first message of the answer
    text      the rendered conversation
    spans     what is learned of `text`
    pieces    the placeholders in the text
    left_out  those that are not in the text
    """

    messages: Messages
    first: int
    text: str
    spans: Sequence[tuple[int, int]]
    pieces: Sequence[Piece]
    left_out: Sequence[Piece]


def rendered_placeholders(chat: Chat, prompt: Messages, answer: Messages) -> Rendered | None:
    """The conversation with placeholders as the template renders it; None if the template raises an error."""
    try:
        prompt = add_system_prompt(chat, prompt)
        made, pieces = with_placeholders(chat, [*prompt, *answer])
        if any(map(is_learned, answer)):
            text, spans = learned_spans(chat, made, len(prompt))
        else:
            text, spans = render(chat, made, add_generation_prompt=not answer), []
    except DataError:  # tokenizing the row raises it with its name
        return None
    shown = text.lower()
    left_out = [piece for piece in pieces if piece.text not in shown]
    kept = [piece for piece in pieces if piece not in left_out]
    return Rendered([*prompt, *answer], len(prompt), text, spans, kept, left_out)


def find_problem(chat: Chat, prompt: TextOrMessages, answer: TextOrMessages) -> Problem | None:
    """The problem of a chat template with the conversation of a row; None if it fits, and for plain text.

    The end of each turn must be learned, and everything else of a turn that is learned; and the text of all messages,
    calls of tools, and the thoughts of a learned turn after the last question must be in what the template renders.
    """
    if isinstance(prompt, str) or isinstance(answer, str):
        return None
    rendered = rendered_placeholders(chat, prompt, answer)
    return None if rendered is None else _find_left_out(chat, rendered, prompt) or _find_not_learned(chat, rendered)


def _find_left_out(chat: Chat, rendered: Rendered, prompt: Messages) -> Problem | None:
    piece = next((piece for piece in rendered.left_out if _is_needed(chat, rendered, piece)), None)
    if piece is None:
        return None
    role = rendered.messages[piece.message]["role"]
    names = {"text": "the text", "thoughts": "the thoughts", "call": "the calls"}
    do = "use another chat template, or remove messages of this role"
    if role == "assistant":
        do = f"use a chat template that shows it, or remove {names[piece.part]} from these turns"
    is_setting = piece.message == 0 and len(prompt) < rendered.first
    place = "the system prompt of the settings" if is_setting else f"message {piece.message} of the conversation"
    text = text_of(rendered.messages[piece.message].get("content"))
    return Problem(
        f"the chat template leaves out {names[piece.part]} of a message of the role {role!r}",
        f"{place}, {text!r:.100}",
        "a template that shows the text, the thoughts and the calls of each message",
        "use another chat template, or leave system_prompt out" if is_setting else do,
    )


def _is_needed(chat: Chat, rendered: Rendered, piece: Piece) -> bool:
    """Whether the template must show `piece`: earlier thoughts may be left out; unread keys are listed elsewhere."""
    words = template_words(chat.tokenizer, chat.chat_template_kwargs.get("tools"))
    message, following = rendered.messages[piece.message], rendered.messages[piece.message :]
    is_answer = piece.message >= rendered.first and is_learned(message)
    if piece.part == "call":  # nothing else is learned of a turn without text
        return "tool_calls" in words or (is_answer and not text_of(message.get("content")).strip())
    if piece.part == "text":
        return True
    is_read = has_inline_thoughts(message) or not words.isdisjoint(THOUGHTS)
    return is_read and is_answer and all(each["role"] != "user" for each in following)


def _find_not_learned(chat: Chat, rendered: Rendered) -> Problem | None:
    """The problem of spans that are not the learned turns, each from the generation prompt to its end token."""
    turns = [k for k, message in enumerate(rendered.messages) if k >= rendered.first and is_learned(message)]
    spans = rendered.spans
    if len(spans) != len(turns):  # some templates mark one more end token after the last turn
        spans = [(start, end) for start, end in spans if rendered.text[start:end] not in chat.stop_strings]
    if len(spans) != len(turns):
        return _marker_problem(f"there are {len(turns)} turns to learn, and marked parts: {len(spans)}")
    for (start, end), turn in zip(spans, turns, strict=True):
        learned = rendered.text[start:end]
        own = [piece for piece in rendered.pieces if piece.message == turn]
        outside = next((piece for piece in own if piece.text not in learned.lower()), None)
        if outside:
            what = {"text": "text", "thoughts": "thoughts", "call": "a call"}[outside.part]
            return _marker_problem(f"message {turn} of the conversation has {what} outside of the markers")
        if any(piece.text in learned.lower() for piece in rendered.pieces if piece.message != turn):
            return _marker_problem(f"the text of another message is learned with message {turn} of the conversation")
        if not rendered.text[:start].endswith(generation_prompt(chat, rendered.messages[:turn])):
            last = rendered.text[:start][-40:]
            return _marker_problem(f"what is learned of message {turn} of the conversation begins after {last!r}")
        if chat.ends_turns and not any(string in learned for string in chat.stop_strings):
            return _not_learned(chat, learned[-40:])
    return None


def _marker_problem(got: str) -> Problem:
    return Problem(
        "the {% generation %} markers of the chat template do not mark what the model would sample",
        got,
        "one marked part for each assistant turn, from the generation prompt to the token that ends the turn",
        "correct the markers, or remove them from the template",
    )
