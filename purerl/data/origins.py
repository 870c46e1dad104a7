"""The origin of each token of a row: the chat template, a message by its role, an image, or the model.

A message is found in the rendered text by a private character before and after its text, which the template carries
along. If the template renders anything else differently then, or shows only one of the two, the text of this message
is not found, and its tokens count as those of the template; `find_origins` says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any, NamedTuple

from purerl.data.chat import Chat, Messages, TextOrMessages, add_system_prompt, image_ids, render
from purerl.data.encoding import decode
from purerl.data.messages import is_learned, with_functions
from purerl.data.pieces import decode_tokens
from purerl.data.placeholders import THOUGHTS
from purerl.data.special_tokens import encode, is_marked
from purerl.errors import DataError
from purerl.images import Image

__all__ = ["CONTEXT", "IMAGE", "MODEL", "TEMPLATE", "Origins", "find_origins"]

TEMPLATE, IMAGE, MODEL, CONTEXT = "template", "image", "model", "context"
"""Origins that are no role. The template also stands for the special tokens that a tokenizer adds to plain text, and
the context for all that an environment or a workflow gives the model to read."""

_START, _END = "\ue0f4", "\ue0f5"  # private use: they have no meaning in any text
_MARKS = re.compile(f"[{_START}{_END}]")
_TAGS = re.compile(r"(\s*</?[\w-]+>\s*)")
_CORE = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


class Origins(NamedTuple):
    """The origin of each token, and the messages of the conversation that were not found in its text, as sentences."""

    tokens: list[str]
    problems: tuple[str, ...] = ()


def find_origins(
    chat: Chat,
    prompt: TextOrMessages,
    answer: TextOrMessages,
    tokens: Sequence[int],
    is_model: Sequence[bool],
    images: Sequence[Image] = (),
) -> Origins:
    """The origin of each of `tokens`, those of `prompt` and `answer` in `chat`.

    answer    is empty if the model has sampled after the prompt
    is_model  the tokens that are learned or were sampled: their origin is the model, whatever wrote them

    A token that has characters of two origins has that of its first character that is not space.
    """
    if isinstance(prompt, str):
        first = len(chat.first_tokens) if [*tokens[: len(chat.first_tokens)]] == [*chat.first_tokens] else 0
        found, problems = [TEMPLATE] * first + ["user"] * (len(tokens) - first), ()
    else:
        before = add_system_prompt(chat, prompt)
        own = {
            len(before) + k for k, message in enumerate(answer) if isinstance(message, Mapping) and is_learned(message)
        }
        found, problems = _of_messages(chat, [*before, *answer], tokens, own, is_prompt=not answer)
    is_image = image_ids(chat, tokens, images) or [0] * len(tokens)
    columns = zip(found, is_image, is_model, strict=True)
    return Origins([MODEL if own else IMAGE if image else origin for origin, image, own in columns], problems)


def _of_messages(
    chat: Chat, messages: Messages, tokens: Sequence[int], own: Container[int], *, is_prompt: bool
) -> tuple[list[str], tuple[str, ...]]:
    """The origins of `tokens`, without those of the messages `own`, which are learned."""

    def rendered(changed: Messages) -> str:
        return render(chat, changed, add_generation_prompt=is_prompt)

    text, problems = rendered(messages), list[str]()
    characters = [TEMPLATE] * (len(text) + 1)
    for number, message in enumerate(messages):
        spans = [] if number in own else _spans(rendered, messages, number, text)
        if spans is None:
            what = f"the chat template does not show the text of message {number} ({message['role']}) as it is"
            problems.append(f"{what}: tokens that it makes of it are listed as its own")
        for start, end in spans or ():
            characters[start:end] = [str(message["role"])] * (end - start)
    ids, starts = _encoded(chat, text)
    ends = [*starts[1:], len(text)]
    origins = [characters[_first_visible(text, start, end)] for start, end in zip(starts, ends, strict=True)]
    return _aligned(ids, origins, tokens), tuple(problems)


def _spans(
    rendered: Callable[[Messages], str], messages: Messages, number: int, text: str
) -> list[tuple[int, int]] | None:
    """The spans of the texts of the message `number` in `text`; None if they were not found. There may be none."""
    has_text = False
    for marked in _with_marks(messages[number]):
        has_text = True
        try:
            shown = rendered([*messages[:number], marked, *messages[number + 1 :]])
        except DataError:
            continue
        if _MARKS.sub("", shown) == text and (spans := _positions(shown)):
            return spans
    return None if has_text else []


def _with_marks(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """`message` with marks around its texts: with its calls or without them, and around whole texts or between tags."""
    is_assistant = message["role"] == "assistant"
    for mark in (_mark, _mark_between_tags):
        if is_assistant and (message.get("tool_calls") or any(message.get(name) for name in THOUGHTS)):
            yield _changed(_with_marked_parts(message, mark), mark)
        if message.get("content"):
            yield _changed(message, mark)


def _changed(message: Mapping[str, Any], mark: Callable[[str], str]) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, list | tuple):
        return {**message, "content": [_with_text(part, mark) for part in content]}
    return {**message, "content": mark(content)} if isinstance(content, str) else message


def _with_text(part: Any, mark: Callable[[str], str]) -> Any:
    return {**part, "text": mark(part["text"])} if isinstance(part, Mapping) and part.get("text") else part


def _with_marked_parts(message: Mapping[str, Any], mark: Callable[[str], str]) -> Mapping[str, Any]:
    """`message` with marks around its thoughts and in its calls."""
    changed = {**with_functions(message)}
    changed |= {name: mark(text) for name in THOUGHTS if isinstance(text := message.get(name), str)}
    for key in {"tool_calls"} & changed.keys():
        changed[key] = [_with_marked_call(call, mark) for call in changed[key]]
    return changed


def _with_marked_call(call: Mapping[str, Any], mark: Callable[[str], str]) -> Mapping[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    marked = {**function, "name": mark(str(function.get("name")))}
    if isinstance(arguments, Mapping):
        marked["arguments"] = {key: mark(each) if isinstance(each, str) else each for key, each in arguments.items()}
    return {**call, "function": marked}


def _mark(text: str) -> str:
    """`text` with a mark at each of its ends, inside of its space, which some templates remove."""
    before, core, after = _CORE.fullmatch(text).groups()  # pyright: ignore[reportOptionalMemberAccess] - it always matches
    return f"{before}{_START}{core}{_END}{after}" if core else text


def _mark_between_tags(text: str) -> str:
    return "".join(part if k % 2 else _mark(part) for k, part in enumerate(_TAGS.split(text)))


def _positions(shown: str) -> list[tuple[int, int]] | None:
    """The spans of the marked texts without their marks; None if `shown` does not have the marks in pairs."""
    marks = [*_MARKS.finditer(shown)]
    starts, ends = marks[::2], marks[1::2]
    if any(mark[0] != _START for mark in starts) or any(mark[0] != _END for mark in ends) or len(marks) % 2:
        return None
    numbers = range(len(starts))
    return [(starts[k].start() - 2 * k, ends[k].start() - 2 * k - 1) for k in numbers]


def _first_visible(text: str, start: int, end: int) -> int:
    return next((k for k in range(start, end) if not text[k].isspace()), start)


def _encoded(chat: Chat, text: str) -> tuple[list[int], list[int]]:
    """The tokens of rendered `text`, and the index of the first character of each."""
    if chat.escapes and is_marked(text):
        return encode(chat.tokenizer, text)
    if getattr(chat.tokenizer, "is_fast", False):
        encoded = chat.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded["input_ids"], [min(start, len(text)) for start, _ in encoded["offset_mapping"]]
    ids = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = decode_tokens(lambda part: decode(chat, part, skip_special_tokens=False), ids)
    return ids, [min(start, len(text)) for start in accumulate(map(len, texts[:-1]), initial=0)][: len(ids)]


def _aligned(ids: Sequence[int], origins: Sequence[str], tokens: Sequence[int]) -> list[str]:
    """The origins of `tokens`, given those of `ids`. Other tokens have the origin of the one before them."""
    if [*ids] == [*tokens]:
        return [*origins]
    found: list[str | None] = [None] * len(tokens)
    for block in SequenceMatcher(None, ids, tokens, autojunk=False).get_matching_blocks():
        found[block.b : block.b + block.size] = origins[block.a : block.a + block.size]
    before = TEMPLATE
    return [before := origin or before for origin in found]
