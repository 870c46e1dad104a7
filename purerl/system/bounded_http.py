"""Requests to servers that may be broken or hostile: time, size and nesting of an answer are limited.

Judges, classifiers, remote environments and remote sandboxes are asked by this client.

- An answer has at most `MAX_BYTES`, before and after decompression. More is not read, and not decompressed.
- JSON has at most `purerl.system.nesting.MAX_NESTING` lists and objects inside of each other.
- A deadline is that of the whole answer, however slowly it arrives, and of all attempts together.
- Redirects are not followed, and a server of this host is asked without a proxy, so nobody else gets what is sent.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import frozen

from purerl.system.access_tokens import is_loopback
from purerl.system.nesting import NestingError, read_json

if TYPE_CHECKING:
    import httpx

__all__ = [
    "MAX_BYTES",
    "Answer",
    "AnswerError",
    "BoundedClient",
    "OverdueError",
    "TooLargeError",
    "UnreachableError",
]

MAX_BYTES = 2**24

_ENCODING = "gzip"  # the only one that is asked for
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class UnreachableError(Exception):
    """The server cannot be reached, breaks the connection, or does not answer in time. `attempts` has the errors."""

    def __init__(self, message: str, attempts: Collection[str] = ()):
        super().__init__(message)
        self.attempts = tuple(attempts)


class OverdueError(UnreachableError):
    """There is no answer within the deadline of all attempts."""


class AnswerError(Exception):
    """The answer is beyond the limits, or it is no JSON."""


class TooLargeError(AnswerError):
    """The answer has more than `MAX_BYTES`; `start` has the first ones."""

    def __init__(self, start: bytes):
        super().__init__(f"an answer of more than {MAX_BYTES:,} bytes")
        self.start = start


@frozen
class Answer:
    """An answer with any status. `headers` have names in lower case; `body` is not compressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text, with a replacement character for what is not UTF-8."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON. Raises: AnswerError if it is none, or if it is nested too deeply."""
        try:
            return read_json(self.text)
        except NestingError as error:
            raise AnswerError(f"an answer of {error}") from error
        except ValueError as error:
            kind = self.headers.get("content-type", "no type")
            raise AnswerError(f"an answer that is no JSON ({kind})") from error


class BoundedClient:
    """Sends requests to the server at `url`, over at most `connections`. It is used and closed in one event loop."""

    def __init__(self, url: str, *, connections: int) -> None:
        self.url, self._connections = url.rstrip("/"), connections
        self._client: httpx.AsyncClient | None = None

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        timeout: float | None = None,
    ) -> Answer:
        """The answer to one request, with `body` as JSON unless it is None.

        Raises: UnreachableError if there is no whole answer within `timeout` seconds; AnswerError if it is too large,
        or compressed in another way than was asked for.
        """
        import httpx

        options = {} if body is None else {"json": body}
        try:
            async with asyncio.timeout(timeout):
                async with self._open().stream(method, self.url + path, headers=headers, **options) as response:
                    content = await _read(response)
                    return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, content)
        except TimeoutError as error:
            raise UnreachableError(f"no answer within {timeout or 0.0:g} s") from error
        except httpx.HTTPError as error:
            raise UnreachableError(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    async def repeat(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        deadline: float,
        attempts: int,
        pause: float,
        busy: Collection[int],
    ) -> Answer:
        """The answer to a request that is sent again if the server is not reached, or answers with a status of `busy`.

        deadline  seconds for all `attempts` and the time between them, which is `pause`, then twice `pause`, ...

        Raises: UnreachableError if all attempts failed; OverdueError at the deadline; AnswerError as `send`.
        """
        errors = list[str]()
        try:
            async with asyncio.timeout(deadline):
                for attempt in range(attempts):
                    await asyncio.sleep(pause * attempt)
                    try:
                        answer = await self.send(method, path, body, headers=headers)
                    except UnreachableError as error:
                        errors.append(str(error))
                        continue
                    if answer.status not in busy:
                        return answer
                    errors.append(f"status {answer.status}")
        except TimeoutError as error:
            raise OverdueError("; ".join([*errors, f"no answer within {deadline:g} s"]), errors) from error
        raise UnreachableError("; ".join(errors), errors)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    def _open(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections)
            trust_env = not is_loopback(urlsplit(self.url).hostname)  # whether proxies are used
            options = {"timeout": None, "trust_env": trust_env, "follow_redirects": False}  # `send` has a timeout
            self._client = httpx.AsyncClient(limits=limits, headers={"Accept-Encoding": _ENCODING}, **options)
        return self._client


async def _read(response: httpx.Response) -> bytes:
    """The body of `response` without its compression. Raises AnswerError as soon as it is beyond the limit."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", _ENCODING, ""):
        raise AnswerError(f"an answer with the Content-Encoding {encoding!r:.100}, which was not asked for")
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == _ENCODING else None
    parts, size, received = list[bytes](), 0, 0
    async for raw in response.aiter_raw():
        received += len(raw)
        part = raw if unpacker is None else _unpacked(unpacker, raw, MAX_BYTES + 1 - size)
        parts.append(part)
        size += len(part)
        if max(size, received) > MAX_BYTES:
            raise TooLargeError(parts[0])
    if unpacker is not None and not unpacker.eof and received:
        raise AnswerError("a compressed answer that ends before its end")
    return b"".join(parts)


def _unpacked(unpacker: Any, raw: bytes, room: int) -> bytes:
    try:
        part = unpacker.decompress(raw, room)
    except zlib.error as error:
        raise AnswerError(f"an answer that cannot be decompressed: {error}") from error
    if unpacker.unused_data:
        raise AnswerError("a compressed answer that continues after its end")
    return part
