"""Loading what the settings name: a factory of environments, Python functions as tools, and MCP servers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MethodType
from typing import Any

from purerl.envs.calls import MakeCall
from purerl.envs.episode import Source
from purerl.envs.settings import EnvironmentSettings, name_of_source
from purerl.envs.tools import ToolEnvironment, methods_of, python_tool
from purerl.plugins import locate

__all__ = ["load_source", "tool_functions"]


def load_source(settings: EnvironmentSettings, make: MakeCall) -> Source:
    """Import what `settings` name, in the process in which it will run. `make` makes what calls it.

    Raises: ConfigError if it cannot be imported.
    """
    if settings.factory is not None:
        build = partial(locate(settings.factory), **settings.kwargs)
        return Source(settings.factory, build, make(settings.timeout))
    return _tool_source(settings, make)


def tool_functions(name: str) -> list[Callable[..., Any]]:
    """The function with this name; of a class, its public methods, without their first parameter. None can be called.

    Raises: ConfigError if there is no such function.
    """
    located = locate(name)
    if not inspect.isclass(located):
        return [located]
    nobody = object()
    return [MethodType(one, nobody) if inspect.isfunction(one) else one for one in methods_of(located)]


def _tool_source(settings: EnvironmentSettings, make: MakeCall) -> Source:
    """Tools have deadlines of their own, so a turn with several calls has none."""
    from purerl.envs.mcp_tools import McpServers, Shared, release

    call = make(settings.timeout)
    located = [locate(name) for name in settings.tools]
    servers = McpServers(settings.mcp, timeout=settings.timeout)

    async def build() -> ToolEnvironment:
        created: list[Any] = []
        shared: Sequence[Shared] = ()

        async def end() -> None:
            try:
                for one in created:
                    if isinstance(one, AbstractContextManager):
                        await call(0, one.__exit__, None, None, None)
            finally:
                await release(shared)

        try:
            for one in located:
                new = await call(0, one) if inspect.isclass(one) else one
                created.append(new)
            functions = [each for one in created for each in ([one] if inspect.isroutine(one) else methods_of(one))]
            tools = [python_tool(function, call) for function in functions]
            shared = await servers.open()
            return ToolEnvironment([*tools, *(tool for one in shared for tool in one.tools)], end)
        except BaseException:
            await end()
            raise

    return Source(name_of_source(settings), build, make(math.inf), servers.close)
