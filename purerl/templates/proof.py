"""An independent check of tokenized rows: against the text that `apply_chat_template` of transformers renders.

Nothing of purerl's own rendering, markers and spans is used. A fault is a text: it says what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from attrs import frozen

from purerl.data.answers import TokenizedExample
from purerl.data.chat import Chat, Prompt

__all__ = ["RawTemplate", "fault_of_answer", "fault_of_prompt", "open_raw", "said"]

Message = Mapping[str, Any]
Render = Callable[[Message], Message]


@frozen
class RawTemplate:
    """A chat template as transformers applies it, with messages in the form that it reads."""

    tokenizer: Any
    kwargs: Mapping[str, Any]
    form: Render

    def __call__(self, messages: Sequence[Message], *, prompts: bool = False) -> str:
        """The rendered `messages`; with the generation prompt if `prompts`."""
        return self.tokenizer.apply_chat_template(
            [self.form(message) for message in messages], tokenize=False, add_generation_prompt=prompts, **self.kwargs
        )


def open_raw(tokenizer: Any, kwargs: Mapping[str, Any], messages: Sequence[Message]) -> RawTemplate | None:
    """The template with the first form of contents and calls in which it shows most of `messages`; None: in none."""
    counts: list[tuple[int, RawTemplate]] = []
    for with_content in (dict, _with_parts):
        for with_calls in (dict, _with_text_calls, _with_null_content):
            raw = RawTemplate(tokenizer, kwargs, lambda each, a=with_content, b=with_calls: a(b(each)))
            with suppress(Exception):
                text = raw(messages, prompts=True)
                shown = sum(piece in text for message in messages for piece in said(message))
                counts.append((shown - ("': '" in text), raw))
    return max(counts, key=lambda pair: pair[0])[1] if counts else None


def _with_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _with_text_calls(message: Message) -> Message:
    import json

    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else message


def _with_null_content(message: Message) -> Message:
    return {**_with_text_calls(message), "content": message.get("content") or None}


def said(message: Message) -> list[str]:
    """The texts of `message`: thoughts, lines of the content, and the names and values of calls."""
    thoughts = message.get("reasoning_content") or ""
    content = str(message.get("content") or "").replace("<think>", "").replace("</think>", "")
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [text for each in functions for text in (each["name"], *each["arguments"].values())]
    return [*filter(None, (line.strip() for text in (thoughts, content) for line in text.split("\n"))), *calls]


def fault_of_prompt(chat: Chat, raw: RawTemplate, messages: Sequence[Message], prompt: Prompt) -> str | None:
    """The first difference of `prompt` from the rendered `messages` with the generation prompt; None: none."""
    text = raw(messages, prompts=True)
    if prompt.text != text or _decoded(chat, prompt.tokens) != text:
        return f"the prompt is {prompt.text!r}, and the template renders {text!r}"
    if list(prompt.tokens) != chat.tokenizer(text, add_special_tokens=False)["input_ids"]:
        return "the tokens of the prompt are not those of its text"
    missing = [piece for message in messages for piece in said(message) if text.count(piece) != 1]
    return f"{missing[0]!r} is {text.count(missing[0])} times in the prompt" if missing else None


def fault_of_answer(
    chat: Chat, raw: RawTemplate, messages: Sequence[Message], example: TokenizedExample, unread: Collection[str] = ()
) -> str | None:
    """The first fault of the tokens to learn of `messages`, whose assistant turns are all learned; None: none.

    `unread` are texts that a note says are left out.
    """
    return next(_faults(chat, raw, messages, example, unread), None)


def _faults(
    chat: Chat, raw: RawTemplate, messages: Sequence[Message], example: TokenizedExample, unread: Collection[str]
) -> Iterator[str]:
    text, runs = _decoded(chat, example.tokens), _runs(chat, example)
    turns = [k for k, message in enumerate(messages) if message["role"] == "assistant"]
    eos = str(chat.tokenizer.eos_token)
    context = raw(messages[: turns[0]], prompts=True)
    runs = [(start, end) for start, end in runs if text[start:end] not in chat.stop_strings]
    if len(runs) != len(turns):
        yield f"{len(turns)} turns, and {len(runs)} learned parts"
        return
    if text[: runs[0][0]] != context:
        yield f"the context is {text[: runs[0][0]]!r}, and the model samples after {context!r}"
    if (expected := _whole(raw, messages, context)) not in (text, text.removesuffix(eos)):
        yield f"the text is {text!r}, and the template renders {expected!r}"
    for (start, end), turn in zip(runs, turns, strict=True):
        learned = text[start:end]
        own = [piece for piece in said(messages[turn]) if piece not in unread]
        others = [piece for k, message in enumerate(messages) if k != turn for piece in said(message)]
        if not all(learned.count(piece) >= 1 for piece in own):
            yield f"turn {turn} has {own}, and {learned!r} is learned"
        if any(piece in learned for piece in others):
            yield f"another message is learned with turn {turn}: {learned!r}"
        if not learned.endswith(chat.stop_strings):
            yield f"what is learned of turn {turn} does not end with a stop token: {learned!r}"
        if (header := _header(raw, messages[:turn])) and not text[:start].endswith(header):
            yield f"turn {turn} is learned after {text[:start][-60:]!r}, and is sampled after {header!r}"


def _header(raw: RawTemplate, messages: Sequence[Message]) -> str:
    """The generation prompt after `messages`; empty if it cannot be told."""
    before, whole = raw(messages), raw(messages, prompts=True)
    return whole[len(before) :] if whole.startswith(before) else ""


def _whole(raw: RawTemplate, messages: Sequence[Message], context: str) -> str:
    """The text of the conversation after `context`, which the answer continues if the template does not say so."""
    rendered = raw(messages)
    if rendered.startswith(context):
        return rendered
    answer = str(messages[-1]["content"])
    opening = next(
        (context[k:] for k in range(len(context)) if context[k:].strip() and _begins(answer, context[k:])), ""
    )
    rest = answer.removeprefix(opening) if answer.startswith(opening) else answer.removeprefix(opening.strip()).lstrip()
    last = said(messages[-1])[-1]
    return context + rest + rendered[rendered.rindex(last) + len(last) :]


def _begins(answer: str, opening: str) -> bool:
    return opening.lstrip() == opening and answer.startswith(opening.strip())


def _runs(chat: Chat, example: TokenizedExample) -> list[tuple[int, int]]:
    """The spans of the learned text, in characters of the decoded tokens."""
    spans, position = [], 0
    for is_learned, run in groupby(enumerate(example.tokens), key=lambda pair: example.action[pair[0]]):
        last = max(k for k, _ in run)
        end = len(_decoded(chat, example.tokens[: last + 1]))
        spans += [(position, end)] if is_learned else []
        position = end
    return spans


def _decoded(chat: Chat, tokens: Sequence[int]) -> str:
    return str(chat.tokenizer.decode(list(tokens), skip_special_tokens=False))
