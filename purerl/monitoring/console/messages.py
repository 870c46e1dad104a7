"""Read the conversation of an episode, the JSON in the text ``messages`` of a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from purerl.errors import DataError
from purerl.images import is_hex_id
from purerl.system.nesting import read_json

__all__ = ["Call", "Message", "parse_messages"]


class Call(NamedTuple):
    """A call of a tool.

    name       of the tool
    arguments  as JSON, or as the model has written them
    error      why the call cannot be read; None if it can
    """

    name: str
    arguments: str
    error: str | None = None


class Message(NamedTuple):
    """A message of a conversation.

    role     such as "system", "user", "assistant" or "tool"
    content  its text
    calls    the calls of tools in it
    reward   of a turn of the model; None: it has none
    name     of the tool that answers, or of the author
    player   who has taken the turn, in games of several players
    images   content ids of the images in it, each of which is named in the content
    """

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    reward: float | None = None
    name: str | None = None
    player: int | None = None
    images: tuple[str, ...] = ()


def parse_messages(text: str) -> list[Message]:
    r"""The messages of a conversation.

    A tool call may be in OpenAI's format, with the name and the arguments under ``function``. Parts of a content that
    are not text are named in brackets, an image with its content id.

    Raises: DataError if `text` is not a JSON list of messages.

    >>> parse_messages('[{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2", "reward": 1.0}]')[1]
    Message(role='assistant', content='2', calls=(), reward=1.0, name=None, player=None, images=())
    """
    try:
        messages = read_json(text)
    except ValueError as error:
        raise _invalid(f"no JSON: {error}") from error
    if not isinstance(messages, list):
        raise _invalid(f"a JSON value of type {type(messages).__name__}")
    return [_message(message, index) for index, message in enumerate(messages)]


def _invalid(got: str) -> DataError:
    return DataError("the text 'messages' of a row", got=got, need="a JSON list of messages with a role and a content")


def _message(message: Any, index: int) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise _invalid(f"message {index} is {message!r:.60}")
    name, player, reward = (message.get(key) for key in ("name", "player", "reward"))
    calls = message.get("tool_calls")
    return Message(
        message["role"],
        _content(message.get("content")),
        tuple(map(_call, calls)) if isinstance(calls, list) else (),
        float(reward) if isinstance(reward, int | float) else None,
        None if name is None else str(name),
        player if isinstance(player, int) else None,
        tuple(_images(message.get("content"))),
    )


def _content(content: Any) -> str:
    """The text of a content: a string, None, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [content]
    return "".join(_part(part) for part in parts if part is not None)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    is_part = isinstance(part, Mapping)
    text = part.get("text") if is_part else None
    kind = part.get("type", "part") if is_part else type(part).__name__
    return text if isinstance(text, str) else f"[{' '.join([kind, *_images([part])])}]"


def _images(content: Any) -> Iterator[str]:
    """The content ids of the images in a content."""
    for part in content if isinstance(content, list) else ():
        image = part.get("image") if isinstance(part, Mapping) else None
        if isinstance(image, str) and is_hex_id(image):
            yield image


def _call(call: Any) -> Call:
    inner = call.get("function", call) if isinstance(call, Mapping) else {}
    inner = inner if isinstance(inner, Mapping) else {}
    arguments = inner.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    error = inner.get("error")
    return Call(str(inner.get("name", "")), text, None if error is None else str(error))
