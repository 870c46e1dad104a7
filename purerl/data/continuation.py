"""An answer that continues the generation prompt, where the chat template renders it in another way.

The model samples after the generation prompt. That of a reasoning model may open thoughts (``<think>``) or close empty
ones (``<think></think>``), while the template renders the answer of a conversation without this. Then the context of
the answer is the generation prompt all the same, and what is learned is what follows it:

    opened    the thoughts of the answer, after their tag, and the answer
    closed    the answer, which has no thoughts

An answer that does not continue the generation prompt, such as one without thoughts after ``<think>``, is refused: the
model would never sample after the context that it is learned in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from attrs import evolve

from purerl.data.chat import Chat, Messages, render
from purerl.data.messages import is_learned
from purerl.data.row_images import text_of
from purerl.data.template_arguments import SWITCHES, template_variables
from purerl.errors import DataError

__all__ = ["THOUGHT_TAGS", "BorderError", "Spans", "continued_answer", "generation_prompt", "with_remedy"]

Spans = list[tuple[int, int]]
FindSpans = Callable[[Chat, Messages, int], tuple[str, Spans]]

THOUGHT_TAGS = re.compile(r"<[\w:]*think[\w:]*>|\[THINK\]")
_SHOWN = 60  # characters


class BorderError(DataError):
    """An answer that is not rendered after its context: the text of the context is not the start of the whole text."""

    @classmethod
    def of_earlier_turns(cls, number: int) -> BorderError:
        """The first `number` messages have another text when more messages follow."""
        return cls(
            "the chat template changes earlier turns when more messages follow",
            got=f"another text for the first {number} messages",
            need="turns that stay the same when messages follow, or a template with {% generation %} markers",
        )

    @classmethod
    def of_prompt(cls, prompt: str, answer: str) -> BorderError:
        """The generation prompt is `prompt`, and what the template renders in its place begins with `answer`."""
        return cls(
            "an answer does not continue the generation prompt of the chat template",
            got=f"the generation prompt {prompt[-_SHOWN:]!r}, and an answer that begins with {answer[:_SHOWN]!r}",
            need="an answer that begins with the generation prompt, after which the model samples",
        )


def generation_prompt(chat: Chat, messages: Messages) -> str:
    """The text that the chat template adds to `messages` for the model to answer; empty if that cannot be told."""
    try:
        before, whole = render(chat, messages), render(chat, messages, add_generation_prompt=True)
    except DataError:
        return ""
    return whole[len(before) :] if whole.startswith(before) else ""


def continued_answer(chat: Chat, messages: Messages) -> tuple[str, Spans]:
    """The generation prompt for the last of `messages`, with this answer after it; and the span of the answer.

    Raises: BorderError if the answer does not continue the generation prompt.
    """
    before, whole = render(chat, messages[:-1]), render(chat, messages)
    prompt = render(chat, messages[:-1], add_generation_prompt=True)
    if not (prompt.startswith(before) and whole.startswith(before)):
        raise BorderError.of_earlier_turns(len(messages) - 1)
    header, answer = prompt[len(before) :], whole[len(before) :]
    tag = THOUGHT_TAGS.search(header)
    rest = None
    if tag and answer.startswith(header[: tag.start()]):
        rest = _continuing(header[tag.start() :], answer[tag.start() :], messages[-1], tag[0])
    if rest is None:
        raise BorderError.of_prompt(header, answer)
    text = prompt + rest
    ends = [k + len(string) for string in chat.end_strings if (k := text.rfind(string, len(prompt))) >= 0]
    return text, [(len(prompt), max(ends, default=len(text)))]


def _continuing(opening: str, body: str, message: Mapping[str, Any], tag: str) -> str | None:
    """The text after `opening`, the thoughts that the generation prompt begins; None if the answer is another one.

    `body` is what the template renders in place of `opening` and the answer.
    """
    end = f"{tag[0]}/{tag[1:]}"
    content = text_of(message.get("content"))
    without_empty = re.sub(rf"^{re.escape(tag)}\s*{re.escape(end)}\s*", "", body)
    if end in opening:
        return None if end in without_empty or end in content else without_empty
    thoughts = _with_thoughts(content, without_empty, end)
    if thoughts is None:
        return None
    inner, begun = thoughts.lstrip().removeprefix(tag), opening.removeprefix(tag)
    if begun.strip():
        return inner.removeprefix(begun) if inner.startswith(begun) else None
    return inner.lstrip() if begun else inner


def _with_thoughts(content: str, body: str, end: str) -> str | None:
    """The answer `body` with the thoughts of `content`, if the template leaves them out; None if there are none."""
    if end in body:
        return body
    before, _, after = content.rpartition(end)
    if end not in content or not body.lstrip().startswith(after.strip()):
        return None
    return before + end + after[: len(after) - len(after.lstrip())] + body.lstrip()


# --- remedies -------------------------------------------------------------------------------------------------------


def with_remedy(error: BorderError, chat: Chat, messages: Messages, first: int, find_spans: FindSpans) -> DataError:
    """`error` with the first remedy that works: one answer in each row, thoughts on or off, thoughts in the content."""
    do = next(_remedies(chat, messages, first, find_spans), "use another chat template")
    return DataError(f"{error}\n  do:   {do}")


def _remedies(chat: Chat, messages: Messages, first: int, find_spans: FindSpans) -> Iterator[str]:
    turns = [k for k in range(first, len(messages)) if is_learned(messages[k])]
    last = [*messages[: turns[-1] + 1]]
    changes = [("", messages, first)]
    if len(turns) > 1:
        changes += [("put one answer in each row, in columns `prompt` and `completion`", last, len(last) - 1)]
    for advice, changed, start in changes:
        for kwargs in ({}, *_switches(chat)):
            own = evolve(chat, chat_template_kwargs={**chat.chat_template_kwargs, **kwargs}, base=chat.base or chat)
            if (advice or kwargs) and _fits(find_spans, own, changed, start):
                yield ", and ".join(filter(None, [advice, *map(_setting, kwargs.items())]))
    content = text_of(last[-1].get("content"))
    last[-1] = {**last[-1], "content": f"<think>\nplaceholder\n</think>\n\n{content}"}
    if _fits(find_spans, chat, last, len(last) - 1):
        yield "write the thoughts of each answer into its content, between <think> and </think>"


def _switches(chat: Chat) -> list[dict[str, bool]]:
    """The arguments that would turn thoughts on or off."""
    given = chat.chat_template_kwargs
    variables = template_variables(chat.tokenizer, given.get("tools"))
    pairs = ((name, value) for name in SWITCHES if name in variables for value in (False, True))
    return [{name: value} for name, value in pairs if given.get(name) is not value]


def _setting(item: tuple[str, bool]) -> str:
    name, value = item
    column = name if name == "enable_thinking" else "chat_template_kwargs"
    return f"set data.chat_template_kwargs.{name} = {str(value).lower()}, or the column {column!r} of such rows"


def _fits(find_spans: FindSpans, chat: Chat, messages: Messages, first: int) -> bool:
    with suppress(DataError):
        find_spans(chat, messages, first)
        return True
    return False
