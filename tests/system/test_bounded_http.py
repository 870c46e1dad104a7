"""The client for servers that may be broken or hostile: what it reads, for how long, and how often it asks."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from purerl.system import bounded_http
from purerl.system.bounded_http import (
    MAX_BYTES,
    Answer,
    AnswerError,
    BoundedClient,
    OverdueError,
    TooLargeError,
    UnreachableError,
)
from purerl.system.nesting import MAX_NESTING
from tests.rewards.servers import Server, compressed, dribble, drop, endless, hang, raw, serve, slow, status

REPEAT = {"deadline": 20.0, "attempts": 3, "pause": 0.01, "busy": (503,)}


def ask(server: Server | str, call: Callable[[BoundedClient], Any]) -> Any:
    async def run() -> Any:
        client = BoundedClient(server if isinstance(server, str) else server.url, connections=4)
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(run())


def send(server: Server | str, **options: Any) -> Answer:
    return ask(server, lambda client: client.send("POST", "/a", {"b": 1}, **{"timeout": 30.0, **options}))


def repeat(server: Server | str, **options: Any) -> Answer:
    return ask(server, lambda client: client.repeat("POST", "/a", {"b": 1}, **{**REPEAT, **options}))


def test_an_answer_has_status_headers_and_body():
    with serve(raw(b'{"c": "\xc3\xa9"}', code=404, x_own="d")) as server:
        answer = send(server, headers={"Authorization": "Bearer e"})
        [request] = server.requests
    assert (answer.status, answer.headers["x-own"], answer.json()) == (404, "d", {"c": "\u00e9"})
    assert (request.path, request.body, request.headers["authorization"]) == ("/v1/a", {"b": 1}, "Bearer e")
    assert request.headers["accept-encoding"] == "gzip"


def test_redirects_are_not_followed():
    with serve(status(200)) as other, serve(status(307, location=f"{other.url}/b")) as server:
        assert send(server, headers={"Authorization": "Bearer secret"}).status == 307
        assert other.requests == []


# --- size ----------------------------------------------------------------------------------------------------------


def test_an_answer_of_the_greatest_size_is_read_with_and_without_compression():
    data = b'"' + b"a" * (MAX_BYTES - 2) + b'"'
    for behavior in (raw(data), compressed(data)):
        with serve(behavior) as server:
            assert send(server).body == data


TOO_LARGE = {
    "one byte more": raw(b" " * (MAX_BYTES + 1)),
    "one byte more, compressed": compressed(b" " * (MAX_BYTES + 1)),
    "endless": endless(),
    "endless spaces": endless(b" " * 2**20),
    "a bomb": compressed(b"{}", size=2**28),
    "endless compressed": endless(zlib.compressobj(0, wbits=31).compress(b"a" * 2**20), content_encoding="gzip"),
    "endless and empty blocks": endless(
        b"\x00\x00\x00\xff\xff" * 2**14, zlib.compressobj(wbits=31).compress(b"") + b"", content_encoding="gzip"
    ),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_more_is_neither_read_nor_decompressed(name: str):
    start = time.monotonic()
    with serve(TOO_LARGE[name]) as server:
        tracemalloc.start()
        try:
            with pytest.raises(AnswerError) as error:
                send(server)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    if name != "endless compressed":  # its first block is complete, and what follows is no block
        assert isinstance(error.value, TooLargeError), error.value
        assert str(error.value) == "an answer of more than 16,777,216 bytes"
    assert peak < 6 * MAX_BYTES
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("behavior", "message"),
    [
        (compressed(b"{}", encoding="br"), "the Content-Encoding 'br', which was not asked for"),
        (compressed(b"{}", encoding="gzip, gzip"), "the Content-Encoding 'gzip, gzip', which was not asked for"),
        (raw(b"no gzip", content_encoding="gzip"), "an answer that cannot be decompressed: "),
        (raw(zlib.compress(b"{}", wbits=31)[:-4], content_encoding="gzip"), "a compressed answer that ends before"),
        (raw(zlib.compress(b"{}", wbits=31) * 2, content_encoding="gzip"), "a compressed answer that continues after"),
    ],
)
def test_other_compressions_and_damaged_ones_are_refused(behavior: Any, message: str):
    with serve(behavior) as server, pytest.raises(AnswerError, match=message):
        send(server)


def test_an_answer_without_content_is_empty():
    with serve(raw(b"", code=204, content_encoding="gzip")) as server:
        assert send(server).body == b""


# --- JSON ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a": ', "}"), ('[1, {"a": "[", "b": ', "}]")])
def test_nesting_is_limited(start: str, end: str):
    def nested(depth: int) -> Answer:
        count = depth // (start.count("{") + start.startswith("["))
        return Answer(200, {}, f"{start * count}1{end * count}".encode())

    assert nested(MAX_NESTING).json()
    for depth in (MAX_NESTING + 2, 900, 100_000):
        with pytest.raises(AnswerError, match="an answer of more than 100 lists and objects inside of each other"):
            nested(depth).json()


@pytest.mark.parametrize("text", [b"<html>", b"", b'{"a": ', b"1" * 5000, b"\xff"])
def test_what_is_no_json_is_an_error(text: bytes):
    with pytest.raises(AnswerError, match=r"an answer that is no JSON \(text/html\)"):
        Answer(200, {"content-type": "text/html"}, text).json()


def test_a_wide_answer_is_no_deep_one():
    value = [{"a": [k]} for k in range(100_000)]
    assert Answer(200, {}, json.dumps(value).encode()).json() == value


# --- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behavior", [hang(), dribble(0.05), slow(30, status(200))])
def test_a_time_out_is_that_of_the_whole_answer(behavior: Any):
    start = time.monotonic()
    with serve(behavior) as server, pytest.raises(UnreachableError, match="^no answer within 0.5 s$"):
        send(server, timeout=0.5)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("behavior", [hang(), dribble(0.05), slow(0.3, status(503)), slow(0.3, drop())])
def test_a_deadline_is_that_of_all_attempts(behavior: Any):
    start = time.monotonic()
    with serve(behavior) as server, pytest.raises(OverdueError, match="no answer within 0.5 s$"):
        repeat(server, deadline=0.5, attempts=1000)
    assert 0.4 < time.monotonic() - start < 10


def test_the_time_between_attempts_counts():
    start = time.monotonic()
    with serve(status(503)) as server, pytest.raises(OverdueError) as error:
        repeat(server, deadline=0.5, pause=100.0)
    assert error.value.attempts == ("status 503",)
    assert time.monotonic() - start < 10


# --- attempts ------------------------------------------------------------------------------------------------------


def test_broken_connections_and_busy_servers_are_asked_again():
    with serve(drop(), status(503), raw(b"1")) as server:
        assert repeat(server).json() == 1
        assert len(server.requests) == 3


def test_the_errors_of_all_attempts_are_listed():
    with serve(drop(), status(503)) as server, pytest.raises(UnreachableError) as error:
        repeat(server)
    first, *others = error.value.attempts
    assert first.startswith("RemoteProtocolError: Server disconnected")
    assert others == ["status 503", "status 503"]
    assert str(error.value) == "; ".join(error.value.attempts)


@pytest.mark.parametrize("behavior", [status(500), status(404), endless()])
def test_other_answers_are_not_asked_for_again(behavior: Any):
    with serve(behavior) as server:
        with suppress(AnswerError):
            assert repeat(server).status in (404, 500)
        assert len(server.requests) == 1


def test_a_server_that_is_not_there():
    with serve(status(200)) as server:
        url = server.url
    with pytest.raises(UnreachableError, match="^ConnectError: "):
        send(url)


def test_a_proxy_gets_no_request_to_this_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serve(status(200)) as server:
        assert send(server).status == 200


def test_the_limit_is_sixteen_mebibytes():
    assert bounded_http.MAX_BYTES == 16 * 2**20
