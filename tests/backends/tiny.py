"""Models small enough for a test, of several families, and batches for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from purerl.backends.hf.trainer import Config, HFTrainer, build
from purerl.protocols import Model

VOCABULARY = 19

_SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=24,
    max_position_embeddings=64,
    initializer_range=0.3,  # far enough from uniform for a wrong logit to show
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
_GPT2 = dict(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3)
_GPT2 |= dict(bos_token_id=None, eos_token_id=1)

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": _SIZES | dict(tie_word_embeddings=False),
    "llama": _SIZES | dict(tie_word_embeddings=True),
    "gemma2": _SIZES | dict(final_logit_softcapping=3.0, sliding_window=4, query_pre_attn_scalar=8),
    "cohere": _SIZES | dict(logit_scale=0.25),
    "granite": _SIZES | dict(logits_scaling=4.0),
    "qwen3_moe": _SIZES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, decoder_sparse_step=1),
    "phi": _SIZES,  # a head with a bias
    "gpt2": _GPT2 | dict(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5),  # positions that are learned, dropout
}


def write_model(folder: Path, family: str = "qwen3", *, seed: int = 0, **changes: Any) -> str:
    """A random model of `family`, in float64; its path."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = folder / f"{family}-{seed}"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family] | changes))
        for parameter in model.parameters():
            # Norms and biases too: at their 1 and 0 they would hide that they are not used.
            torch.nn.init.normal_(
                parameter, mean=float(parameter.detach().mean()), std=0.2 if parameter.ndim < 2 else 0.3
            )
        model.double().save_pretrained(path)
    return str(path)


def trainer(
    path: str, role: str = "policy", *, dtype: str = "float64", updates: int = 10, seed: int = 0, **settings: Any
) -> HFTrainer:
    """A trainer of the model at `path`."""
    attention = "eager" if "gemma2" in path else "sdpa"  # which transformers knows no other for
    model = Model(path, dtype=dtype, attention=attention)
    return build(Config(**settings), model=model, role=role, updates=updates, seed=seed)
