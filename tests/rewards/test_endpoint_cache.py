"""The cache of answers: what is part of its key, what is kept, damaged entries, and several processes."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
from pathlib import Path
from typing import Any

from purerl.rewards.endpoint.client import EndpointClient
from purerl.rewards.endpoint.errors import Meter, UnusableAnswerError
from purerl.rewards.endpoint.settings import Endpoint, check_endpoint

from .endpoint_calls import BODY, ask, content, short_delays  # noqa: F401 - a fixture
from .servers import answer, raw, serve


def test_an_answer_is_asked_for_once(tmp_path):
    meter = Meter()
    with serve(answer("42", prompt=7)) as server:
        assert [ask(server, cache=str(tmp_path / "cache"), meter=meter) for _ in range(3)] == ["42"] * 3
    assert meter == Meter(requests=1, cached=2, prompt_tokens=7)


async def _variants(url: str, cache: Path) -> None:
    for body in (BODY, {**BODY, "temperature": 0.5}, {**BODY, "model": "other"}, {**BODY, "messages": []}):
        for path in ("/a", "/b"):
            for variant in (0, 1):
                client = EndpointClient(Endpoint(url=url, model="m", cache=str(cache)))
                await client.ask(path, body, content, meter=Meter(), variant=variant)
                await client.aclose()


def test_everything_that_matters_is_part_of_the_key(tmp_path):
    with serve(answer("42")) as server, serve(answer("43")) as other:
        for url in (server.url, other.url, server.url):
            asyncio.run(_variants(url, tmp_path))
        assert (len(server.requests), len(other.requests)) == (16, 16)


def test_an_answer_that_cannot_be_used_is_not_kept(tmp_path):
    with serve(raw(b"{}"), answer("42")) as server:
        assert ask(server, cache=str(tmp_path)) == "42"
        assert ask(server, cache=str(tmp_path)) == "42"
        assert len(server.requests) == 2


def test_a_kept_answer_that_is_no_longer_accepted_is_asked_for_again(tmp_path):
    def strict(reply: Any) -> str:
        if content(reply) == "42":
            raise UnusableAnswerError("another parser")
        return content(reply)

    with serve(answer("42"), answer("43")) as server:
        assert ask(server, cache=str(tmp_path)) == "42"
        assert ask(server, cache=str(tmp_path), accept=strict) == "43"


def test_only_the_user_can_read_a_new_cache(tmp_path):
    for check in (False, True):
        cache = tmp_path / f"folder-{check}" / "cache"
        with serve(answer("42")) as server:
            if check:
                check_endpoint(Endpoint(url=server.url, model="m", cache=str(cache)))
            ask(server, cache=str(cache))
        assert cache.stat().st_mode & 0o777 == 0o700


def test_a_damaged_entry_is_written_again(tmp_path):
    with serve(answer("42"), answer("43")) as server:
        ask(server, cache=str(tmp_path))
        [file] = tmp_path.rglob("*.json")
        file.write_text(file.read_text()[:10])
        assert ask(server, cache=str(tmp_path)) == "43"
        assert ask(server, cache=str(tmp_path)) == "43"
    assert json.loads(file.read_text())["choices"][0]["message"]["content"] == "43"


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file in its place")
    with serve(answer("42")) as server, caplog.at_level(logging.WARNING):
        assert ask(server, cache=str(tmp_path / "cache")) == "42"
    assert "cannot be written" in caplog.text


def _fill(url: str, folder: str, first: int) -> None:
    async def run() -> None:
        client = EndpointClient(Endpoint(url=url, model="m", cache=folder))
        for number in range(first, first + 20):
            await client.ask("/a", {**BODY, "number": number % 25}, content, meter=Meter())
        await client.aclose()

    asyncio.run(run())


def test_processes_share_a_cache(tmp_path):
    fork = multiprocessing.get_context("fork")
    with serve(lambda request: answer(str(request.body["number"]))) as server:
        processes = [fork.Process(target=_fill, args=(server.url, str(tmp_path), 5 * k)) for k in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * 4
    entries = [json.loads(file.read_text()) for file in tmp_path.rglob("*.json")]
    assert sorted(int(content(entry)) for entry in entries) == [*range(25)]
    assert not [*tmp_path.rglob("*.partial")]
