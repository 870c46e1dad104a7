"""The conformance suite on the real engine, and what it leaves open."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from purerl.backends.hf.weights.merge import merge
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.weights import TensorWeights
from purerl.protocols import Completion, Request, Sampling, generate
from purerl.settings import Model
from purerl.testing.generator import EXACT, REFUSED, SAMPLING, check_generator
from tests.backends.generators import reference_score, suite_arguments, tiny_model, weights_in_files
from tests.engines.conftest import KIND, SIZES, build


def _check(first: Model, second: Model, folder: Path, **changes: object) -> None:
    result = check_generator(
        lambda: build(first, folder, **changes),
        **suite_arguments(first, second),
        long=1500,
    )
    assert set(result.left_out) <= {check.__name__ for check in (*SAMPLING, *REFUSED, *EXACT)}


def test_engine_conforms(models: tuple[Model, Model], url: str, tmp_path: Path) -> None:
    _check(*models, tmp_path, urls=(url,))


@pytest.mark.soak
def test_engine_on_two_devices_conforms(models: tuple[Model, Model], tmp_path: Path) -> None:
    _check(*models, tmp_path, tensor_parallel_size=2)


PAUSES = (0.3, 0.1, 0.03) * 4
"""Seconds from one load to the next, by attempt. Requests may end before all weights are loaded."""
MAX_TOKENS = 1900  # of the requests


def _in_flight(
    generator: ServedGenerator, models: tuple[Model, Model], versions: tuple[int, ...], pause: float
) -> list[Completion]:
    """Completions whose tokens have all `versions`."""
    weights = [TensorWeights(weights_in_files(model)) for model in models]
    generator.load_weights(weights[versions[0] % 2], version=versions[0])
    generator.submit([Request(str(k), [1 + k, 2, 3], Sampling(max_tokens=MAX_TOKENS), k) for k in range(8)])
    for version in versions[1:]:
        time.sleep(pause)
        generator.load_weights(weights[version % 2], version=version)
    completions: list[Completion] = []
    while len(completions) < 8:
        completions += generator.collect(timeout=60.0)
    return [completion for completion in completions if len(set(completion.version)) == len(versions)]


def _error(models: tuple[Model, Model], completion: Completion) -> float:
    """The largest difference between log-probabilities and those of a forward pass of their version."""
    score, weights = reference_score(models[0]), [weights_in_files(model) for model in models]
    tokens, largest = [1 + int(completion.key), 2, 3, *completion.tokens], 0.0
    for version in set(completion.version):
        expected = score(weights[version % 2], tokens, 1.0)[3:]
        pairs = zip(completion.logp, expected, completion.version, strict=True)
        largest = max(largest, *(abs(a - b) for a, b, own in pairs if own == version))
    return largest


@pytest.mark.parametrize("stale_cache", [False, True])
def test_each_token_has_the_log_probability_of_its_version(
    models: tuple[Model, Model], url: str, tmp_path: Path, stale_cache: bool
) -> None:
    """Three versions in one completion. With the keys and values of old weights, the second has those of no model."""
    generator = build(models[0], tmp_path, urls=(url,), stale_cache=stale_cache)
    found: list[Completion] = []
    for attempt, pause in enumerate(PAUSES):
        found = _in_flight(generator, models, tuple(range(100 * attempt + 2, 100 * attempt + 5)), pause)
        if found:
            break
    generator.close()
    assert found, "weights were loaded while requests were running"
    errors = [_error(models, completion) for completion in found]
    assert max(errors) > 0.1 if stale_cache else max(errors) < 1e-4


def _sleeps(generator: ServedGenerator, models: tuple[Model, Model]) -> None:
    """Let servers sleep, and load other weights: what they sample then has the log-probabilities of these."""
    for version in (1, 2, 3):
        generator.sleep()
        generator.load_weights(TensorWeights(weights_in_files(models[version % 2])), version=version)
        requests = [Request(str(k), [1 + k, 2, 3], Sampling(max_tokens=20), k) for k in range(4)]
        for completion in generate(generator, requests):
            assert set(completion.version) == {version}
            assert _error(models, completion) < 1e-4


def test_engine_sleeps_until_it_has_new_weights(models: tuple[Model, Model], url: str, tmp_path: Path) -> None:
    """On the CPU engines answer the calls, and keep their memory."""
    generator = build(models[0], tmp_path, urls=(url,), sleep_level=1)
    _sleeps(generator, models)
    generator.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sleep_level", [1, 2])
def test_engine_that_sleeps_has_released_its_memory(
    models: tuple[Model, Model], tmp_path: Path, sleep_level: int
) -> None:
    changes = dict(device="cuda", gpu_memory_utilization=0.5, sleep_level=sleep_level)
    generator = build(models[0], tmp_path, **changes)
    free, total = torch.cuda.mem_get_info()
    generator.sleep()
    assert torch.cuda.mem_get_info()[0] - free > 0.3 * total
    _sleeps(generator, models)
    assert abs(torch.cuda.mem_get_info()[0] - free) < 0.1 * total
    generator.close()


def _loads(generator: ServedGenerator, models: tuple[Model, Model]) -> None:
    """Load weights three times: what is sampled has the log-probabilities of these."""
    for version in (1, 2, 3):
        generator.load_weights(TensorWeights(weights_in_files(models[version % 2])), version=version)
        requests = [Request(str(k), [1 + k, 2, 3], Sampling(max_tokens=20), k) for k in range(4)]
        for completion in generate(generator, requests):
            assert set(completion.version) == {version}
            assert _error(models, completion) < 1e-4
    assert [server.restarts for server in generator.servers] == [0]


@pytest.mark.parametrize("weight_transfer", ["cuda_ipc", "nccl"])
def test_weights_that_are_staged(
    models: tuple[Model, Model],
    url: str,
    tmp_path: Path,
    weight_transfer: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the memory of the CPU in place of that of a device, and gloo in place of NCCL."""
    monkeypatch.setattr("purerl.backends.serving.generator.current_device", lambda: torch.device("cpu"))
    generator = build(models[0], tmp_path, urls=(url,), weight_transfer=weight_transfer)
    _loads(generator, models)
    generator.close()
    assert "pass through the memory of the host" not in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("weight_transfer", "devices"),
    [
        pytest.param("cuda_ipc", (), marks=pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")),
        pytest.param("nccl", ("1",), marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")),
    ],
)
def test_weights_go_from_gpu_to_gpu(
    models: tuple[Model, Model],
    tmp_path: Path,
    weight_transfer: str,
    devices: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = dict(device="cuda", gpu_memory_utilization=0.5, devices=devices, weight_transfer=weight_transfer)
    generator = build(models[0], tmp_path, **changes)
    _loads(generator, models)
    generator.close()
    assert "pass through the memory of the host" not in caplog.text


def _adapter(model: Model, seed: int) -> TensorWeights:
    """An adapter of the projections of queries and values, large enough to change every token."""
    rng, tensors = torch.Generator().manual_seed(seed), {}
    for name, weight in weights_in_files(model).items():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            layer = "base_model.model." + name.removesuffix(".weight")
            outputs, inputs = weight.shape
            tensors[f"{layer}.lora_A.weight"] = torch.randn(8, inputs, generator=rng)
            tensors[f"{layer}.lora_B.weight"] = torch.randn(outputs, 8, generator=rng)
    settings = {"r": 8, "lora_alpha": 4.0, "target_modules": ["q_proj", "v_proj"], "peft_type": "LORA"}
    return TensorWeights(tensors, adapter=settings)


@pytest.mark.skipif(KIND != "vllm", reason="only vLLM loads adapters")
def test_adapters_are_loaded_without_merging(models: tuple[Model, Model], tmp_path: Path) -> None:
    """Each version has the log-probabilities of the model merged with its adapter, also in flight."""
    generator = build(models[0], tmp_path, max_lora_rank=8)
    assert generator.capabilities.adapters
    adapters = [_adapter(models[0], seed) for seed in (0, 1)]
    merged = []
    for adapter in adapters:
        weights = {name: value.clone() for name, value in weights_in_files(models[0]).items()}
        for name, a in adapter.tensors.items():
            if ".lora_A." in name:
                b = adapter.tensors[name.replace(".lora_A.", ".lora_B.")]
                own = name.removeprefix("base_model.model.").replace(".lora_A", "")
                weights[own] = merge(weights[own], a, b, 0.5)
        merged.append(weights)
    score, found = reference_score(models[0]), []
    for attempt, pause in enumerate(PAUSES):
        generator.load_weights(adapters[0], version=2 * attempt)
        generator.submit([Request(str(k), [1 + k, 2, 3], Sampling(max_tokens=MAX_TOKENS), k) for k in range(8)])
        time.sleep(pause)
        generator.load_weights(adapters[1], version=2 * attempt + 1)
        completions: list[Completion] = []
        while len(completions) < 8:
            completions += generator.collect(timeout=60.0)
        found = [completion for completion in completions if len(set(completion.version)) == 2]
        if found:
            break
    generator.close()
    assert found, "an adapter was loaded while requests were running"
    for completion in found:
        tokens = [1 + int(completion.key), 2, 3, *completion.tokens]
        for version in set(completion.version):
            expected = score(merged[version % 2], tokens, 1.0)[3:]
            pairs = zip(completion.logp, expected, completion.version, strict=True)
            assert max(abs(a - b) for a, b, own in pairs if own == version) < 1e-4


def test_completion_satisfies_a_json_schema(tmp_path: Path) -> None:
    """A model whose tokens are the characters of JSON texts."""
    letters = '{$}"ab:,012345678[]'  # token 1 is the end token of the model
    model = tiny_model(tmp_path, letters=letters, **SIZES)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 20]}, "b": {"const": "ab"}}, "required": ["a", "b"]}
    text = json.dumps({**schema, "additionalProperties": False})
    generator = build(model, tmp_path / "logs")
    sampling = Sampling(max_tokens=40, stop_tokens=(1,), json_schema=text)
    completions = generate(generator, [Request(str(k), [2 + k], sampling, seed=k) for k in range(8)])
    generator.close()
    answers = [json.loads("".join(letters[token] for token in each.tokens[:-1])) for each in completions]
    assert {each.finish for each in completions} == {"stop"}
    assert all(each["a"] in (1, 20) and each["b"] == "ab" and len(each) == 2 for each in answers)
