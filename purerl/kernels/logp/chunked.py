"""Token outputs by chunks of tokens. The backward pass recomputes the logits instead of keeping them.

With p = softmax(z), H = entropy and S = sum_pi_squared, the gradients with respect to the logits z are

    d logp / d z        = onehot(token) - p
    d topk_logp_j / d z = onehot(choice_j) - p
    d H / d z           = -p * (log p + H)
    d S / d z           = 2 * p * (p - S)

The backward pass therefore needs logsumexp(z), H and S of each token, and no tensor of shape [n, v].

Scale and temperature multiply the hidden states instead of the logits, which are much larger. Without a softcap:

    inner_scale = scale / temperature
    z           = (inner_scale * hidden) @ weight.T + inner_scale * bias

With a softcap:

    inner_scale = scale / softcap
    outer_scale = softcap / temperature
    z           = outer_scale * tanh((inner_scale * hidden) @ weight.T + inner_scale * bias)

All chunks share one buffer of logits. Outputs with entropy need a second buffer, and so does the backward pass through
tanh. A new tensor per operation would be slower: the operating system takes longer to provide the memory than torch
takes to fill it. A weight narrower than float32 is copied to float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from purerl.kernels.logp.reference import compute_dtype

__all__ = ["token_outputs"]


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
    chunk: int,
) -> dict[str, Tensor]:
    """See `purerl.kernels.logp.token_outputs`. Computes `chunk` tokens at a time. Has no second derivative."""
    names, options = tuple(dict.fromkeys(outputs)), (scale, softcap, chunk)
    results = _TokenOutputs.apply(hidden, weight, bias, tokens, temperature, choices, k, names, options)
    return dict(zip(names, results, strict=True))


class _TokenOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        hidden, weight, bias, tokens, temperature, choices, k, names, options = arguments
        head = _Head(hidden, weight, bias, temperature, *options)
        z, p = head.buffer(), head.buffer() if "entropy" in names else None
        chunks = []
        for rows in head.chunks():
            chunk_choices = None if choices is None else choices[rows]
            chunks.append(_chunk_outputs(head.logits(rows, z, z), p, tokens[rows], chunk_choices, k, names))
        results = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
        saved = {"tokens": tokens, "choices": results.get("topk_tokens", choices)}
        saved |= {name: results.get(name) for name in ("z_max", "log_total", "entropy", "sum_pi_squared")}
        ctx.names, ctx.options, ctx.saved_names = names, options, tuple(saved)
        ctx.save_for_backward(hidden, weight, bias, temperature, *saved.values())
        ctx.set_materialize_grads(False)
        return tuple(results[name] for name in names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # Autograd casts the gradients to the dtypes of the inputs.
        return (*_input_gradients(ctx, dict(zip(ctx.names, grads, strict=True))), *[None] * 6)


class _Head:
    """The inputs in the compute dtype, and the logits of one chunk at a time."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: Tensor,
        scale: float,
        softcap: float | None,
        chunk: int,
    ) -> None:
        dtype = compute_dtype(hidden.dtype)
        temperature = temperature.to(dtype)[:, None]
        self.hidden, self.chunk = hidden, chunk
        self.weight, self.bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        self.inner_scale = scale / temperature if softcap is None else torch.full_like(temperature, scale / softcap)
        self.outer_scale = None if softcap is None else softcap / temperature

    def chunks(self) -> Iterator[slice]:
        """The rows of each chunk; one empty chunk if there are no tokens."""
        n = len(self.hidden)
        return (slice(start, min(start + self.chunk, n)) for start in range(0, max(n, 1), self.chunk))

    def buffer(self) -> Tensor:
        """Uninitialized memory for the logits of a chunk."""
        return self.weight.new_empty(min(self.chunk, len(self.hidden)), len(self.weight))

    def states(self, rows: slice) -> Tensor:
        """inner_scale * hidden."""
        return self.hidden[rows].to(self.weight.dtype) * self.inner_scale[rows]

    def logits(self, rows: slice, z: Tensor, tanh: Tensor) -> Tensor:
        """The logits, in the buffer `z`. With a softcap, the buffer `tanh` receives the tanh, unless it is `z` too."""
        product = (z if self.outer_scale is None else tanh)[: rows.stop - rows.start]
        if self.bias is None:
            torch.mm(self.states(rows), self.weight.T, out=product)
        else:
            torch.mul(self.inner_scale[rows], self.bias, out=product).addmm_(self.states(rows), self.weight.T)
        if self.outer_scale is None:
            return product
        return torch.mul(product.tanh_(), self.outer_scale[rows], out=z[: len(product)])


def _chunk_outputs(
    z: Tensor, p: Tensor | None, tokens: Tensor, choices: Tensor | None, k: int | None, names: Sequence[str]
) -> dict[str, Tensor]:
    """The outputs of a chunk, and "z_max" and "log_total", whose sum is logsumexp(z).

    Overwrites the logits `z`. `p` is a second buffer, needed only for the entropy.
    """
    results = {}
    if choices is None and ("topk_logp" in names or "topk_tokens" in names):
        choices = results["topk_tokens"] = z.topk(k).indices
    z_max = z.amax(-1, keepdim=True)
    z -= z_max
    z_token, z_choices = z.gather(-1, tokens[:, None]), None if choices is None else z.gather(-1, choices)
    p = z.exp_() if p is None else torch.exp(z, out=p[: len(z)])  # not normalized: softmax(z) * total
    total = p.sum(-1, keepdim=True)
    log_total = total.log()
    results |= {"z_max": z_max, "log_total": log_total}
    results["logp"] = (z_token - log_total).squeeze(-1)
    if z_choices is not None:
        results["topk_logp"] = z_choices - log_total
    if "entropy" in names:  # z <= 0 here, so both terms are >= 0: no cancellation
        results["entropy"] = (log_total - z.mul_(p).sum(-1, keepdim=True) / total).squeeze(-1)
    if "sum_pi_squared" in names:
        results["sum_pi_squared"] = (p.square_().sum(-1, keepdim=True) / total.square()).squeeze(-1)
    return results


def _input_gradients(
    ctx: Any, grads: Mapping[str, Tensor | None]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients with respect to hidden, weight and bias. Those that are not needed are None."""
    hidden, weight, bias, temperature, *saved = ctx.saved_tensors
    head = _Head(hidden, weight, bias, temperature, *ctx.options)
    needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    grad_hidden = torch.empty_like(hidden) if needs_hidden else None
    grad_weight = torch.zeros_like(head.weight) if needs_weight else None
    grad_bias = torch.zeros_like(head.bias) if needs_bias else None
    z = head.buffer()
    tanh = z if head.outer_scale is None else head.buffer()
    p = head.buffer() if grads.get("entropy") is not None or grads.get("sum_pi_squared") is not None else None
    saved = dict(zip(ctx.saved_names, saved, strict=True))
    for rows in head.chunks():
        grad = _logit_gradient(head.logits(rows, z, tanh), p, _select(rows, grads), _select(rows, saved))
        if head.outer_scale is not None:  # the gradient with respect to the argument of tanh
            grad.mul_(head.outer_scale[rows]).addcmul_(grad, tanh[: len(grad)].square_(), value=-1)
        if grad_hidden is not None:
            grad_hidden[rows] = (grad @ head.weight).mul_(head.inner_scale[rows])
        if grad_weight is not None:
            grad_weight.addmm_(grad.T, head.states(rows))
        if grad_bias is not None:
            grad_bias.addmv_(grad.T, head.inner_scale[rows, 0])
    return grad_hidden, grad_weight, grad_bias


def _select(rows: slice, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """The rows of each tensor that is not None."""
    return {name: tensor[rows] for name, tensor in tensors.items() if tensor is not None}


def _logit_gradient(z: Tensor, p: Tensor | None, grads: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> Tensor:
    """The gradient of a chunk with respect to its logits `z`, in the memory of `z`. Overwrites the buffer `p`.

    It is p * (constant - grads["entropy"] * log p + 2 * grads["sum_pi_squared"] * p), plus the incoming gradients of
    the selected log-probabilities in their columns. `constant` is the same for all columns of a row.
    """
    columns, selected = saved["tokens"][:, None], grads.get("logp", z.new_zeros(len(z)))[:, None]
    if "topk_logp" in grads:
        columns, selected = torch.cat([columns, saved["choices"]], 1), torch.cat([selected, grads["topk_logp"]], 1)
    constant = -selected.sum(-1, keepdim=True)
    if "entropy" in grads:
        constant -= (grads["entropy"] * saved["entropy"])[:, None]
    if "sum_pi_squared" in grads:
        constant -= (2 * grads["sum_pi_squared"] * saved["sum_pi_squared"])[:, None]
    # Two subtractions, because the sum z_max + log_total would be rounded: 1 - p of a likely token would be imprecise.
    log_p = z.sub_(saved["z_max"]).sub_(saved["log_total"])
    if p is None:
        grad = log_p.exp_().mul_(constant)
    else:
        p = torch.exp(log_p, out=p[: len(log_p)])
        slope = log_p.mul_(-grads["entropy"][:, None]).add_(constant) if "entropy" in grads else log_p.copy_(constant)
        if "sum_pi_squared" in grads:
            slope.addcmul_(p, grads["sum_pi_squared"][:, None], value=2)
        grad = slope.mul_(p)
    return grad.scatter_add_(-1, columns, selected)
