"""JSON over HTTP with deadlines, and two kinds of errors: the server does not work, or it refuses the request.

Requests carry the token of the server, and the key of what is in front of it. They follow no redirect and use no proxy
of the environment, so nobody else gets them.

purerl has two HTTP clients: aiohttp here, and httpx in `purerl.system.bounded_http`, for endpoints of rewards, remote
environments and remote sandboxes. A server of an engine has a request in flight for each completion, so hundreds to
thousands of them share the event loop with all workflows. The time that httpx takes for a request grows with their
number: 256 at once took 1.5 seconds of a core, and 0.1 with aiohttp. The other requests are few at a time. For them
httpx needs no extra, because huggingface-hub depends on it. aiohttp comes with the extra ``serving``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from purerl.backends.transfer.engine.purerl_lease import HEADER, LOCKED
from purerl.backends.transfer.engine.purerl_server import OWN_TOKEN
from purerl.errors import EngineError
from purerl.system.nesting import read_json

if TYPE_CHECKING:
    from aiohttp import ClientSession

__all__ = ["Http", "LockedError", "RefusedError", "UnknownTokenError", "UnreachableError"]

_MAX_TEXT = 2000


class UnreachableError(Exception):
    """The server does not answer, has closed the connection, or has failed (a status from 500 on).

    `is_repeatable`: it says that it has failed on this request (the status 500), so it may fail on it each time.
    """

    is_repeatable = False


class RefusedError(Exception):
    """The server says that the request is wrong (a status from 300 to 499)."""


class UnknownTokenError(RefusedError):
    """The server refuses the token, or the lack of one (the status 401 or 403)."""


class LockedError(EngineError):
    """The server has refused a call, because the run has no lease: `holder` has it, or nobody if that is empty."""

    def __init__(self, url: str, holder: Mapping[str, Any]) -> None:
        self.holder = holder
        name = (
            f"{holder['name']!r} has it now" if holder else "it was started again, or others have changed its weights"
        )
        need = "the lease of this run, which ends after a minute without a request"
        do = "resume the run from its last checkpoint when nothing else uses the server"
        super().__init__(f"the server at {url} was taken from this run", got=name, need=need, do=do)


class Http:
    """Requests to the server at `url`. Calls of `generate` share `connections`; every other call has one of its own.

    It is used in one event loop, in which it is also closed.

    token  which requests carry, if there is one
    key    of a proxy, or of the engine itself: it takes the place of the token, which then has a header of its own
    lease  the identity of the lease of the run, which later requests carry
    """

    def __init__(self, url: str, *, token: str | None, connections: int, key: str | None = None) -> None:
        self.url, self.token, self.key, self._connections = url.rstrip("/"), token, key, connections
        self.lease: str | None = None
        self._sessions: dict[bool, ClientSession] = {}

    async def generate(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request that waits for a connection, and takes as long as it takes."""
        return await self._send("POST", path, body, timeout=None)

    async def post(self, path: str, body: dict[str, Any] | None = None, *, timeout: float) -> Any:
        """The answer to a call that must end within `timeout` seconds."""
        return await self._send("POST", path, body, timeout=timeout)

    async def get(self, path: str, *, timeout: float) -> Any:
        return await self._send("GET", path, None, timeout=timeout)

    async def delete(self, path: str, *, timeout: float) -> Any:
        return await self._send("DELETE", path, None, timeout=timeout)

    async def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    def _session(self, *, is_limited: bool) -> ClientSession:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        if is_limited not in self._sessions:
            connector = TCPConnector(limit=self._connections if is_limited else 0, force_close=not is_limited)
            timeout = ClientTimeout(total=None)
            self._sessions[is_limited] = ClientSession(connector=connector, timeout=timeout)
        return self._sessions[is_limited]

    def _headers(self) -> dict[str, str]:
        bearer = self.token if self.key is None else self.key
        headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        headers |= {} if self.key is None or self.token is None else {OWN_TOKEN: self.token}
        return headers | ({} if self.lease is None else {HEADER: self.lease})

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, *, timeout: float | None) -> Any:
        from aiohttp import ClientError

        call = f"{method} {self.url}{path}"
        try:
            async with asyncio.timeout(timeout):
                session = self._session(is_limited=timeout is None)
                options: dict[str, Any] = {"json": body, "headers": self._headers(), "allow_redirects": False}
                async with session.request(method, self.url + path, **options) as response:
                    answer = await response.text()
                    if response.status < 300:
                        return read_json(answer) if response.content_type == "application/json" else answer
                    if response.status == LOCKED:
                        raise LockedError(self.url, _holder_in(answer))
                    text = self._without_secrets(f"{call}: {response.status} {answer}")[:_MAX_TEXT]
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # aiohttp cancels what waits for a connection when the session is closed: its server is started again
            raise UnreachableError(f"{call}: the connections were closed") from error
        except TimeoutError as error:
            raise UnreachableError(f"{call}: no answer within {timeout:g} seconds") from error
        except (ClientError, OSError, ValueError) as error:
            raise UnreachableError(self._without_secrets(f"{call}: {type(error).__name__} {error}")) from error
        raise _error_of(response.status, text)

    def _without_secrets(self, text: str) -> str:
        """`text` of a server, which may show what it has got."""
        for secret in filter(None, (self.token, self.key)):
            text = text.replace(secret, "***")
        return text


def _holder_in(answer: str) -> Mapping[str, Any]:
    try:
        holder = read_json(answer)
        return {"name": str(holder["name"]), **{name: float(holder[name]) for name in ("idle", "expires_in")}}
    except (KeyError, TypeError, ValueError):
        return {}


def _error_of(status: int, text: str) -> RefusedError | UnreachableError:
    if status >= 500:
        error = UnreachableError(text)
        error.is_repeatable = status == 500
        return error
    return UnknownTokenError(text) if status in (401, 403) else RefusedError(text)
