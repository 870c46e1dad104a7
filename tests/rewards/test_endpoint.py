"""Requests to a local server that misbehaves: attempts, waiting, deadlines, limits, and what is counted."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from purerl.errors import ConfigError, RunError
from purerl.rewards.endpoint import client as module
from purerl.rewards.endpoint.client import EndpointClient
from purerl.rewards.endpoint.errors import EndpointError, Meter
from purerl.rewards.endpoint.limits import RateLimit, rate_limit
from purerl.rewards.endpoint.settings import Endpoint, check_endpoint

from .endpoint_calls import BODY, ask, content, short_delays  # noqa: F401 - a fixture
from .servers import (
    Server,
    answer,
    broken_off,
    compressed,
    dribble,
    drop,
    endless,
    hang,
    raw,
    serve,
    status,
    text,
    together,
)

TIMEOUT = 1.5  # of servers that do not answer; the others answer sooner on a busy machine as well


# --- attempts ------------------------------------------------------------------------------------------------------


def test_an_answer_is_returned_and_its_tokens_are_counted():
    meter = Meter()
    with serve(answer("42", prompt=5, completion=3)) as server:
        assert ask(server, meter=meter, key="secret") == "42"
        [request] = server.requests
    assert (request.path, request.body) == ("/v1/chat/completions", BODY)
    assert request.headers["authorization"] == "Bearer secret"
    assert meter == Meter(requests=1, prompt_tokens=5, completion_tokens=3)
    assert meter.totals(input_price=1e6, output_price=2e6)["cost"] == 11.0


DEEP = "an answer of more than 100 lists and objects inside of each other"
PROBLEMS = {
    "429": (status(429), "status 429"),
    "500": (status(500, '{"error": "oops"}'), 'status 500: {"error": "oops"}'),
    "503": (status(503), "status 503"),
    "dropped": (drop(), "RemoteProtocolError: Server disconnected"),
    "broken off": (broken_off(), "RemoteProtocolError: peer closed connection"),
    "garbage": (text("<html>busy</html>", "text/html"), "an answer that is no JSON (text/html): <html>busy</html>"),
    "truncated json": (raw(b'{"choices": [{'), 'an answer that is no JSON (application/json): {"choices": [{'),
    "deep json": (raw(b"[" * 200_000), "an answer of more than 100 lists and objects inside of each other: [["),
    "nested json": (
        raw(b"[" * 101 + b"]" * 101),
        "an answer of more than 100 lists and objects inside of each other: [[",
    ),
    "endless": (endless(), "an answer of more than 16,777,216 bytes"),
    "a gzip bomb": (compressed(b"{}", size=2**26), "an answer of more than 16,777,216 bytes"),
    "another compression": (compressed(b"{}", encoding="br"), "the Content-Encoding 'br', which was not asked for"),
    "an event stream": (text('data: {"a": 1}\n\n', "text/event-stream"), "no JSON (text/event-stream): data: {"),
    "no bytes": (raw(b""), "an answer that is no JSON (application/json): (nothing)"),
    "something else": (raw(b'{"object": "list"}'), "no choices"),
    "hanging": (hang(), f"no answer within {TIMEOUT} s"),
    "dribbling": (dribble(0.05), f"no answer within {TIMEOUT} s"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_request_is_repeated_after(name):
    meter = Meter()
    with serve(PROBLEMS[name][0], answer("42", prompt=5)) as server:
        assert ask(server, meter=meter, timeout=TIMEOUT) == "42"
    assert (meter.requests, meter.retries, meter.prompt_tokens) == (2, 1, 5)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_error_says_what_happened(name):
    with serve(PROBLEMS[name][0]) as server, pytest.raises(EndpointError) as error:
        ask(server, timeout=TIMEOUT, max_retries=1)
    first, *problems = str(error.value).split("\n  ")
    assert first == f"POST {server.url}/chat/completions: 2 attempts failed"
    assert len(problems) == len(server.requests) == 2
    assert all(PROBLEMS[name][1] in problem for problem in problems)


@pytest.mark.parametrize("code", [400, 401, 404, 422, 301])
def test_a_request_that_the_server_refuses_is_not_repeated(code):
    with serve(status(code, "no such model", location="/elsewhere")) as server, pytest.raises(EndpointError) as error:
        ask(server)
    assert str(error.value) == (
        f"POST {server.url}/chat/completions: the server refuses the request\n  status {code}: no such model"
    )
    assert len(server.requests) == 1


def test_a_server_that_is_down_is_asked_again_until_the_attempts_are_used_up():
    with serve(answer("42")) as server:
        url = server.url
    with pytest.raises(EndpointError, match="3 attempts failed\n  ConnectError: .*\n  ... \\(1 more\\)\n  Con"):
        ask(url, max_retries=2)


def test_the_key_is_in_no_message():
    with serve(status(401, "Incorrect API key: sk-123456")) as server, pytest.raises(EndpointError) as error:
        ask(server, key="sk-123456")
    assert "Incorrect API key: [key]" in str(error.value)


# --- waiting -------------------------------------------------------------------------------------------------------


def test_delays_grow_and_are_random(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.5)
    client = EndpointClient(Endpoint(url="http://h", model="m"))
    delays = [[client._delay(attempt) for attempt in range(10)] for _ in range(50)]
    for attempt, values in enumerate(zip(*delays, strict=True)):
        longest = min(30.0, 0.5 * 2**attempt)
        assert all(longest / 2 <= value <= longest for value in values)
        assert len({*values}) > 10


def in_half_a_second() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)


@pytest.mark.parametrize("header", ["0.5", "date"])
def test_retry_after_is_respected_by_all_requests(header):
    async def run(url: str) -> None:
        client = EndpointClient(Endpoint(url=url, model="m"))
        first = asyncio.create_task(client.ask("/a", BODY, content, meter=Meter()))
        while not client._resume_at:
            await asyncio.sleep(0.01)
        await asyncio.gather(first, client.ask("/b", BODY, content, meter=Meter()))
        await client.aclose()

    refusal = lambda request: status(429, retry_after="0.5" if header == "0.5" else in_half_a_second())  # noqa: E731
    with serve(refusal, answer("42")) as server:
        asyncio.run(run(server.url))
        first, *others = (request.time for request in server.requests)
    assert len(others) == 2
    assert all(later - first >= (0.45 if header == "0.5" else 0.9) for later in others)


def test_a_server_that_wants_to_wait_longer_than_the_deadline_ends_the_request_at_once():
    start = time.monotonic()
    with serve(status(503, retry_after="3600")) as server, pytest.raises(EndpointError) as error:
        ask(server, deadline=100.0)
    assert "the next attempt would be in 3600 s, after the deadline\n  status 503" in str(error.value)
    assert time.monotonic() - start < 30


def test_a_request_ends_at_its_deadline():
    start = time.monotonic()
    with serve(status(500), hang()) as server, pytest.raises(EndpointError) as error:
        ask(server, timeout=TIMEOUT, deadline=TIMEOUT)
    assert str(error.value).endswith(f"no answer within the deadline of {TIMEOUT} s\n  status 500: {{}}")
    assert TIMEOUT - 0.1 < time.monotonic() - start < 30


def test_a_cancelled_request_leaves_nothing_behind():
    async def run(server: Server) -> str:
        client = EndpointClient(Endpoint(url=server.url, model="m", max_concurrency=1))
        cancelled = asyncio.create_task(client.ask("/a", BODY, content, meter=Meter()))
        while not server.requests:
            await asyncio.sleep(0.01)
        cancelled.cancel()
        value = await client.ask("/b", BODY, content, meter=Meter())
        await client.aclose()
        return value

    with serve(hang(), answer("42")) as server:
        assert asyncio.run(run(server)) == "42"


def test_requests_run_concurrently_up_to_the_limit():
    async def run(url: str) -> None:
        client = EndpointClient(Endpoint(url=url, model="m", max_concurrency=4))
        await asyncio.gather(*(client.ask("/a", BODY, content, meter=Meter()) for _ in range(12)))
        await client.aclose()

    with serve(together(4, answer("42"))) as server:
        asyncio.run(run(server.url))
        assert (server.max_in_flight, len(server.requests)) == (4, 12)


# --- limits --------------------------------------------------------------------------------------------------------


def test_requests_keep_the_limit_per_minute(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "rate_limit", _limits_in(tmp_path))

    async def run(url: str) -> None:
        client = EndpointClient(Endpoint(url=url, model="m", requests_per_minute=600))
        await asyncio.gather(*(client.ask("/a", BODY, content, meter=Meter()) for _ in range(6)))
        await client.aclose()

    with serve(answer("42")) as server:
        start = time.monotonic()
        asyncio.run(run(server.url))
        assert max(request.time for request in server.requests) - start > 0.49  # 5 intervals of 0.1 s


def _limits_in(folder: Path):
    def limit(name: str, per_minute: int | None) -> RateLimit | None:
        return per_minute and RateLimit(folder / re.sub(r"\W", "_", name), per_minute)

    return limit


def test_tokens_are_limited_by_what_a_request_has_used(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "rate_limit", _limits_in(tmp_path))

    async def run(url: str) -> None:
        client = EndpointClient(Endpoint(url=url, model="m", tokens_per_minute=60_000, max_concurrency=1))
        for _ in range(4):
            await client.ask("/a", {**BODY, "max_tokens": 10_000}, content, meter=Meter())
        await client.aclose()

    with serve(answer("42", prompt=80, completion=20)) as server:
        start = time.monotonic()
        asyncio.run(run(server.url))
    # 100 tokens are 0.1 s. If the 10,000 that were allowed counted, it would take 30 s.
    assert 0.28 < time.monotonic() - start < 15


def test_a_limit_that_leaves_no_time_is_an_error_without_a_request(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "rate_limit", _limits_in(tmp_path))
    with serve(answer("42")) as server:
        settings = {"requests_per_minute": 1, "deadline": 5.0, "timeout": 5.0}
        assert ask(server, **settings) == "42"
        with pytest.raises(
            EndpointError, match="the limit of requests per minute allows no request within the deadline"
        ):
            ask(server, **settings)
        assert len(server.requests) == 1


def test_a_limit_reserves_amounts_one_after_the_other(tmp_path):
    limit = RateLimit(tmp_path / "limit", 60)
    waits = [limit.reserve(2, within=100) for _ in range(3)]
    assert waits == pytest.approx([0, 2, 4], abs=0.5)
    limit.give_back(5)
    assert limit.reserve(1, within=100) == pytest.approx(1, abs=0.5)
    assert limit.reserve(1, within=0.5) is None
    assert limit.reserve(1, within=100) == pytest.approx(2, abs=0.5)  # what was refused is not reserved


@pytest.mark.parametrize("state", ["", "nonsense", "1e300", "nan"])
def test_a_limit_with_a_damaged_file_starts_anew(tmp_path, state):
    (tmp_path / "limit").write_text(state)
    (tmp_path / "limit").chmod(0o600)
    assert RateLimit(tmp_path / "limit", 60).reserve(1, within=1) == 0


def _reserve(file: Path, count: int) -> None:
    limit = RateLimit(file, 60)
    for _ in range(count):
        limit.reserve(1, within=1e6)


def test_processes_share_a_limit(tmp_path):
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_reserve, args=(tmp_path / "limit", 50)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert RateLimit(tmp_path / "limit", 60).reserve(1, within=1e6) == pytest.approx(200, abs=30)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def test_limits_are_shared_by_processes_of_a_host(home, monkeypatch):
    program = "from purerl.rewards.endpoint.limits import rate_limit; print(rate_limit('a', 60).reserve(50, within=1))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert output == b"0.0\n"
    limit = rate_limit("a", 60)
    assert limit.reserve(1, within=100) == pytest.approx(40, abs=15)
    monkeypatch.setattr("socket.gethostname", lambda: "another")  # with the same home directory
    assert rate_limit("a", 60).reserve(1, within=100) == 0
    shutil.rmtree(home / ".cache")  # in the middle of a run
    assert limit.reserve(1, within=100) == 0


def test_a_limit_needs_a_file_that_can_be_locked(home, monkeypatch):
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(RunError, match=r"cannot be locked\n  got:  .*No locks(.*\n)+  do:   set XDG_CACHE_HOME"):
        rate_limit("a", 60)


def test_files_that_links_of_strangers_name_are_not_overwritten(home, tmp_path_factory, monkeypatch):
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (target := home / "mine.txt").write_text("mine")
    (folder := temporary / f"purerl-limits-{os.getuid()}").mkdir()  # where limits have been
    (folder / hashlib.sha256(b"a").hexdigest()).symlink_to(target)
    assert rate_limit("a", 60).reserve(1, within=1) == 0
    assert target.read_text() == "mine"
    [file] = (home / ".cache" / "purerl" / "limits").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (file.parent.parent, file.parent, file)] == [0o700, 0o700, 0o600]
    file.unlink()
    file.symlink_to(target)
    with pytest.raises(RunError, match="got:  a link, or no file"):
        rate_limit("a", 60)
    assert target.read_text() == "mine"
    file.parent.chmod(0o777)
    with pytest.raises(RunError, match="got:  permissions 777"):  # before a run
        check_endpoint(Endpoint(url="http://localhost/v1", model="m", tokens_per_minute=1))


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(url="localhost:8000"), "url\n  got:  'localhost:8000'\n  need: a URL that starts with http"),
        (dict(url="http://user:secret@host/v1"), "url: a user or password in a URL\n  got:  a credential, "),
        (dict(url="http://secret@host/v1"), "url: a user or password in a URL\n"),
        (dict(url="http://host/v1?key=secret"), "url: the parameter key of a URL\n"),
        (dict(url="http://host/v1?verbose=1"), "url\n"),
        (dict(url="http://host/v1#part"), "url\n"),
        (dict(url="http://host:99999/v1"), "url\n  got:  'http://host:99999/v1'\n"),
        (dict(url="http://[::1/v1"), "url\n  got:  'http://[::1/v1'\n"),
        (dict(model=""), "model\n  got:  ''\n  need: a name"),
        (dict(api_key_variable="sk-123"), "api_key_variable\n  got:  a value that is not shown\n  need: the name"),
        (
            dict(timeout=10.0, deadline=5.0),
            "timeout\n  got:  10.0\n  need: at most deadline, 5\n  do:   set",
        ),
        (dict(max_retries=-1), "max_retries\n  got:  -1\n"),
        (dict(input_price=-1.0), "input_price\n  got:  -1.0\n"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ConfigError) as error:
        Endpoint(**{"url": "http://host/v1", "model": "m", **settings})
    assert str(error.value).startswith(message)
    assert "secret" not in str(error.value)


def test_a_missing_key_is_refused_before_the_run(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    endpoint = Endpoint(url="http://host/v1", model="m", api_key_variable="JUDGE_KEY")
    with pytest.raises(ConfigError) as error:
        check_endpoint(endpoint)
    assert str(error.value) == (
        "endpoint.api_key_variable JUDGE_KEY\n"
        "  got:  no such environment variable\n"
        "  need: the key of http://host/v1\n"
        "  do:   export JUDGE_KEY=..., or leave api_key_variable out"
    )
    monkeypatch.setenv("JUDGE_KEY", "sk-123")
    check_endpoint(endpoint)


def test_a_cache_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="^endpoint.cache\n  got:  .*File exists.*\n  need: a directory that can be"):
        check_endpoint(Endpoint(url="http://host", model="m", cache=str(tmp_path / "file")))
    check_endpoint(Endpoint(url="http://host", model="m", cache=str(tmp_path / "new" / "cache")))
