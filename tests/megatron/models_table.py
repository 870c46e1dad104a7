"""Small models of each supported architecture."""

from __future__ import annotations

from typing import Any

__all__ = ["MODELS"]

# transformers does not train the embedding of a padding token; Megatron-core does.
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": None}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", _HEADS),
    "qwen2": ("qwen2", {**_HEADS, "use_sliding_window": False, "head_dim": 8, "tie_word_embeddings": True}),
    "llama": ("llama", _HEADS),
    "qwen3_moe": ("qwen3_moe", _HEADS),
    "experts in one layer": ("qwen3_moe", {**_HEADS, "mlp_only_layers": [0], "norm_topk_prob": True}),
}
"""Architecture and changes of `tests.backends.tiny`, by name. The vocabulary has 19 tokens, which two ranks pad."""
