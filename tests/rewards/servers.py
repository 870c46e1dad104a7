"""A local server on real sockets, whose behavior a test chooses: answers, delays, failures, wrong or broken answers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request: its path, its headers in lower case, its body as JSON, and when it arrived."""

    path: str
    headers: Mapping[str, str]
    body: Any
    time: float

    @property
    def question(self) -> str:
        """The last message of a chat completion."""
        return self.body["messages"][-1]["content"]


Behavior = Callable[[asyncio.StreamWriter], Awaitable[None]]


def raw(data: bytes, *, length: int | None = None, code: int = 200, **headers: str) -> Behavior:
    """Answer with these bytes; `length` is what Content-Length says, if that is not true."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        fields = {"content-type": "application/json", "content-length": str(len(data) if length is None else length)}
        fields["connection"] = "close"
        fields |= {name.replace("_", "-").lower(): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {code} X\r\n{head}\r\n".encode() + data)
        await writer.drain()

    return behave


def answer(content: str | None, *, prompt: int = 0, completion: int = 0, finish: str = "stop") -> Behavior:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return raw(json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode())


def status(code: int, body: str = "{}", **headers: str) -> Behavior:
    return raw(body.encode(), code=code, **headers)


def text(body: str, kind: str = "text/plain") -> Behavior:
    return raw(body.encode(), content_type=kind)


def broken_off() -> Behavior:
    """The beginning of an answer, and the end of the connection."""
    return raw(b'{"choices": [{"mess', length=500)


def hang() -> Behavior:
    async def behave(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    return behave


def drop() -> Behavior:
    """Nothing, and the end of the connection."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        return None

    return behave


def slow(seconds: float, behavior: Behavior) -> Behavior:
    async def behave(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await behavior(writer)

    return behave


def together(number: int, behavior: Behavior) -> Behavior:
    """Wait for `number` requests at the same time, and then behave."""
    barrier = asyncio.Barrier(number)

    async def behave(writer: asyncio.StreamWriter) -> None:
        await barrier.wait()
        await behavior(writer)

    return behave


def dribble(seconds: float) -> Behavior:
    """An answer that never ends, a byte every `seconds`: no read of the client takes long."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(seconds)

    return behave


def endless(data: bytes = b"a" * 2**16, start: bytes = b"", **headers: str) -> Behavior:
    """`start`, and then `data` again and again, until the client closes the connection."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        fields = {"content-type": "application/json", **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 200 X\r\n{head}\r\n".encode() + start)
        while True:
            writer.write(data)
            await writer.drain()

    return behave


def compressed(data: bytes, *, size: int = 0, encoding: str = "gzip") -> Behavior:
    """`data` after `size` spaces, compressed; of spaces, a thousandth remains."""
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    spaces = b" " * min(size, 2**20)
    parts = [packer.compress(spaces) for _ in range(size // 2**20)]
    return raw(b"".join([*parts, packer.compress(data), packer.flush()]), content_encoding=encoding)


class Server:
    """Answers each request with ``behave(server, request)``; `requests` are those that have arrived."""

    def __init__(self, behave: Callable[[Server, Request], Behavior]) -> None:
        self.requests: list[Request] = []
        self.in_flight = self.max_in_flight = 0
        self.url = ""
        self._behave = behave

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request. Each has a connection of its own, so that one that is dropped concerns no other."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            request = Request(head[0].split()[1], headers, json.loads(body or b"null"), time.monotonic())
            self.requests.append(request)
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
            try:
                await self._behave(self, request)(writer)
            finally:
                self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def serve(*behaviors: Behavior | Callable[[Request], Behavior]) -> Iterator[Server]:
    """A server whose first requests get the first of `behaviors`, one each, and all others the last one.

    A behavior that takes a request is asked each time.
    """

    def behave(server: Server, request: Request) -> Behavior:
        behavior: Any = behaviors[min(len(server.requests), len(behaviors)) - 1]
        return behavior if behavior.__name__ == "behave" else behavior(request)

    server, loop, started = Server(behave), asyncio.new_event_loop(), threading.Event()

    async def run() -> None:
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, backlog=1024)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        started.set()
        async with listening:
            await asyncio.Event().wait()

    thread = threading.Thread(target=lambda: _until_cancelled(loop, run()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join(10)


def _until_cancelled(loop: asyncio.AbstractEventLoop, main: Any) -> None:
    try:
        loop.run_until_complete(main)
    except asyncio.CancelledError:
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
