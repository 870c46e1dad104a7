"""Experts that the real engines return: those of transformers, for the tokens and the weights that they have read.

On a CPU, vLLM 0.32 returns none. SGLang 0.5.20 does, if its buffer need not be registered with CUDA.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from purerl.backends.hf.weights.model_weights import ModelWeights
from purerl.backends.requests import PendingRequest
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.vllm.api import VLLMApi
from purerl.protocols import Completion, Request, Sampling, generate
from purerl.settings import Model
from tests.backends.generators import tiny_model
from tests.backends.routed_models import choices_of, in_order
from tests.engines.conftest import ENVIRONMENT, FOLDER_VARIABLE, KIND, PYTHON, SIZES, build

STAND_IN = """
import importlib.abc
import importlib.util
import sys

NAME = "sglang.srt.mem_cache.pool_host.common"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            module._cuda_host_register = lambda *arguments, **options: None

        spec.loader.exec_module = load_and_change
        return spec


sys.meta_path.insert(0, Finder())
"""
"""A sitecustomize.py with which SGLang does not register memory with CUDA."""


needs_gpu = pytest.mark.skipif(
    KIND == "vllm" and not torch.cuda.is_available(), reason="vLLM's runner for CPUs returns no experts"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    folder = tmp_path_factory.mktemp("models")
    first, second = (tiny_model(folder, "qwen3_moe", seed=seed, **SIZES) for seed in (0, 1))
    return first, second


@pytest.fixture(scope="module")
def generator(models: tuple[Model, Model], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGenerator]:
    folder = tmp_path_factory.mktemp("server")
    changes: dict[str, Any] = {}
    if KIND == "vllm":
        changes = {"device": "cuda", "gpu_memory_utilization": 0.5}
    else:
        (folder / "sitecustomize.py").write_text(STAND_IN)
        variables = {**ENVIRONMENT[KIND], FOLDER_VARIABLE: str(folder), "PYTHONPATH": str(folder)}
        changes = {"environment": variables}
    opened = build(models[0], folder, return_routes=True, **changes)
    yield opened
    opened.close()


def plain(model: Model) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32, attn_implementation="eager").eval()


def choices(model: Model, tokens: list[int]) -> np.ndarray:
    return in_order(choices_of(plain(model), tokens))


def check(model: Model, tokens: list[int], completion: Completion) -> None:
    assert completion.routes is not None
    expected = choices(model, [*tokens, *completion.tokens][:-1])
    np.testing.assert_array_equal(in_order(completion.routes), expected)


@pytest.mark.gpu
@needs_gpu
def test_experts_are_those_of_transformers(models: tuple[Model, Model], generator: ServedGenerator) -> None:
    """Equal prompts, stop tokens, and a second turn whose beginning the engine has in its cache."""
    prompts = [[3, 4, 5], [3, 4, 5], [7], [6, 2, 8, 4, 9, 3]]
    first = [Request(f"{k}", p, Sampling(1.0, 20, (1,), ()), seed=k) for k, p in enumerate(prompts)]
    turns = []
    for prompt, completion in zip(prompts, generate(generator, first), strict=True):
        check(models[0], prompt, completion)
        turns.append([*prompt, *completion.tokens, 6, 2])
    second = [Request(f"again {k}", tokens, Sampling(1.0, 8, (), ()), seed=k) for k, tokens in enumerate(turns)]
    for tokens, completion in zip(turns, generate(generator, second), strict=True):
        check(models[0], tokens, completion)


@pytest.mark.gpu
@needs_gpu
def test_the_first_record_of_a_token_counts(models: tuple[Model, Model], generator: ServedGenerator) -> None:
    """New weights arrive in flight. What was sampled before has the experts of the old weights."""
    generator.submit([Request(str(k), [1 + k, 2, 3], Sampling(max_tokens=300), k) for k in range(4)])
    time.sleep(0.5)
    generator.load_weights(ModelWeights(plain(models[1])), version=1)
    completions: list[Completion] = []
    while len(completions) < 4:
        completions += generator.collect(timeout=60.0)
    assert any({0, 1} == {*completion.version} for completion in completions)
    for completion in completions:
        tokens = [1 + int(completion.key), 2, 3, *completion.tokens][:-1]
        version = np.array([*[completion.version[0]] * 2, *completion.version])[:, None, None]
        old, new = (choices(model, tokens) for model in models)
        assert completion.routes is not None
        np.testing.assert_array_equal(in_order(completion.routes), np.where(version == 0, old, new))


@pytest.mark.skipif(KIND != "vllm", reason="it is vLLM's serialization")
def test_what_vllm_serializes_is_read() -> None:
    code = (
        "import numpy as np; from vllm.utils.serial_utils import numpy2base64; "
        "print(numpy2base64(np.arange(24, dtype='uint16').reshape(4, 3, 2)))"
    )
    encoded = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.split()[-1]
    api = VLLMApi(Model("nowhere"), {"enable_return_routed_experts": True}, {}, None, False, False)
    choice = {
        "token_ids": [7, 8],
        "logprobs": {"content": [{"logprob": -1.0}] * 2},
        "weight_versions": [{"version": "3", "start": 0, "end": 2}],
        "finish_reason": "length",
        "routed_experts": encoded,
    }
    pending = PendingRequest(Request("0", [1, 2, 3], Sampling(1.0, 2, (), ()), seed=0))
    answer = api.answer({"choices": [choice]}, pending)
    assert answer.routes is not None
    assert answer.routes.tolist() == np.arange(24).reshape(4, 3, 2).tolist()
