"""OpenAI-style tools: their JSON descriptions, and Python functions that implement them, as an environment.

For example::

    # my_tools.py
    TOOLS = [{"type": "function", "function": {"name": "add", "description": ..., "parameters": {...}}}]

    def add(a: int, b: int) -> int:
        return a + b

`OpenAITools("my_tools:TOOLS")` answers the calls of these tools. The first turn without a call ends the episode. The
environment gives no reward: reward functions score the episode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from purerl.adapters.tool_calls import answer_calls
from purerl.envs.protocol import Observation, ToolCall
from purerl.errors import ConfigError
from purerl.plugins import locate

__all__ = ["OpenAITools"]

Functions = Mapping[str, Callable[..., Any]]


class OpenAITools:
    """An environment whose tools are described as for OpenAI's API.

    tools      the descriptions, or their address, ``module:NAME`` or ``file.py:NAME``
    functions  the function of each tool by its name; or the address of a mapping, ``module:NAME``; or the address of a
               module that has a function for each tool. If not given, it is the module of `tools`

    Arguments are passed by name, as the model has written them. A function may be async.

    Raises: ConfigError for a description that cannot be read, two tools with the same name, and a tool without a
    function.
    """

    def __init__(self, tools: str | Sequence[Mapping[str, Any]], functions: str | Functions | None = None):
        source = _default_source(tools) if functions is None else functions
        described = locate(tools) if isinstance(tools, str) else tools
        if not isinstance(described, Sequence) or isinstance(described, str) or not described:
            raise ConfigError("OpenAI-style tools", got=repr(described)[:200], need="a list of at least one tool")
        self.tools = [as_tool(tool) for tool in described]
        self._functions = _functions_of([tool["function"]["name"] for tool in self.tools], source)

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return Observation()

    def step(self, text: str, calls: Sequence[ToolCall]) -> Observation | Awaitable[Observation]:
        return answer_calls(calls, self._functions, lambda answers: Observation(messages=answers, done=not answers))

    def close(self) -> None:
        return None


def as_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a tool in the format of Chat Completions. That of the Responses API is converted.

    Raises: ConfigError if it has another type than "function", no name, or parameters that are not an object.

    >>> as_tool({"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}})["function"]
    {'name': 'now', 'parameters': {'type': 'object', 'properties': {}}}
    """
    what, got = "OpenAI-style tool", repr(tool)[:200]
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise ConfigError(what, got=got, need='{"type": "function", "function": {"name": ..., "parameters": {...}}}')
    function = tool.get("function", {key: value for key, value in tool.items() if key != "type"})
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConfigError(what, got=got, need="a name")
    parameters = function.get("parameters", {"type": "object", "properties": {}})
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise ConfigError(f"parameters of tool {function['name']!r}", got=repr(parameters)[:200], need="type object")
    return {"type": "function", "function": {**function, "parameters": dict(parameters)}}


def _default_source(tools: str | Sequence[Mapping[str, Any]]) -> str:
    if not isinstance(tools, str):
        raise ConfigError("functions", got="none", need="the function of each tool, by its name")
    return tools.partition(":")[0]


def _functions_of(names: Sequence[str], source: str | Functions) -> Functions:
    """The function for each of `names`, from a mapping, its address, or the address of a module."""
    found = locate(source) if isinstance(source, str) else source
    known = found if isinstance(found, Mapping) else vars(found)
    missing = [name for name in names if not callable(known.get(name))]
    if missing:
        need = f"a function for each tool, also for {', '.join(missing)}"
        raise ConfigError("functions of OpenAI-style tools", got=_shown(source, known), need=need)
    if len({*names}) < len(names):
        raise ConfigError("OpenAI-style tools", got=", ".join(names), need="a different name for each")
    return {name: known[name] for name in names}


def _shown(source: str | Functions, known: Mapping[str, Any]) -> str:
    return source if isinstance(source, str) else ", ".join(known) or "none"
