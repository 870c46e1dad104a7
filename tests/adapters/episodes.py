"""Helpers for tests of environments."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from purerl.envs.protocol import ToolCall


def finish(value: Any) -> Any:
    """`value`, awaited if it is an awaitable."""

    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, id=f"id of {name}")


def contents(observation: Any) -> list[str]:
    return [message["content"] for message in observation.messages]
