"""The dtype of the in-process generator: that of the trainer's products, with log-probabilities in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.nn import functional

from purerl.backends.fake import trainer as fake_trainer
from purerl.backends.hf import generator as hf_generator
from purerl.backends.hf import trainer as hf_trainer
from purerl.backends.hf.decoder.outputs import logit_shape
from purerl.backends.weights import TensorWeights
from purerl.config.generators import sampled_model
from purerl.errors import ConfigError
from purerl.kernels.logp.reference import shape_logits
from purerl.protocols import Request, Sampling, generate
from purerl.settings import Model
from tests.backends.generators import make_generator, tiny_model, weights_in_files
from tests.loop.small import small_real

TOKENS = [3, 5, 7, 11, 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def _requests() -> list[Request]:
    return [Request(str(seed), TOKENS, Sampling(max_tokens=6), seed=seed) for seed in range(3)]


# --- which dtype ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "trainer", "expected"),
    [
        ("float32", {"mixed_precision": "bfloat16"}, "bfloat16"),
        ("float64", {"mixed_precision": "bfloat16"}, "bfloat16"),
        ("bfloat16", {"mixed_precision": "bfloat16"}, "bfloat16"),
        ("float32", {}, "float32"),
        ("bfloat16", {}, "bfloat16"),
        ("auto", {}, "auto"),
    ],
)
def test_the_generator_samples_in_the_dtype_that_the_trainer_computes_in(
    dtype: str, trainer: dict[str, Any], expected: str
) -> None:
    config = small_real(model=Model("nowhere", dtype=dtype), trainer=hf_trainer.Config(**trainer))
    assert sampled_model(config.model, config.trainer) == evolve(config.model, dtype=expected)


def test_a_trainer_without_another_dtype_changes_nothing() -> None:
    config = small_real(trainer=fake_trainer.Config(vocab_size=14))
    assert sampled_model(config.model, config.trainer) == config.model


def test_the_setting_of_the_generator_decides(model: Model) -> None:
    float32 = evolve(model, dtype="float32")
    narrow, same = make_generator(float32, dtype="bfloat16"), make_generator(evolve(model, dtype="bfloat16"))
    assert {p.dtype for p in narrow._model.parameters()} == {torch.bfloat16}
    assert generate(narrow, _requests()) == generate(same, _requests())
    wide = make_generator(evolve(model, dtype="bfloat16"), dtype="float32")
    assert {p.dtype for p in wide._model.parameters()} == {torch.float32}


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^dtype\n  got:  'int8'\n  need: one of: float32, bfloat16, float16"):
        hf_generator.Config(dtype="int8")


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3", "llama", "phi", "gemma2", "cohere"])  # untied, tied, bias, soft cap, scale
def test_logits_are_not_rounded_and_follow_the_weights(tmp_path: Path, family: str) -> None:
    generator = make_generator(tiny_model(tmp_path, family), dtype="bfloat16")
    other = weights_in_files(tiny_model(tmp_path / "other", family, seed=1))
    causal, tokens = generator._model, torch.tensor([TOKENS])
    for number in (0, 1):
        if number:
            generator.load_weights(TensorWeights(other), version=1)
            own = dict(causal.named_parameters())
            assert all(torch.equal(own[name], other[name].bfloat16()) for name in own)
        with torch.no_grad():
            hidden = causal.get_decoder()(tokens).last_hidden_state
            head, logits = causal.get_output_embeddings(), causal(tokens).logits
        assert (hidden.dtype, head.weight.dtype, logits.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
        product = functional.linear(
            hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float()
        )
        torch.testing.assert_close(logits, shape_logits(product, **logit_shape(causal.config)), rtol=1e-5, atol=1e-5)


def test_log_probabilities_of_samples_are_in_float32(model: Model) -> None:
    completions = generate(make_generator(model, dtype="bfloat16"), _requests())
    logp = torch.tensor([value for completion in completions for value in completion.logp])
    assert (logp != logp.bfloat16().float()).float().mean() > 0.9
    plain = make_generator(evolve(model, dtype="float32"))
    forced = generate(plain, _requests())
    same = [
        (a, b)
        for c, d in zip(completions, forced, strict=True)
        if c.tokens == d.tokens
        for a, b in zip(c.logp, d.logp, strict=True)
    ]
    assert same
    assert max(abs(a - b) for a, b in same) < 0.2


def test_a_float32_generator_has_its_own_head(model: Model) -> None:
    generator = make_generator(evolve(model, dtype="float32"))
    assert "forward" not in generator._model.get_output_embeddings().__dict__
