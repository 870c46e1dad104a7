"""What engines check of a server that runs already: whatever would give wrong numbers is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purerl.backends.vllm.api import VLLMApi
from purerl.settings import Model

ROUTES = ("/inference/v1/generate", "/pause", "/resume", "/collective_rpc")
VLLM = VLLMApi(Model("model"), {"max_model_len": 32}, {}, None, stale_cache=False)


class Answers:
    """Stands for `Http`; `answers` by the path."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    async def get(self, path: str, *, timeout: float) -> Any:
        return self.answers[path.partition("?")[0].strip("/").partition(".")[0]]


def problem(api: Any, **answers: Any) -> str | None:
    return asyncio.run(api.check(Answers(**answers), timeout=1.0))


def vllm(mode: str, routes: tuple[str, ...] = ROUTES, *, length: int = 32) -> str | None:
    info = {"vllm_config": {"model_config": {"logprobs_mode": mode, "max_model_len": length}}}
    return problem(VLLM, openapi={"paths": dict.fromkeys(routes)}, server_info=info)


def test_vllm_as_purerl_starts_it_can_be_used() -> None:
    assert vllm("processed_logprobs") is None


def test_vllm_that_would_end_completions_early_is_refused() -> None:
    need = "sequences of at most 31 tokens: generator.max_sequence_length must not be above it"
    assert vllm("processed_logprobs", length=31) == need
    assert vllm("processed_logprobs", length=64) is None


def test_vllm_without_its_routes_is_refused() -> None:
    need = "vllm 0.32, --enable-scale-out and VLLM_SERVER_DEV_MODE=1 are needed"
    assert vllm("processed_logprobs", ROUTES[:3]) == f"no /collective_rpc: {need}"


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_vllm_with_log_probabilities_of_another_distribution_is_refused(mode: str) -> None:
    """By default vLLM returns those before temperature, top_p and so on."""
    got = "log-probabilities of another distribution than the one from which it samples"
    assert vllm(mode) == f"{got} ({mode}): --logprobs-mode processed_logprobs is needed"
