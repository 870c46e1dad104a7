"""The definition, in plain torch. It keeps several tensors of [n, v] for the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["logp_entropy", "shape_logits", "wide"]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What to compute in: float64 for float64, float32 for everything narrower."""
    return torch.promote_types(dtype, torch.float32)


def shape_logits(product: Tensor, *, scale: float, softcap: float | None) -> Tensor:
    """What a model does to `hidden @ weight.T + bias`: softcap * tanh(scale * product / softcap).

    >>> shape_logits(torch.tensor([1.0, 1000.0]), scale=2.0, softcap=None)
    tensor([   2., 2000.])
    >>> shape_logits(torch.tensor([1000.0]), scale=1.0, softcap=30.0)
    tensor([30.])
    """
    scaled = product * scale
    return scaled if softcap is None else softcap * torch.tanh(scaled / softcap)


def logp_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """As `purerl.kernels.logp.logp_entropy`."""
    dtype = wide(hidden.dtype)
    product = functional.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    logits = shape_logits(product, scale=scale, softcap=softcap) / temperature.to(dtype)[:, None]
    log_p = logits.log_softmax(-1)
    return log_p.gather(-1, tokens[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)
