"""The check before the first step with real engines: all weights that are sent are used, or stale ones are named."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from benchmarks.engine_models import MODELS, result_of
from purerl.backends.serving.generator import ServedGenerator
from purerl.errors import EngineError
from purerl.opening.weight_check import check_updates
from purerl.ranks import ONE_RANK
from purerl.settings import Model
from tests.backends.generators import tiny_model
from tests.backends.tiny import VOCAB_SIZE
from tests.engines.conftest import KIND, PYTHON, SIZES, build
from tests.loop.test_weight_check import Keeping, policy_of


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, ServedGenerator]]:
    """A model whose output head is its embedding, and a server of it."""
    model = tiny_model(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True, **SIZES)
    generator = build(model, tmp_path_factory.mktemp("log"))
    yield model, generator
    generator.close()


def check(model: Model, generator: ServedGenerator, *stale: str) -> float:
    keeping = Keeping(generator, stale)
    level = check_updates(policy_of(model), keeping, range(VOCAB_SIZE), ranks=ONE_RANK, seed=0)
    assert level is not None
    return level


def test_a_tied_model_uses_all_new_weights(tied: tuple[Model, ServedGenerator]) -> None:
    assert check(*tied) < 1e-4


@pytest.mark.parametrize(
    "stale",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.layers.0.self_attn.k_norm.weight",
        "model.layers.1.mlp.gate_proj.weight",
    ],
)
def test_a_stale_tensor_is_named(tied: tuple[Model, ServedGenerator], stale: str) -> None:
    named = stale.replace(".0.", ".*.").replace(".1.", ".*.")
    with pytest.raises(EngineError) as raised:
        check(*tied, stale)
    assert str(raised.value).splitlines()[0].startswith(f"the generator does not use new values of {named} (1 of ")


# Engines compute the size of a head of Qwen2, and vLLM takes no model with sliding windows in some of its layers.
QWEN2 = SIZES | {"num_attention_heads": 2, "use_sliding_window": False}

STALE_ELSEWHERE = {
    "head": ("qwen3", "lm_head.weight", r"lm_head\.weight \(1 of 1\)"),
    "bias": ("qwen2", "model.layers.1.self_attn.v_proj.bias", r"v_proj\.bias \(1 of 2\)"),
    "experts": ("qwen3_moe", "model.layers.0.mlp.experts.*.weight", r"experts\.down_proj \(1 of 2\)"),
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", STALE_ELSEWHERE)
def test_a_stale_tensor_of_another_model_is_named(tmp_path: Path, kind: str) -> None:
    family, pattern, named = STALE_ELSEWHERE[kind]
    model = tiny_model(tmp_path, family, **(QWEN2 if family == "qwen2" else SIZES))
    names = [name for name in policy_of(model).weights().metadata if fnmatch(name, pattern)]
    generator = build(model, tmp_path / "log")
    try:
        with pytest.raises(EngineError, match=named):
            check(model, generator, *names)
    finally:
        generator.close()


REFUSED = {
    "vllm": {"GPT-OSS": "does not use new values of model.layers.*.mlp.experts.down_proj (2 of 2)"},
    "sglang": {
        "GPT-OSS": "AssertionError: GptOssForCausalLM requires one of",
        "hybrid": "AttributeError: 'Qwen3NextConfig' object has no attribute",
        "vision": "ValueError: No processor registered for architecture",
    },
}
"""Kinds of models that the engine's build for CPUs does not update or run, and a part of the result."""


@pytest.mark.soak
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "tied"])
def test_other_models_use_all_new_weights_or_are_refused(tmp_path: Path, kind: str) -> None:
    if kind == "adapter" and KIND != "vllm":
        pytest.skip("only vLLM loads adapters")
    result = result_of(f"{KIND}={PYTHON}", kind, tmp_path)
    assert REFUSED[KIND].get(kind, "verified (") in result
