"""The shape of a model of transformers as Megatron-core needs it, and the models that are supported.

Supported are the architectures in `MODEL_TYPES`, with full attention, biases only where transformers' class has them by
default, and the rotary embeddings of these models. Everything else is refused: Megatron's layers would compute another
model.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from purerl.errors import ConfigError

__all__ = ["MODEL_TYPES", "Shape", "shape_of"]

MODEL_TYPES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""The architectures of transformers that are supported."""

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants of the rotary embedding of Llama 3, which Megatron-core does not let change."""


@frozen(kw_only=True)
class Shape:
    """The sizes of a model.

    heads, key_heads  attention heads, and those of keys and values, which several attention heads share
    moe_layers        for each layer whether it has experts
    rope_factor       scales the rotary embedding as in Llama 3; None: it is not scaled
    """

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    max_sequence_length: int
    norm_eps: float
    rope_theta: float
    rope_factor: float | None
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    experts: int
    expert_ffn: int
    top_k: int
    normalize_top_k: bool
    moe_layers: tuple[bool, ...]

    @property
    def group_heads(self) -> int:
        """Heads of one key head: its queries, its key and its value."""
        return self.heads // self.key_heads + 2


def shape_of(config: Any) -> Shape:
    """The shape of the model with this `config` of transformers. Raises ConfigError if it is not supported.

    >>> from transformers import Qwen2Config
    >>> shape = shape_of(Qwen2Config())
    >>> shape.qkv_bias, shape.qk_norm, shape.group_heads
    (True, False, 3)
    """
    kind = config.model_type
    if kind not in MODEL_TYPES:
        raise _refused(f"the architecture {kind}", f"one of: {', '.join(MODEL_TYPES)}")
    rope = dict(config.rope_parameters)
    _check_layers(config, rope)
    is_moe = kind == "qwen3_moe"
    step, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or ()
    layers = range(config.num_hidden_layers)
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        ffn=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_sequence_length=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]),
        rope_factor=float(rope["factor"]) if rope.get("rope_type") == "llama3" else None,
        tied=bool(config.tie_word_embeddings),
        qkv_bias=kind == "qwen2",
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        experts=config.num_experts if is_moe else 0,
        expert_ffn=config.moe_intermediate_size if is_moe else 0,
        top_k=config.num_experts_per_tok if is_moe else 0,
        normalize_top_k=bool(getattr(config, "norm_topk_prob", False)),
        moe_layers=tuple(is_moe and layer not in dense and (layer + 1) % step == 0 for layer in layers),
    )


def _check_layers(config: Any, rope: dict[str, Any]) -> None:
    kind = rope.get("rope_type", "default")
    if kind not in ("default", "llama3"):
        raise _refused(f"rotary embeddings of the type {kind}", "the type default or llama3")
    for name, value in _LLAMA3.items() if kind == "llama3" else ():
        if rope.get(name) != value:
            raise _refused(f"rotary embeddings with {name} = {rope.get(name)}", f"{value:g}, as in Llama 3")
    if (partial := rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise _refused(f"partial_rotary_factor = {partial:g}", "rotary embeddings of whole heads")
    if others := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        raise _refused(f"layers of {', '.join(sorted(others))}", "layers of full attention")
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            raise _refused(f"{name} = true", "a model without these biases")
    if config.hidden_act != "silu":
        raise _refused(f"the activation {config.hidden_act}", "silu")
    if getattr(config, "quantization_config", None) is not None:
        raise _refused("quantized weights", "weights of float32 or bfloat16")


def _refused(got: str, need: str) -> ConfigError:
    return ConfigError("megatron cannot train this model", got=got, need=need, do="set trainer.kind to hf")
