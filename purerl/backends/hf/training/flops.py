"""Floating-point operations of a model, and the peak of the devices that it is trained on.

    FLOPs of a token = 6 N + 12 L H Q T

N: weights that a token is multiplied with. L layers, H heads of width Q, and T: tokens of the row. Where queries and
values have different widths, as in latent attention, Q is their mean. Of the factor 6, two are the forward pass, two
the gradients of hidden states, and two the gradients of weights. Source: Chowdhery et al. 2022, PaLM (2204.02311),
appendix B. As there, attention counts as if it were not causal, and what recomputation repeats does not count.

Frozen weights have no gradients: they count 4 times instead of 6. Of experts, those count that a token is sent to. An
embedding is no product, unless it is also the output head. What reads images beside the decoder is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from purerl.system.devices.accelerator import device_name
from purerl.system.devices.peaks import Precision, peak_flops

if TYPE_CHECKING:
    from purerl.backends.hf.mesh import RankMesh
    from purerl.backends.hf.model.token_model import TokenModel

__all__ = ["peak_of_ranks", "training_flops"]


def training_flops(module: TokenModel, tokens: int, length: float) -> float:
    """FLOPs of forward and backward pass over `tokens` tokens of rows with `length` tokens.

    Each row counts alone, also where prefixes are shared, so a utilization is that of the rows as they are.
    """
    return tokens * (_weights(module) + 12 * _attention_width(module.config) * length)


def _attention_width(config: Any) -> float:
    """The sum over layers of the width of all heads; 0 for a model without attention."""
    if getattr(config, "is_heterogeneous", False):  # layers of different sizes
        return sum(_heads_width(layer) for layer in config.per_layer_config)
    return config.num_hidden_layers * _heads_width(config)


def _heads_width(config: Any) -> float:
    """The width of all heads of a layer: the mean of that of queries and values."""
    heads = getattr(config, "num_attention_heads", None) or 0
    if getattr(config, "kv_lora_rank", None):
        return heads * (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) / 2
    width = getattr(config, "head_dim", None)
    return heads * width if width else float(config.hidden_size if heads else 0)


def _weights(module: TokenModel) -> float:
    """The sum over matrices of their numbers, times 6, or 4 if they are frozen."""
    embedding = module.decoder.get_input_embeddings().weight
    heads = [*module.heads.values(), *([module.model.get_output_embeddings()] if module.has_vocabulary else [])]
    head_weights = {id(weight) for head in heads for weight in head.parameters()}
    parts = (module.decoder, *heads)
    weights = {id(weight): (name, weight) for part in parts for name, weight in part.named_parameters()}
    config, total = module.config, 0.0
    for name, weight in weights.values():
        if weight.ndim < 2 or (weight is embedding and id(weight) not in head_weights):
            continue
        share = _active_fraction(config) if ".experts." in name else 1.0
        total += weight.numel() * share * (6 if weight.requires_grad else 4)
    return total


def _active_fraction(config: Any) -> float:
    """The fraction of experts that a token is sent to."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((number for name in names if (number := getattr(config, name, None))), None)
    return config.num_experts_per_tok / experts if experts else 1.0


def peak_of_ranks(mesh: RankMesh, module: TokenModel) -> float | None:
    """Peak FLOP/s of the devices of all ranks together; None if it is not known, as on a CPU."""
    peak = peak_flops(device_name(mesh.device), _precision(module))
    return None if peak is None else peak * mesh.all.size


def _precision(module: TokenModel) -> Precision:
    """That of most matrix products."""
    if module.autocast == torch.bfloat16 or module.model.dtype.itemsize == 2:
        return "bfloat16"
    return "float32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
