"""An environment whose only feature is tools: Python functions, and the tools of MCP servers.

A turn with calls is answered with a message of the role "tool" for each call. The first turn without a call ends the
episode, which the environment does not score. What a tool raises is an answer to the model, because the model may have
caused it. A tool that does not end in time, whose process dies, or whose sandbox fails, is a failure: the sample is
missing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from purerl.envs.calls import Call
from purerl.envs.failures import CallTimeoutError, EnvironmentFailure, raised
from purerl.envs.protocol import Message, Observation, ToolCall
from purerl.envs.schema import convert_arguments, tool_schema
from purerl.errors import SandboxError
from purerl.seeds import derive_seed

__all__ = ["Tool", "ToolEnvironment", "methods_of", "python_tool", "to_text"]


@frozen
class Tool:
    """A tool.

    schema  as the chat template gets it: {"type": "function", "function": {"name", "description", "parameters"}}
    run     (seed, arguments) -> the answer as text. An exception is an answer too, except EnvironmentFailure
    """

    schema: Mapping[str, Any]
    run: Callable[[int, Mapping[str, Any]], Awaitable[str]]

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]


def python_tool(function: Callable[..., Any], call: Call) -> Tool:
    """The tool that calls `function`, which has type hints for its parameters.

    Raises: ConfigError if its schema cannot be made.
    """
    schema = tool_schema(function)
    name = schema["function"]["name"]

    async def run(seed: int, arguments: Mapping[str, Any]) -> str:
        converted = convert_arguments(function, arguments)
        if converted.error is not None:
            return f"Error: {converted.error}"
        try:
            return to_text(await call(seed, partial(function, **converted.values)))
        except (CallTimeoutError, SandboxError) as error:  # the model has caused neither
            raise raised(f"tool {name}", error) from error

    return Tool(schema, run)


def methods_of(tools: Any) -> list[Callable[..., Any]]:
    """The public methods of the object or class `tools`, in the order in which they are defined."""
    cls = tools if isinstance(tools, type) else type(tools)
    names = dict.fromkeys(name for base in reversed(cls.__mro__[:-1]) for name in vars(base))
    return [getattr(tools, name) for name in names if not name.startswith("_") and callable(getattr(tools, name))]


def to_text(value: Any) -> str:
    """The text that the model reads: a string as it is, everything else as JSON.

    >>> to_text("4"), to_text({"sum": 4}), to_text(None)
    ('4', '{"sum": 4}', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


class ToolEnvironment:
    """One episode with `tools`; see `purerl.envs.protocol.Environment`. `release` is called when it ends.

    Raises: ValueError if two tools have the same name.
    """

    def __init__(self, tools: Sequence[Tool], release: Callable[[], Awaitable[None]]):
        self._tools, self._release = {tool.name: tool for tool in tools}, release
        if len(self._tools) < len(tools):
            raise ValueError(f"tools with the same name: {', '.join(sorted(tool.name for tool in tools))}")
        self._seed, self._num_calls = 0, 0
        self.tools = tuple(tool.schema for tool in tools)

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self._seed, self._num_calls = seed, 0
        return Observation()

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        if not calls:
            return Observation(done=True)
        return Observation(messages=[await self._answer(call) for call in calls])

    async def close(self) -> None:
        await self._release()

    async def _answer(self, call: ToolCall) -> Message:
        self._num_calls += 1
        return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": await self._result(call)}

    async def _result(self, call: ToolCall) -> str:
        if call.error is not None:
            return f"Error: {call.error}"
        if call.name not in self._tools:
            return f"Error: there is no tool {call.name!r}; there are {', '.join(self._tools)}"
        try:
            return await self._tools[call.name].run(derive_seed(self._seed, "tool", self._num_calls), call.arguments)
        except EnvironmentFailure:
            raise
        except Exception as error:  # noqa: BLE001 -- the model may have caused it, and can correct itself
            return f"Error: {type(error).__name__}: {error}".removesuffix(": ")
