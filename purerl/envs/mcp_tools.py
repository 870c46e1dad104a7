"""Tools of MCP servers, by the package mcp.

A server that is a command line is started once in each worker process; all episodes in the process share it, so a
server must not keep a state for one client. A server that ends, or does not answer in time, fails the episodes that
call it; the next episode gets a new one. What it writes to stderr is not shown: if it fails, the message has the end.

``${NAME}`` in a URL is the environment variable NAME. Messages have the name, and never its value.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import IO, Any
from urllib.parse import quote

from purerl.envs.failures import EnvironmentFailure, died, timed_out
from purerl.envs.tools import Tool, to_text
from purerl.system.event_loop import SERVICE

__all__ = ["McpServers", "Shared", "release", "variables_of"]

_CLOSE_SECONDS = 10.0
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def variables_of(server: str) -> list[str]:
    """The names of the environment variables in `server`, if it is a URL."""
    return _VARIABLE.findall(server) if server.startswith(("http://", "https://")) else []


class McpServers:
    """Connections with `servers`, which are URLs or command lines. `timeout` is that of connecting and of one call."""

    def __init__(self, servers: Sequence[str], *, timeout: float):
        self._servers, self._timeout = servers, timeout
        self._current: dict[str, Shared] = {}

    async def open(self) -> list[Shared]:
        """A connection with each server, for one episode; `release` them. Raises: EnvironmentFailure."""
        opened: list[Shared] = []
        try:
            for server in self._servers:
                current = self._current.get(server)
                if current is None or current.is_broken:
                    current = self._current[server] = Shared(server, self._timeout)
                opened.append(current)
                await current.acquire()
        except BaseException:
            await release(opened)
            raise
        return opened

    async def close(self) -> None:
        for current in self._current.values():
            await current.end()


async def release(opened: Sequence[Shared]) -> None:
    """Say that an episode does not use these connections anymore."""
    for shared in opened:
        await shared.release()


class Shared:
    """A connection that several episodes use.

    tools      of the server, after `acquire`
    is_broken  a call failed because of the server; no other episode should use it
    """

    def __init__(self, server: str, timeout: float):
        self._server, self._timeout = server, timeout
        self._users, self.is_broken = 0, False
        self._stop, self._ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        self.tools: Sequence[Tool] = ()
        self._messages = _Messages()
        self._owner = asyncio.create_task(self._own(), name=SERVICE)

    async def acquire(self) -> None:
        self._users += 1
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            self.is_broken = True
            raise timed_out(self._server, self._timeout, "connecting\n") from error
        except EnvironmentFailure:
            self.is_broken = True
            raise

    async def release(self) -> None:
        self._users -= 1
        if self.is_broken and self._users == 0:
            await self.end()

    async def end(self) -> None:
        """Disconnect, and end a server that was started."""
        self._stop.set()
        await asyncio.wait({self._owner}, timeout=_CLOSE_SECONDS)
        self._owner.cancel()

    async def _own(self) -> None:
        """Connect, and disconnect when it is time: the package requires that one task does both."""
        mcp: Any = import_module("mcp")
        try:
            target: Any = self._server
            for library in ("httpx", "httpx2") if variables_of(target) else ():
                logging.getLogger(library).setLevel(logging.WARNING)  # below it, each request is logged with its URL
            if target.startswith(("http://", "https://")):
                target = _VARIABLE.sub(lambda match: quote(os.environ[match[1]], safe=""), target)
            else:
                command, *arguments = shlex.split(self._server)
                target = mcp.StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
                stdio = import_module("mcp.client.stdio")
                target = stdio.stdio_client(target, errlog=await self._messages.open())
            async with mcp.Client(target) as client:
                self.tools = [self._tool(client, tool) for tool in await _list_tools(client)]
                self._ready.set_result(None)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 -- the package raises groups of whatever went wrong
            self.is_broken = True
            if not self._ready.done():
                reasons = ["the MCP server cannot be used", *self._reasons(error), *self._messages.last()]
                self._ready.set_exception(died(self._server, reasons))
                self._ready.exception()  # it may be that nobody waits
        finally:
            self._messages.close()

    def _reasons(self, error: BaseException) -> list[str]:
        """The exceptions in `error`, which may be a group, without values of variables."""
        if isinstance(error, BaseExceptionGroup):
            return [reason for inner in error.exceptions for reason in self._reasons(inner)]
        text = f"{type(error).__name__}: {error}"
        for name in variables_of(self._server):
            for value in filter(None, (os.environ.get(name, ""), quote(os.environ.get(name, ""), safe=""))):
                text = text.replace(value, f"${{{name}}}")
        return [text]

    def _tool(self, client: Any, tool: Any) -> Tool:
        description = tool.description or tool.title or tool.name
        function = {"name": tool.name, "description": description, "parameters": tool.input_schema}

        async def run(seed: int, arguments: Mapping[str, Any]) -> str:
            return await self._call(client, tool.name, arguments)

        return Tool({"type": "function", "function": function}, run)

    async def _call(self, client: Any, name: str, arguments: Mapping[str, Any]) -> str:
        """Errors of the tool and of its arguments are answers. Everything else is a failure of the server."""
        try:
            async with asyncio.timeout(self._timeout):
                result = await client.call_tool(name, dict(arguments))
        except TimeoutError as error:
            self.is_broken = True
            raise timed_out(f"tool {name} of {self._server}", self._timeout) from error
        except Exception as error:
            if getattr(error, "code", None) in _ANSWERS:  # an MCPError
                raise
            self.is_broken = True
            reasons = ["the MCP server failed", *self._reasons(error), *self._messages.last()]
            raise died(f"tool {name} of {self._server}", reasons) from error
        text = "\n".join(map(_text_of, result.content)) or to_text(result.structured_content)
        return f"Error: {text}" if result.is_error else text


class _Messages:
    """The end of what a server writes to stderr, which is not shown: libraries print each exception of a tool there."""

    def __init__(self) -> None:
        self._text, self._file, self._transport = b"", None, None

    async def open(self) -> IO[bytes]:
        """The file to which the server writes."""
        read, write = os.pipe()
        self._file = os.fdopen(write, "wb")
        loop, kept = asyncio.get_running_loop(), self

        class Reader(asyncio.Protocol):
            """Keeps the last bytes."""

            def data_received(self, data: bytes) -> None:
                kept._text = (kept._text + data)[-_MAX_BYTES:]

        self._transport, _ = await loop.connect_read_pipe(Reader, os.fdopen(read, "rb"))
        return self._file

    def last(self) -> list[str]:
        """The last lines, as one sentence."""
        lines = [line.strip() for line in self._text.decode(errors="replace").splitlines() if line.strip()]
        return [f"it wrote: {' / '.join(lines[-_MAX_LINES:])[-_MAX_CHARACTERS:]}"] if lines else []

    def close(self) -> None:
        for each in (self._file, self._transport):
            if each is not None:
                each.close()


_MAX_BYTES, _MAX_LINES, _MAX_CHARACTERS = 2**14, 5, 600
_ANSWERS = (-32602, -32603, -32601)  # JSON-RPC: invalid parameters, internal error of the tool, unknown tool
_MAX_PAGES = 100


async def _list_tools(client: Any) -> list[Any]:
    tools, cursor = [], None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise ValueError(f"more than {_MAX_PAGES} pages of tools")


def _text_of(content: Any) -> str:
    """The text of a part of an answer; other parts, such as images, as what they are."""
    text = getattr(content, "text", None)
    return text if isinstance(text, str) else f"[{content.type}]"
