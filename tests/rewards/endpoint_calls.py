"""Requests to an endpoint, for the tests of its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from purerl.rewards.endpoint import client as module
from purerl.rewards.endpoint.client import EndpointClient
from purerl.rewards.endpoint.errors import Meter, UnusableAnswerError
from purerl.rewards.endpoint.settings import Endpoint

from .servers import Server

BODY = {"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 8}


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.01)


def content(reply: Any) -> str:
    if "choices" not in reply:
        raise UnusableAnswerError("no choices")
    return reply["choices"][0]["message"]["content"]


def ask(
    server: Server | str,
    *,
    accept: Callable[[Any], Any] = content,
    meter: Meter | None = None,
    key: str | None = None,
    **settings,
) -> Any:
    """The content of the answer to one request."""
    url = server if isinstance(server, str) else server.url
    return asyncio.run(_ask(Endpoint(url=url, model="m", **settings), accept, meter or Meter(), key))


async def _ask(endpoint: Endpoint, accept, meter: Meter, key: str | None) -> Any:
    client = EndpointClient(endpoint, key)
    try:
        return await client.ask("/chat/completions", BODY, accept, meter=meter)
    finally:
        await client.aclose()
