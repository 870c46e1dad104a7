"""The definition in plain torch. It keeps several tensors of shape [n, v] for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["compute_dtype", "shape_logits", "token_outputs"]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of computations for inputs of `dtype`: float64 for float64, float32 for all narrower types."""
    return torch.promote_types(dtype, torch.float32)


def shape_logits(product: Tensor, *, scale: float, softcap: float | None) -> Tensor:
    """The logits of a model from `hidden @ weight.T + bias`: softcap * tanh(scale * product / softcap).

    >>> shape_logits(torch.tensor([1.0, 1000.0]), scale=2.0, softcap=None)
    tensor([   2., 2000.])
    >>> shape_logits(torch.tensor([1000.0]), scale=1.0, softcap=30.0)
    tensor([30.])
    """
    scaled = product * scale
    return scaled if softcap is None else softcap * torch.tanh(scaled / softcap)


def token_outputs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: Tensor,
    *,
    outputs: Sequence[str],
    choices: Tensor | None = None,
    k: int | None = None,
    scale: float,
    softcap: float | None,
) -> dict[str, Tensor]:
    """See `purerl.kernels.logp.token_outputs`."""
    dtype = compute_dtype(hidden.dtype)
    product = functional.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    logits = shape_logits(product, scale=scale, softcap=softcap) / temperature.to(dtype)[:, None]
    log_p = logits.log_softmax(-1)
    results = {}
    if "logp" in outputs:
        results["logp"] = log_p.gather(-1, tokens[:, None]).squeeze(-1)
    if "entropy" in outputs:
        results["entropy"] = -(log_p.exp() * log_p).sum(-1)
    if "sum_pi_squared" in outputs:
        results["sum_pi_squared"] = log_p.exp().square().sum(-1)
    if "topk_logp" in outputs or "topk_tokens" in outputs:
        results["topk_tokens"] = logits.topk(k).indices if choices is None else choices
        results["topk_logp"] = log_p.gather(-1, results["topk_tokens"])
    return {name: results[name] for name in outputs}
