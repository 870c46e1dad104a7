"""Small random models of several families, and HF trainers of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from purerl.backends.hf.trainer import Config, build
from purerl.backends.hf.training.engine import HFTrainer
from purerl.settings import Model

VOCAB_SIZE = 19

_SIZES = dict(
    vocab_size=VOCAB_SIZE,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=24,
    max_position_embeddings=64,
    initializer_range=0.3,  # large, so that an incorrect logit has an effect
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
_GPT2 = dict(vocab_size=VOCAB_SIZE, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3)
_GPT2 |= dict(bos_token_id=None, eos_token_id=1)

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": _SIZES | dict(tie_word_embeddings=False),
    "qwen2": _SIZES | dict(use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "llama": _SIZES | dict(tie_word_embeddings=True),
    "gemma2": _SIZES | dict(final_logit_softcapping=3.0, sliding_window=4, query_pre_attn_scalar=8),
    "cohere": _SIZES | dict(logit_scale=0.25),
    "granite": _SIZES | dict(logits_scaling=4.0),
    "qwen3_moe": _SIZES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, decoder_sparse_step=1),
    "phi": _SIZES,  # a head with a bias
    "gpt2": _GPT2 | dict(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5),  # learned positions, dropout
}


def write_model(directory: Path, family: str = "qwen3", *, seed: int = 0, **changes: Any) -> str:
    """Write a random model of `family` in float64 into a subdirectory of `directory`; return its path."""
    path = directory / f"{family}-{seed}"
    path.mkdir(parents=True, exist_ok=True)
    for name, data in _files(family, seed, json.dumps(changes, sort_keys=True)).items():
        (path / name).unlink(missing_ok=True)  # the weights of a loaded model may be in the memory of the old file
        (path / name).write_bytes(data)
    return str(path)


@lru_cache(64)
def _files(family: str, seed: int, changes: str) -> dict[str, bytes]:
    """The files of a model by their names. Many tests write the same model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **FAMILIES[family] | json.loads(changes))
    with torch.random.fork_rng(), TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            # Norms and biases too: with their initial values 1 and 0, a test would not notice if they are not used.
            torch.nn.init.normal_(
                parameter, mean=float(parameter.detach().mean()), std=0.2 if parameter.ndim < 2 else 0.3
            )
        model.double().save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def make_trainer(
    path: str,
    role: str = "policy",
    *,
    dtype: str = "float64",
    outputs: Sequence[str] | None = None,
    updates: int = 10,
    seed: int = 0,
    **settings: Any,
) -> HFTrainer:
    """A trainer of the model at `path`; a critic computes values, other roles logp and entropy."""
    attention = "eager" if "gemma2" in path else "sdpa"  # soft caps need eager attention
    model = Model(path, dtype=dtype, attention=attention)
    outputs = outputs or (("value",) if role == "critic" else ("logp", "entropy"))
    config = Config(**settings)
    return build(config, model=model, role=role, outputs=outputs, updates=updates, seed=seed)
