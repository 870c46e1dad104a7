"""Experts of tokens in the answers of servers: what is read, what is refused, and requests that are sent again."""

from __future__ import annotations

import asyncio
import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve, frozen

from purerl.backends import requests as pending_requests
from purerl.backends.requests import PendingRequest
from purerl.backends.serving.api import Answer
from purerl.backends.serving.settings import ServerSettings
from purerl.errors import ConfigError
from purerl.plugins import find
from purerl.protocols import Request, Sampling
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.rollouts.runtimes import wait_until
from tests.serving.interpreter import ENGINE_PYTHON
from tests.serving.test_given_servers import SGLANG, VLLM, Answers, problem
from tests.serving.toys import WEIGHTS, Toy, completions, requests, sampled, toys

FLAG = "enable_return_routed_experts"
RECORD = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
"""The experts of the four tokens that have been read after a prompt of three and two sampled ones."""


def pending() -> PendingRequest:
    return PendingRequest(Request("0", [1, 2, 3], Sampling(1.0, 9, (), ()), seed=0))


def vllm_answer(record: np.ndarray | None, finish: str = "length") -> Answer:
    encoded = None
    if record is not None:
        np.save(file := BytesIO(), record.astype(np.uint8))
        encoded = base64.b64encode(file.getvalue()).decode()
    choice = {
        "token_ids": [7, 8],
        "logprobs": {"content": [{"logprob": -1.0}] * 2},
        "weight_versions": [{"version": "3", "start": 0, "end": 2}],
        "finish_reason": finish,
        "routed_experts": encoded,
    }
    return evolve(VLLM, arguments={**VLLM.arguments, FLAG: True}).answer({"choices": [choice]}, pending())


def sglang_answer(record: np.ndarray | None, finish: str = "length") -> Answer:
    info: dict[str, Any] = {
        "finish_reason": {"type": finish},
        "output_token_logprobs": [[-1.0, 7, None], [-1.0, 8, None]],
        "weight_versions": [{"version": "3", "start": 0, "end": 2}],
    }
    if record is not None:
        info["routed_experts"] = base64.b64encode(record.astype(np.int32).tobytes()).decode()
    return evolve(SGLANG, routes=(3, 2)).answer({"output_ids": [7, 8], "meta_info": info}, pending())


ANSWERS = {"vllm": vllm_answer, "sglang": sglang_answer}
KINDS = pytest.mark.parametrize("kind", ANSWERS)


@KINDS
@pytest.mark.parametrize("finish", ["length", "abort"])
def test_experts_of_all_tokens_but_the_last_are_read(kind: str, finish: str) -> None:
    routes = ANSWERS[kind](RECORD, finish).routes
    assert routes is not None
    assert routes.dtype == np.int16
    np.testing.assert_array_equal(routes, RECORD)


@KINDS
@pytest.mark.parametrize(("record", "count"), [(None, 0), (RECORD[:3], 3), (np.concatenate((RECORD, RECORD)), 8)])
def test_experts_of_another_number_of_tokens_are_refused(kind: str, record: np.ndarray | None, count: int) -> None:
    with pytest.raises(ValueError, match=f"^the experts of {count} tokens in place of 4$"):
        ANSWERS[kind](record)


@KINDS
def test_a_request_that_was_interrupted_may_have_none(kind: str) -> None:
    assert ANSWERS[kind](None, "abort").routes is None
    routes = ANSWERS[kind](RECORD[:2], "abort").routes
    assert routes is not None
    assert len(routes) == 2


def test_a_server_that_was_started_without_the_option_is_refused() -> None:
    info = {"model_config": {"logprobs_mode": "processed_logprobs", "max_model_len": 32}}
    info |= {"parallel_config": {"worker_extension_cls": ""}, "aux_output_config": {FLAG: False}}
    paths = dict.fromkeys(("/inference/v1/generate", "/pause", "/resume", "/collective_rpc"))
    answers = {"openapi": {"paths": paths}, "version": {"version": "0.32.0"}, "server_info": {"vllm_config": info}}
    need = "no experts of tokens: --enable-return-routed-experts is needed"
    api = evolve(VLLM, arguments={**VLLM.arguments, FLAG: True})
    assert problem(api, **answers) == need
    info["aux_output_config"][FLAG] = True
    assert problem(api, **answers) is None
    sglang = evolve(SGLANG, routes=(3, 2))
    assert problem(sglang, server_info={"version": "0.5.20"}) == need
    assert asyncio.run(sglang.check(Answers(server_info={"version": "0.5.20", FLAG: True}), timeout=1.0)) is None


@KINDS
def test_servers_are_asked_for_experts_only_if_the_setting_says_so(kind: str, tmp_path: Path) -> None:
    module, model = find("generator", kind), Model(write_model(tmp_path, "qwen3_moe"))
    for is_set in (False, True):
        config = module.Config(return_routes=is_set)
        command = module.command(config, model=model, host="127.0.0.1", port=1)
        assert ("--enable-return-routed-experts" in command.arguments) is is_set
        assert module.preview(config, model=model).routes is is_set
    assert "return_routed_experts" not in SGLANG.request(pending(), "0", None).body
    assert evolve(SGLANG, routes=(3, 2)).request(pending(), "0", None).body["return_routed_experts"] is True


@KINDS
def test_a_model_without_experts_is_refused(kind: str, tmp_path: Path) -> None:
    module, path = find("generator", kind), write_model(tmp_path, "qwen3")
    with pytest.raises(ConfigError) as error:
        module.preview(module.Config(return_routes=True), model=Model(path))
    assert str(error.value).splitlines() == [
        "generator.return_routes",
        f"  got:  {path!r}, of the architecture qwen3",
        "  need: a mixture of experts",
        "  do:   leave it out",
    ]


@KINDS
@pytest.mark.usefixtures("interpreter_has_engines")
def test_servers_on_the_cpu_are_refused(kind: str) -> None:
    module = find("generator", kind)
    config = module.Config(server=ServerSettings(python=ENGINE_PYTHON, device="cpu"), return_routes=True)
    with pytest.raises(ConfigError, match="^return_routes\n  got:  servers on the CPU\n  need: servers on a GPU: "):
        module.check(config)
    module.check(evolve(config, return_routes=False))


@pytest.mark.usefixtures("interpreter_has_engines")
def test_vllm_without_its_prefix_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = find("generator", "vllm")
    monkeypatch.setattr(module, "is_on_cpu", lambda server: False)
    config = module.Config(server=ServerSettings(python=ENGINE_PYTHON, enable_prefix_caching=False), return_routes=True)
    with pytest.raises(ConfigError, match=r"^server\.enable_prefix_caching\n  got:  False\n  need: true"):
        module.check(config)


# --- requests that are sent again ----------------------------------------------------------------------------------


@frozen(eq=False)
class RoutingToy(Toy):
    """A toy whose expert of each token that it has read is the version of its weights, counted from 1."""

    def answer(self, response: Any, pending: PendingRequest) -> Answer:
        answer = super().answer(response, pending)
        version = response["versions"][-1] if response["versions"] else "default"
        expert = 1 + int(version) if version.isdigit() else 1
        read = len(pending.all_tokens) + len(answer.tokens) - 1
        return answer._replace(routes=np.full((read, 1, 1), expert, np.int16))


def the_first_record_of_a_token_counts(folder: Path) -> None:
    """Weights change in flight, and requests are sent again with the tokens that they have."""
    with toys(folder, RoutingToy(("--limit", "60"), keeps=False)) as generator:
        generator.submit(requests(4, tokens=100))
        wait_until(lambda: sampled(generator) == 4 * 60)
        generator.load_weights(WEIGHTS, version=1)
        found = completions(generator, 4)
    for completion in found.values():
        assert completion.version == (0,) * 60 + (1,) * 40
        assert completion.routes is not None
        assert completion.routes.flatten().tolist() == [1 + version for version in completion.version]


def test_the_first_record_of_a_token_counts(tmp_path: Path) -> None:
    the_first_record_of_a_token_counts(tmp_path)


def test_the_last_record_of_a_token_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pending_requests, "first_records", lambda records: [*records][-1])
    with pytest.raises(AssertionError):
        the_first_record_of_a_token_counts(tmp_path)
