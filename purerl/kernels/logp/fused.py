"""Token outputs by Triton kernels, for accelerators. The equations are those of chunked.py.

The forward pass keeps logits in registers. Each program reads a block of tokens and a part of the vocabulary, and
updates the maximum and the sums of each token (online softmax); the parts are combined afterwards. The backward pass
computes the gradient with respect to the logits of a chunk of tokens in one kernel, which computes the logits again,
and multiplies it with weight and hidden states by the matrix products of torch. So no tensor has n * v elements, and
nothing is added up in an order that varies.

Products accumulate in float32. If hidden states and weight are bfloat16, the factors stay bfloat16, and that includes
the gradient with respect to the logits, which is rounded once. Otherwise the factors are float32. The kernels compute
their products as three products in TF32 where the device has TF32, and in float32 elsewhere; with "medium" of
`torch.set_float32_matmul_precision` as one product in TF32. Three products are as accurate as one in float32, and the
forward pass is five times as fast: on an H200, at hidden 896 and vocabulary 151,936, the largest error of a
log-probability was 1.4e-6 with three products and 3.3e-6 in float32, and 8,192 tokens took 33 ms and 166 ms. The
products of the gradients are those of torch, to which its own precision applies.

`token_outputs` takes what `purerl.kernels.logp.token_outputs` takes, but no `k`: the k most likely tokens are not
computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from purerl.kernels.logp.chunked import combine_incoming, logit_scales
from purerl.kernels.logp.reference import compute_dtype
from purerl.kernels.logp.vocabulary import Vocabulary, VocabularyShard, WholeVocabulary
from purerl.system.devices.cuda import has_tf32

__all__ = ["Blocks", "chunk_size", "default_blocks", "token_outputs"]

_CHUNK_LOGITS, _MIN_CHUNK_TOKENS, _PROGRAMS = 2**26, 256, 1024


class Blocks(NamedTuple):
    """Sizes of blocks, powers of two of at least 16, and Triton's options of the kernels."""

    tokens: int
    vocabulary: int
    hidden: int
    num_warps: int
    num_stages: int


def default_blocks(dtype: torch.dtype) -> Blocks:
    """For factors of `dtype`: 96 KiB of shared memory in bfloat16, 72 KiB in float32. On sm_90 registers suffice."""
    return Blocks(128, 128, 64, 8, 3) if dtype == torch.bfloat16 else Blocks(64, 128, 32, 4, 3)


def chunk_size(vocabulary: int) -> int:
    """Tokens per chunk of the backward pass, which has a tensor of their logits: 256 MiB in float32."""
    return max(_MIN_CHUNK_TOKENS, _CHUNK_LOGITS // vocabulary)


def token_outputs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: Tensor,
    *,
    outputs: Sequence[str],
    choices: Tensor | None = None,
    scale: float,
    softcap: float | None,
    shard: VocabularyShard | None = None,
    chunk: int | None = None,
    blocks: Blocks | None = None,
) -> dict[str, Tensor]:
    """See `purerl.kernels.logp.token_outputs`. The backward pass computes `chunk` tokens at a time."""
    names, vocabulary = tuple(dict.fromkeys(outputs)), shard or WholeVocabulary()
    head = _Head(scale, softcap, blocks or default_blocks(_factor_dtype(hidden, weight)))
    chunk = chunk or chunk_size(len(weight))
    results = _TokenOutputs.apply(hidden, weight, bias, tokens, temperature, choices, names, head, vocabulary, chunk)
    return dict(zip(names, results, strict=True))


class _TokenOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        hidden, weight, bias, tokens, temperature, choices, names, head, vocabulary, chunk = arguments
        hidden, weight = hidden.contiguous(), weight.contiguous()
        ids = tokens[:, None] if choices is None else torch.cat([tokens[:, None], choices], 1)
        selected, partial = head.statistics(hidden, weight, bias, temperature, vocabulary.local(ids), names)
        results = _results(selected, partial, vocabulary, names)
        saved = {"tokens": tokens, "choices": choices}
        saved |= {name: results.get(name) for name in ("z_max", "log_total", "entropy", "sum_pi_squared")}
        ctx.names, ctx.head, ctx.vocabulary, ctx.chunk, ctx.saved_names = names, head, vocabulary, chunk, tuple(saved)
        ctx.save_for_backward(hidden, weight, bias, temperature, *saved.values())
        ctx.set_materialize_grads(False)
        return tuple(results[name] for name in names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        incoming = {name: grad for name, grad in zip(ctx.names, grads, strict=True) if grad is not None}
        return (*_input_gradients(ctx, incoming), *[None] * 7)


class _Head(NamedTuple):
    """Scales and sizes of blocks, and the launches of both kernels."""

    scale: float
    softcap: float | None
    blocks: Blocks

    def statistics(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: Tensor,
        ids: Tensor,
        names: Sequence[str],
    ) -> tuple[Tensor, Tensor]:
        """The logits of `ids` [n, k], 0 for ids outside of the rows of `weight`, and sums [4, n, splits]."""
        from purerl.kernels.logp import triton_kernels

        (n, d), v, dtype = hidden.shape, len(weight), compute_dtype(hidden.dtype)
        token_blocks, vocabulary_blocks = -(-n // self.blocks.tokens), -(-v // self.blocks.vocabulary)
        # Enough programs for all processors, and no split without columns.
        split_blocks = -(-vocabulary_blocks * max(token_blocks, 1) // _PROGRAMS)
        splits = -(-vocabulary_blocks // split_blocks)
        selected, partial = hidden.new_zeros(ids.shape, dtype=dtype), hidden.new_empty(4, n, splits, dtype=dtype)
        if n:
            launch: Any = triton_kernels.statistics[(token_blocks, splits)]
            launch(
                *self._inputs(hidden, weight, bias, temperature),
                *(ids, selected, partial),
                *(n, v, d, ids.shape[1], split_blocks * self.blocks.vocabulary, hidden.stride(0), weight.stride(0)),
                ENTROPY="entropy" in names,
                SQUARES="sum_pi_squared" in names,
                **self._options(hidden, weight, bias),
            )
        return selected, partial

    def gradients(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: Tensor,
        ids: Tensor,
        selected: Tensor,
        constant: Tensor,
        grads: Mapping[str, Tensor],
        saved: Mapping[str, Tensor],
    ) -> Tensor:
        """The gradient with respect to hidden @ weight.T + bias: [n, v], in the dtype of the factors."""
        from purerl.kernels.logp import triton_kernels

        (n, d), v = hidden.shape, len(weight)
        grad = hidden.new_empty(n, v, dtype=_factor_dtype(hidden, weight))
        rows = saved["z_max"], saved["log_total"], constant
        incoming = tuple(grads[name].contiguous() if name in grads else constant for name in _WITH_SLOPES)
        if n:
            launch: Any = triton_kernels.logit_gradients[(-(-n // self.blocks.tokens), -(-v // self.blocks.vocabulary))]
            launch(
                *self._inputs(hidden, weight, bias, temperature),
                *(ids, selected, *rows, *incoming, grad),
                *(n, v, d, ids.shape[1], hidden.stride(0), weight.stride(0)),
                ENTROPY="entropy" in grads,
                SQUARES="sum_pi_squared" in grads,
                **self._options(hidden, weight, bias),
            )
        return grad

    def _inputs(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor) -> tuple[Tensor, ...]:
        inner, outer = logit_scales(temperature.to(compute_dtype(hidden.dtype)), self.scale, self.softcap)
        return hidden, weight, weight if bias is None else bias, inner.contiguous(), inner if outer is None else outer

    def _options(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> dict[str, Any]:
        import triton.language as tl

        accumulator = compute_dtype(hidden.dtype)
        # Triton's interpreter would multiply the bits of bfloat16 numbers. In float32 their products are the same.
        factor = _factor_dtype(hidden, weight) if hidden.device.type != "cpu" else accumulator
        return {
            "BIAS": bias is not None,
            "SOFTCAP": self.softcap is not None,
            "DTYPE": getattr(tl, str(factor).removeprefix("torch.")),
            "ACC": getattr(tl, str(accumulator).removeprefix("torch.")),
            "PRECISION": _precision(hidden),
            "BLOCK_N": self.blocks.tokens,
            "BLOCK_V": self.blocks.vocabulary,
            "BLOCK_D": self.blocks.hidden,
            "num_warps": self.blocks.num_warps,
            "num_stages": self.blocks.num_stages,
        }


def _precision(hidden: Tensor) -> str:
    """The precision with which Triton multiplies float32 numbers."""
    if not has_tf32(hidden):
        return "ieee"
    return "tf32" if torch.get_float32_matmul_precision() == "medium" else "tf32x3"


_WITH_SLOPES = ("entropy", "sum_pi_squared")


def _factor_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of the factors of products: bfloat16 if both are, otherwise the compute dtype."""
    is_bfloat16 = hidden.dtype == weight.dtype == torch.bfloat16
    return torch.bfloat16 if is_bfloat16 else compute_dtype(hidden.dtype)


def _results(selected: Tensor, partial: Tensor, vocabulary: Vocabulary, names: Sequence[str]) -> dict[str, Tensor]:
    """The outputs, and "z_max" and "log_total" [n], from the sums of the parts of the vocabulary. See `statistics`."""
    m, *sums = partial
    z_max = vocabulary.max(m)
    rescale = (m - z_max).exp()
    totals = {"total": sums[0] * rescale}
    if "entropy" in names:
        totals["entropy"] = rescale * (sums[1] + (m - z_max) * sums[0])
    if "sum_pi_squared" in names:
        totals["sum_pi_squared"] = sums[2] * rescale.square()
    columns = [selected, *(column.sum(-1, keepdim=True) for column in totals.values())]
    selected, *reduced = vocabulary.sum(columns)
    totals = dict(zip(totals, reduced, strict=True))
    total = totals["total"]
    log_total = total.log()
    # Logits of ids of other ranks are 0 here, so the maximum is subtracted after the sum.
    log_p = selected - z_max - log_total
    results = {"z_max": z_max[:, 0], "log_total": log_total[:, 0], "logp": log_p[:, 0], "topk_logp": log_p[:, 1:]}
    if "entropy" in totals:
        results["entropy"] = (log_total - totals["entropy"] / total)[:, 0]
    if "sum_pi_squared" in totals:
        results["sum_pi_squared"] = (totals["sum_pi_squared"] / total.square())[:, 0]
    return results


def _input_gradients(ctx: Any, grads: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients with respect to hidden, weight and bias. Those that are not needed are None."""
    hidden, weight, bias, temperature, *saved = ctx.saved_tensors
    saved = {name: tensor for name, tensor in zip(ctx.saved_names, saved, strict=True) if tensor is not None}
    needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    dtype = compute_dtype(hidden.dtype)
    grad_hidden = torch.empty_like(hidden) if needs_hidden else None
    grad_weight = torch.zeros_like(weight, dtype=dtype) if needs_weight else None
    grad_bias = torch.zeros_like(bias, dtype=dtype) if needs_bias else None
    for start in range(0, len(hidden), ctx.chunk):
        rows = slice(start, start + ctx.chunk)
        chunk_grads, chunk_saved = ({name: x[rows] for name, x in named.items()} for named in (grads, saved))
        ids, selected, constant = combine_incoming(chunk_grads, chunk_saved)
        arguments = (ctx.vocabulary.local(ids), selected.contiguous(), constant.contiguous(), chunk_grads, chunk_saved)
        grad = ctx.head.gradients(hidden[rows], weight, bias, temperature[rows], *arguments)
        if grad_hidden is not None:
            (grad_hidden[rows],) = ctx.vocabulary.sum([_product(grad, weight, dtype)])
        if grad_weight is not None:
            _add_product(grad_weight, grad.T, hidden[rows])
        if grad_bias is not None:
            grad_bias += grad.sum(0, dtype=dtype)
        del grad  # or the next one would exist beside it
    return grad_hidden, grad_weight, grad_bias


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, without a tensor of its size where torch can."""
    if a.dtype == b.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += _product(a, b, total.dtype)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """A @ b in `dtype`. On an accelerator narrow factors are multiplied as they are."""
    if a.dtype == b.dtype != dtype and a.device.type != "cpu":
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)
