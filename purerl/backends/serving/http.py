"""JSON over HTTP with deadlines, and two kinds of errors: the server does not work, or it refuses the request."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import ClientSession

__all__ = ["Http", "RefusedError", "UnreachableError"]

_MAX_TEXT = 2000


class UnreachableError(Exception):
    """The server does not answer, has closed the connection, or has failed (a status from 500 on)."""


class RefusedError(Exception):
    """The server says that the request is wrong (a status from 400 to 499)."""


class Http:
    """Requests to the server at `url`. Calls of `generate` share `connections`; every other call has one of its own.

    It is used in one event loop, in which it is also closed.
    """

    def __init__(self, url: str, *, connections: int) -> None:
        self.url, self._connections = url.rstrip("/"), connections
        self._sessions: dict[bool, ClientSession] = {}

    async def generate(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request that waits for a connection, and takes as long as it takes."""
        return await self._send("POST", path, body, timeout=None)

    async def post(self, path: str, body: dict[str, Any] | None = None, *, timeout: float) -> Any:
        """The answer to a call that must end within `timeout` seconds."""
        return await self._send("POST", path, body, timeout=timeout)

    async def get(self, path: str, *, timeout: float) -> Any:
        return await self._send("GET", path, None, timeout=timeout)

    async def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    def _session(self, *, is_limited: bool) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        if is_limited not in self._sessions:
            connector = TCPConnector(limit=self._connections if is_limited else 0, force_close=not is_limited)
            self._sessions[is_limited] = ClientSession(connector=connector, timeout=ClientTimeout(total=None))
        return self._sessions[is_limited]

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, *, timeout: float | None) -> Any:
        from aiohttp import ClientError

        call = f"{method} {self.url}{path}"
        try:
            async with asyncio.timeout(timeout):
                session = self._session(is_limited=timeout is None)
                async with session.request(method, self.url + path, json=body) as response:
                    if response.status < 400:
                        answer = await response.text()
                        return json.loads(answer) if response.content_type == "application/json" else answer
                    text = f"{call}: {response.status} {(await response.text())[:_MAX_TEXT]}"
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # aiohttp cancels what waits for a connection when the session is closed: its server is started again
            raise UnreachableError(f"{call}: the connections were closed") from error
        except TimeoutError as error:
            raise UnreachableError(f"{call}: no answer within {timeout:g} seconds") from error
        except (ClientError, OSError, ValueError) as error:
            raise UnreachableError(f"{call}: {type(error).__name__} {error}") from error
        raise (UnreachableError if response.status >= 500 else RefusedError)(text)
