"""JSON over HTTP with deadlines, and two kinds of errors: the server does not work, or it refuses the request.

Requests carry the token of the server. They follow no redirect and use no proxy, so nobody else gets the token.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import ClientSession

__all__ = ["Http", "RefusedError", "UnknownTokenError", "UnreachableError"]

_MAX_TEXT = 2000


class UnreachableError(Exception):
    """The server does not answer, has closed the connection, or has failed (a status from 500 on)."""


class RefusedError(Exception):
    """The server says that the request is wrong (a status from 300 to 499)."""


class UnknownTokenError(RefusedError):
    """The server refuses the token, or the lack of one (the status 401 or 403)."""


class Http:
    """Requests to the server at `url`. Calls of `generate` share `connections`; every other call has one of its own.

    It is used in one event loop, in which it is also closed. Requests carry `token`, if there is one.
    """

    def __init__(self, url: str, *, token: str | None, connections: int) -> None:
        self.url, self.token, self._connections = url.rstrip("/"), token, connections
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
            headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
            timeout = ClientTimeout(total=None)
            self._sessions[is_limited] = ClientSession(connector=connector, timeout=timeout, headers=headers)
        return self._sessions[is_limited]

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, *, timeout: float | None) -> Any:
        from aiohttp import ClientError

        call = f"{method} {self.url}{path}"
        try:
            async with asyncio.timeout(timeout):
                session = self._session(is_limited=timeout is None)
                url = self.url + path
                async with session.request(method, url, json=body, allow_redirects=False) as response:
                    answer = await response.text()
                    if response.status < 300:
                        return json.loads(answer) if response.content_type == "application/json" else answer
                    text = self._without_token(f"{call}: {response.status} {answer}")[:_MAX_TEXT]
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # aiohttp cancels what waits for a connection when the session is closed: its server is started again
            raise UnreachableError(f"{call}: the connections were closed") from error
        except TimeoutError as error:
            raise UnreachableError(f"{call}: no answer within {timeout:g} seconds") from error
        except (ClientError, OSError, ValueError) as error:
            raise UnreachableError(self._without_token(f"{call}: {type(error).__name__} {error}")) from error
        raise _error_of(response.status)(text)

    def _without_token(self, text: str) -> str:
        """`text` of a server, which may show what it has got."""
        return text if self.token is None else text.replace(self.token, "***")


def _error_of(status: int) -> type[RefusedError | UnreachableError]:
    if status >= 500:
        return UnreachableError
    return UnknownTokenError if status in (401, 403) else RefusedError
