"""Classifiers behind a server: what vLLM, SGLang and OpenRLHF are asked, and what is read from their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from purerl.errors import ConfigError
from purerl.rewards.endpoint import client
from purerl.rewards.endpoint.errors import EndpointError
from purerl.rewards.endpoint.settings import Endpoint
from purerl.rewards.kinds import remote_classifier as kind

from .servers import Server, raw, serve, status

EXAMPLE = {"prompt": [{"role": "user", "content": "6 * 7?"}], "answer": "42"}
MESSAGES = [{"role": "assistant", "content": "It is 42."}]
USAGE = {"prompt_tokens": 9, "total_tokens": 9}


def reply(body: Any) -> Any:
    return raw(json.dumps(body).encode())


def score(server: Server, **settings: Any) -> Any:
    endpoint = Endpoint(url=server.url, model="rm", max_retries=1, **settings.pop("endpoint", {}))
    reward = kind.build(kind.Config(endpoint=endpoint, **settings))

    async def run() -> Any:
        try:
            return await reward("It is 42.", EXAMPLE, MESSAGES)
        finally:
            await reward.aclose()

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_DELAY", 0.01)


@pytest.mark.parametrize(
    ("settings", "path", "body", "answer", "expected"),
    [
        (
            {"extra_body": {"use_activation": False}},
            "/v1/classify",
            {"model": "rm", "messages": [*EXAMPLE["prompt"], *MESSAGES], "use_activation": False},
            {"data": [{"index": 0, "probs": [-1.5], "num_classes": 1}], "usage": USAGE},
            -1.5,
        ),
        (
            {"template": "{{ completion }}"},
            "/v1/classify",
            {"model": "rm", "input": "It is 42."},
            {"data": [{"probs": [0.25, 0.75]}]},
            0.75,
        ),
        ({"api": "sglang"}, "/v1/classify", {"model": "rm", "text": "6 * 7?\nIt is 42."}, {"embedding": [2]}, 2.0),
        (
            {"api": "sglang", "template": "{{ answer }}: {{ completion }}"},
            "/v1/classify",
            {"model": "rm", "text": "42: It is 42."},
            [{"embedding": [0.5]}],
            0.5,
        ),
        (
            {"api": "openrlhf"},
            "/v1",
            {"query": ["6 * 7?\nIt is 42."], "prompts": ["6 * 7?"], "labels": ["42"]},
            {"rewards": [3.25], "scores": [1.0]},
            3.25,
        ),
    ],
)
def test_each_server_is_asked_in_its_own_way(settings, path, body, answer, expected):
    with serve(reply(answer)) as server:
        result = score(server, endpoint={"input_price": 1e6}, **settings)
        [request] = server.requests
    assert (request.path, request.body) == (path, body)
    assert result.value == expected
    assert result.totals["cost"] == (9 if "usage" in answer else 0)


@pytest.mark.parametrize(
    "answer", [{"data": []}, {"data": [{"probs": [0.1, 0.2, 0.7]}]}, {"embedding": ["a"]}, {"rewards": [None]}, [], "x"]
)
def test_an_answer_without_a_score_is_a_failure(answer):
    with serve(reply(answer)) as server, pytest.raises(EndpointError) as error:
        score(server)
    assert str(error.value).count("an answer without one or two numbers: ") == 2
    assert error.value.totals["requests"] == 2


def test_a_server_that_refuses_is_a_failure():
    with (
        serve(status(400, "this model cannot classify")) as server,
        pytest.raises(EndpointError, match="cannot classify"),
    ):
        score(server)


def test_settings_without_effect_and_invalid_templates_are_refused():
    with pytest.raises(ConfigError, match="^endpoint.output_price has no effect\n  got:  1.0\n"):
        kind.check(kind.Config(endpoint=Endpoint(url="http://h", model="m", output_price=1.0)))
    with pytest.raises(ConfigError, match="^template\n  got:  a template that uses answer\n"):
        kind.check(kind.Config(endpoint=Endpoint(url="http://h", model="m"), template="{{ answer }}"))
    assert kind.columns(
        kind.Config(endpoint=Endpoint(url="http://h", model="m"), template="{{ a }}{{ completion }}")
    ) == ["a"]
