"""An episode of two turns with a template: the tokens between the turns against the text that the template renders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purerl.data.chat import Chat
from purerl.data.encoding import encode_continuation
from purerl.data.turn_tokens import open_turns
from purerl.errors import DataError
from purerl.templates.conversations import ANSWER, CALL, QUESTION, RESULT, SECOND, TOOL
from purerl.templates.proof import RawTemplate, open_raw, said

__all__ = ["fault_of_episode"]


def fault_of_episode(chat: Chat, *, with_tools: bool) -> str | None:
    """The difference of prompt, sampled turn and what follows from the rendered conversation; None: none.

    The turn is sampled with the token that ends it, and without tools also cut before it, as by a stop string.

    Raises: ConfigError and DataError as a run does.
    """
    tools = [dict(TOOL)] if with_tools else []
    turns, new = open_turns(chat, tools), RESULT if with_tools else SECOND
    prompt = turns.prompt([QUESTION], tools)
    kwargs = {**chat.chat_template_kwargs, **({"tools": tools} if tools else {})}
    rendered = [
        pair for turn in ((CALL, ANSWER) if with_tools else (ANSWER,)) if (pair := _rendered(chat, kwargs, turn, new))
    ]
    if not rendered:
        raise DataError("the chat template does not show a turn that messages follow")
    (raw, last, after), *_ = rendered
    if prompt.text != raw([QUESTION], prompts=True):
        return f"the prompt is {prompt.text!r}"
    ends = sorted(
        (after.find(string), token) for string, token in zip(chat.stop_strings, chat.stop_tokens, strict=True)
    )
    end = next((token for position, token in ends if position >= 0), None)
    for stop in dict.fromkeys((end, end if with_tools else None)):
        sampled = [*encode_continuation(chat, last), *([] if stop is None else [stop])]
        following = turns.following([QUESTION], sampled, [new], tools)
        added = str(chat.tokenizer.decode([*sampled, *following])).removeprefix(last)
        if not (after.endswith(added) if with_tools else after == added):  # a call also has what is after its value
            return f"{added!r} follows the turn, and the template renders {after!r}"
        if added.count(new["content"]) != 1:
            return f"{new['content']!r} is {added.count(new['content'])} times in {added!r}"
    return None


def _rendered(
    chat: Chat, kwargs: Mapping[str, Any], turn: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[RawTemplate, str, str] | None:
    """The template, the last text of `turn`, and the text after it in a conversation that `new` ends; None: no text."""
    raw = open_raw(chat.tokenizer, kwargs, [QUESTION, turn, new])
    _, found, after = raw([QUESTION, turn, new], prompts=True).rpartition(said(turn)[-1]) if raw else ("", "", "")
    return (raw, found, after) if raw and found else None
