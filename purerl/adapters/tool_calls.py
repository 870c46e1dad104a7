"""Answers to the tool calls of a turn: chat messages with what Python functions return.

Nothing that a call does raises: a model can correct itself if it reads what was wrong.

Methods of environments that call functions of others are plain functions, so that they may block: purerl calls them
outside its event loop. What an async function returned is awaited afterwards, in the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from purerl.envs.protocol import Message, ToolCall
from purerl.errors import nearest

__all__ = ["answer_calls", "content_of", "when_done"]

Functions = Mapping[str, Callable[..., Any]]
T = TypeVar("T")


def when_done(values: Sequence[Any], function: Callable[[Sequence[Any]], T]) -> T | Awaitable[T]:
    """The result of `function` for `values`, in which awaitables are replaced by their results.

    If there are awaitables, this is a coroutine. They are awaited concurrently.
    """
    if not any(map(inspect.isawaitable, values)):
        return function(values)

    async def wait() -> T:
        return function(await asyncio.gather(*map(_awaited, values)))

    return wait()


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def answer_calls(
    calls: Sequence[ToolCall], functions: Functions, then: Callable[[Sequence[Message]], T]
) -> T | Awaitable[T]:
    """Call the function of each of `calls`, in their order; return what `then` makes of the messages that answer them.

    There is a message with role "tool" for each call. Its content is the result as text. If the call cannot be read,
    there is no such function, or the function raises an exception, it is ``{'error': 'the reason'}``.
    """
    contents = [_content(call, functions) for call in calls]
    return when_done(contents, lambda done: then([_message(*pair) for pair in zip(calls, done, strict=True)]))


def _content(call: ToolCall, functions: Functions) -> str | Awaitable[str]:
    if call.error is not None:
        return _error(call.error)
    if call.name not in functions:
        return _error(f"there is no tool {call.name!r}; {nearest(call.name, functions)}")
    try:
        result = functions[call.name](**call.arguments)
        return _content_later(result) if inspect.isawaitable(result) else content_of(result)
    except Exception as error:  # noqa: BLE001 -- whatever a tool raises is its answer
        return _error(error)


async def _content_later(result: Awaitable[Any]) -> str:
    try:
        return content_of(await result)
    except Exception as error:  # noqa: BLE001 -- likewise
        return _error(error)


def _error(reason: object) -> str:
    return str({"error": str(reason) or type(reason).__name__})


def content_of(result: Any) -> str:
    """The result of a tool as text; of a list of content parts it is their text.

    Raises: ValueError for a content part that is not text.

    >>> content_of(3), content_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), content_of([1])
    ('3', 'ab', '[1]')
    """
    if not isinstance(result, list) or not result or not all(isinstance(p, Mapping) and "type" in p for p in result):
        return str(result)
    other = sorted({str(part["type"]) for part in result if part["type"] != "text"})
    if other:
        raise ValueError(f"content of type {', '.join(other)}; only text is supported")
    return "".join(part["text"] for part in result)


def _message(call: ToolCall, content: str) -> Message:
    return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}
