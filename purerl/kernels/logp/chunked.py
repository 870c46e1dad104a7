"""The logits of a chunk of tokens at a time, and again in the backward pass.

With p = softmax(z), the gradients of the two outputs with respect to the tempered logits z are

    d logp / d z    = onehot(token) - p
    d entropy / d z = -p * (log p + entropy)

so the backward pass needs nothing of [n, v] from the forward pass. Peak memory beyond the gradients is about four
chunks of logits, and the head's weight once more where it is narrower than float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from purerl.kernels.logp import reference
from purerl.kernels.logp.reference import wide

__all__ = ["logp_entropy"]


def logp_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: Tensor,
    *,
    scale: float,
    softcap: float | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """As `purerl.kernels.logp.logp_entropy`, `chunk` tokens at a time. Its gradient cannot be differentiated again."""
    return _Chunked.apply(hidden, weight, bias, tokens, temperature, scale, softcap, chunk)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        hidden, weight, bias, tokens, temperature, scale, softcap, chunk = arguments
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, tokens, temperature)
        ctx.shape, ctx.chunk = {"scale": scale, "softcap": softcap}, chunk
        head = _widen(weight, bias, wide(hidden.dtype))
        parts = zip(hidden.split(chunk), tokens.split(chunk), temperature.split(chunk), strict=True)
        results = [reference.logp_entropy(h, *head, t, temp, **ctx.shape) for h, t, temp in parts]
        logp, entropy = (torch.cat(column) for column in zip(*results, strict=True))
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens, temperature = ctx.saved_tensors
        dtype = wide(hidden.dtype)
        wide_weight, wide_bias = _widen(weight, bias, dtype)
        # None where a weight is frozen: its gradient is as large as the weight itself.
        grad_weight = torch.zeros_like(wide_weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(wide_bias) if ctx.needs_input_grad[2] else None
        grad_hidden = torch.empty_like(hidden)
        for start in range(0, len(tokens), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            slopes = [None if grad is None else grad[part] for grad in grads]
            states = hidden[part].to(dtype)
            grad = _grad_product(states, wide_weight, wide_bias, tokens[part], temperature[part], *slopes, **ctx.shape)
            grad_hidden[part] = grad @ wide_weight
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, states)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def _widen(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _grad_product(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: Tensor,
    grad_logp: Tensor | None,
    grad_entropy: Tensor | None,
    *,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """The gradient with respect to `hidden @ weight.T + bias`, [n, v]: written in place wherever that is possible."""
    shaped = hidden @ weight.T if bias is None else torch.addmm(bias, hidden, weight.T)
    shaped *= scale
    if softcap is not None:
        shaped.div_(softcap).tanh_().mul_(softcap)
    log_p = (shaped / temperature.to(shaped.dtype)[:, None]).log_softmax(-1)
    p = log_p.exp()
    grad = torch.zeros_like(p)
    if grad_logp is not None:
        grad.addcmul_(p, grad_logp[:, None], value=-1).scatter_add_(-1, tokens[:, None], grad_logp[:, None])
    if grad_entropy is not None:
        entropy = -(p * log_p).sum(-1, keepdim=True)
        grad.addcmul_(p.mul_(log_p.add_(entropy)), grad_entropy[:, None], value=-1)
    grad *= scale / temperature.to(grad.dtype)[:, None]
    if softcap is not None:
        grad *= 1 - (shaped / softcap).square_()
    return grad
