"""Token outputs by chunks of logits. The backward pass computes the logits again instead of keeping them.

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

A head that is split by rows over ranks needs the maximum and a few sums of all ranks per chunk. All other steps are the
same, so `purerl.kernels.logp.vocabulary` is the only difference: with one process its sums are the identity.

The forward pass computes all logits of some tokens at a time, because it needs their sum. The backward pass computes
the logits of a tile of the vocabulary, so it finishes the gradient of some rows of the weight at a time, and only the
result has the size of the weight. All chunks share one buffer of logits. Outputs with entropy need a second buffer, and
so does the backward pass through tanh. A new tensor per operation would be slower: the operating system takes longer to
provide the memory than torch takes to fill it. A weight narrower than float32 is converted to float32 tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from purerl.kernels.logp.reference import compute_dtype
from purerl.kernels.logp.vocabulary import Vocabulary, VocabularyShard, WholeVocabulary

__all__ = ["combine_incoming", "logit_scales", "token_outputs"]

_TILE_ELEMENTS = 2**21
"""Elements of a tile of the weight: 8 MiB in float32."""


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
    shard: VocabularyShard | None = None,
) -> dict[str, Tensor]:
    """See `purerl.kernels.logp.token_outputs`. Computes `chunk` tokens at a time. Has no second derivative."""
    names, options, vocabulary = tuple(dict.fromkeys(outputs)), (scale, softcap, chunk), shard or WholeVocabulary()
    results = _TokenOutputs.apply(hidden, weight, bias, tokens, temperature, choices, k, names, options, vocabulary)
    return dict(zip(names, results, strict=True))


def logit_scales(temperature: Tensor, scale: float, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """inner_scale and outer_scale in the shape of `temperature`. Without a softcap, outer_scale is None."""
    if softcap is None:
        return scale / temperature, None
    return torch.full_like(temperature, scale / softcap), softcap / temperature


def combine_incoming(grads: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [n, k], the incoming gradients of their log-probabilities [n, k], and the constant of each token [n, 1].

    The gradient with respect to the logits is p * (constant - grads["entropy"] * log p + 2 * grads["sum_pi_squared"] *
    p), plus the incoming gradients of the ids in their columns.
    """
    ids = saved["tokens"][:, None]
    selected = grads["logp"][:, None] if "logp" in grads else torch.zeros_like(ids, dtype=saved["z_max"].dtype)
    if "topk_logp" in grads:
        ids, selected = torch.cat([ids, saved["choices"]], 1), torch.cat([selected, grads["topk_logp"]], 1)
    constant = -selected.sum(-1, keepdim=True)
    if "entropy" in grads:
        constant -= (grads["entropy"] * saved["entropy"])[:, None]
    if "sum_pi_squared" in grads:
        constant -= (2 * grads["sum_pi_squared"] * saved["sum_pi_squared"])[:, None]
    return ids, selected, constant


class _TokenOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        hidden, weight, bias, tokens, temperature, choices, k, names, options, vocabulary = arguments
        head = _Head(hidden, weight, bias, temperature, *options)
        z, p = head.buffer(), head.buffer() if "entropy" in names else None
        chunks = []
        for rows in head.chunks(head.chunk):
            chunk_choices, z_chunk = None if choices is None else choices[rows], z[: rows.stop - rows.start]
            states = head.states(rows)
            for columns, tile in head.tiles() if head.is_narrow else [(slice(None), weight)]:
                part = z_chunk[:, columns]
                head.logits(rows, states, columns, tile, part, part)
            chunks.append(_chunk_outputs(z_chunk, p, tokens[rows], chunk_choices, k, names, vocabulary))
        results = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
        saved = {"tokens": tokens, "choices": results.get("topk_tokens", choices)}
        saved |= {name: results.get(name) for name in ("z_max", "log_total", "entropy", "sum_pi_squared")}
        ctx.names, ctx.options, ctx.vocabulary, ctx.saved_names = names, options, vocabulary, tuple(saved)
        ctx.save_for_backward(hidden, weight, bias, temperature, *saved.values())
        ctx.set_materialize_grads(False)
        return tuple(results[name] for name in names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # Autograd casts the gradients to the dtypes of the inputs.
        return (*_input_gradients(ctx, dict(zip(ctx.names, grads, strict=True))), *[None] * 7)


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
        self.dtype = dtype = compute_dtype(hidden.dtype)
        temperature = temperature.to(dtype)[:, None]
        self.hidden, self.weight, self.chunk = hidden, weight, chunk
        self.bias = None if bias is None else bias.to(dtype)
        self.inner_scale, self.outer_scale = logit_scales(temperature, scale, softcap)

    @property
    def is_narrow(self) -> bool:
        """Whether the weight has to be converted."""
        return self.weight.dtype != self.dtype

    def chunks(self, size: int) -> Iterator[slice]:
        """Slices of `size` tokens; one empty slice if there are no tokens."""
        n = len(self.hidden)
        return (slice(start, min(start + size, n)) for start in range(0, max(n, 1), size))

    def buffer(self) -> Tensor:
        """Uninitialized memory for the logits of a chunk of tokens."""
        return self.weight.new_empty(min(self.chunk, len(self.hidden)), len(self.weight), dtype=self.dtype)

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the weight, and the weight of these rows in the compute dtype."""
        v = len(self.weight)
        for start in range(0, v, self.tile_rows):
            rows = slice(start, min(start + self.tile_rows, v))
            yield rows, self.weight[rows].to(self.dtype)

    @property
    def tile_rows(self) -> int:
        """Rows of the weight in a tile."""
        v, d = self.weight.shape
        return min(v, max(1, _TILE_ELEMENTS // d))

    def tile_chunk(self) -> int:
        """The number of tokens whose logits of a tile take as much memory as all logits of a chunk."""
        return max(1, min(self.chunk * len(self.weight) // self.tile_rows, len(self.hidden)))

    def states(self, rows: slice) -> Tensor:
        """inner_scale * hidden."""
        return self.hidden[rows].to(self.dtype) * self.inner_scale[rows]

    def logits(self, rows: slice, states: Tensor, columns: slice, tile: Tensor, z: Tensor, tanh: Tensor) -> Tensor:
        """The logits in `z` of the tokens `rows` and of a tile. `tanh`, which may be `z`, gets the tanh."""
        product = z if self.outer_scale is None else tanh
        if self.bias is None:
            torch.mm(states, tile.T, out=product)
        else:
            torch.mul(self.inner_scale[rows], self.bias[columns], out=product).addmm_(states, tile.T)
        return product if self.outer_scale is None else torch.mul(product.tanh_(), self.outer_scale[rows], out=z)


def _chunk_outputs(
    z: Tensor,
    p: Tensor | None,
    tokens: Tensor,
    choices: Tensor | None,
    k: int | None,
    names: Sequence[str],
    vocabulary: Vocabulary,
) -> dict[str, Tensor]:
    """The outputs of a chunk, and "z_max" and "log_total", whose sum is logsumexp(z).

    Overwrites the logits `z`. `p` is a second buffer, needed only for the entropy.
    """
    results = {}
    if choices is None and ("topk_logp" in names or "topk_tokens" in names):
        choices = results["topk_tokens"] = vocabulary.topk(z, k)
    z_max = results["z_max"] = vocabulary.max(z)
    z -= z_max
    sums = {"logp": vocabulary.gather(z, tokens[:, None])}
    if choices is not None:
        sums["topk_logp"] = vocabulary.gather(z, choices)
    p = z.exp_() if p is None else torch.exp(z, out=p[: len(z)])  # not normalized: softmax(z) * total
    sums["total"] = p.sum(-1, keepdim=True)
    if "entropy" in names:
        sums["entropy"] = z.mul_(p).sum(-1, keepdim=True)
    if "sum_pi_squared" in names:
        sums["sum_pi_squared"] = p.square_().sum(-1, keepdim=True)
    sums = dict(zip(sums, vocabulary.sum([*sums.values()]), strict=True))
    total = sums["total"]
    log_total = results["log_total"] = total.log()
    results["logp"] = (sums["logp"] - log_total).squeeze(-1)
    if "topk_logp" in sums:
        results["topk_logp"] = sums["topk_logp"] - log_total
    if "entropy" in sums:  # z <= 0 here, so both terms are >= 0: no cancellation
        results["entropy"] = (log_total - sums["entropy"] / total).squeeze(-1)
    if "sum_pi_squared" in sums:
        results["sum_pi_squared"] = (sums["sum_pi_squared"] / total.square()).squeeze(-1)
    return results


def _input_gradients(
    ctx: Any, grads: Mapping[str, Tensor | None]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients with respect to hidden, weight and bias. Those that are not needed are None."""
    hidden, weight, bias, temperature, *saved = ctx.saved_tensors
    head = _Head(hidden, weight, bias, temperature, *ctx.options)
    needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    grad_hidden = torch.zeros_like(hidden, dtype=head.dtype) if needs_hidden else None
    grad_weight = torch.empty_like(weight) if needs_weight else None
    grad_bias = torch.empty_like(bias) if needs_bias else None
    grads, saved = _present(grads), _present(dict(zip(ctx.saved_names, saved, strict=True)))
    ids, selected, constant = combine_incoming(grads, saved)
    saved |= {"ids": ctx.vocabulary.local(ids), "selected": selected, "constant": constant}
    buffers = _Buffers(head, needs_p=not {"entropy", "sum_pi_squared"}.isdisjoint(grads))
    for columns, tile in head.tiles():
        of_weight, of_bias = torch.zeros_like(tile), tile.new_zeros(len(tile))
        for rows in head.chunks(head.tile_chunk()):
            states, (z, tanh, p) = head.states(rows), buffers.of(rows, tile)
            head.logits(rows, states, columns, tile, z, tanh)
            grad = _logit_gradient(z, p, _select(rows, grads), _select(rows, saved), first=columns.start)
            if head.outer_scale is not None:  # the argument of tanh
                grad.mul_(head.outer_scale[rows]).addcmul_(grad, tanh.square_(), value=-1)
            if grad_hidden is not None:
                grad_hidden[rows].addmm_(grad, tile)
            if grad_weight is not None:
                of_weight.addmm_(grad.T, states)
            if grad_bias is not None:
                of_bias.addmv_(grad.T, head.inner_scale[rows, 0])
        if grad_weight is not None:
            grad_weight[columns] = of_weight
        if grad_bias is not None:
            grad_bias[columns] = of_bias
    if grad_hidden is not None:
        (total,) = ctx.vocabulary.sum([grad_hidden])
        grad_hidden = total.mul_(head.inner_scale)
    return grad_hidden, grad_weight, grad_bias


class _Buffers:
    """Uninitialized memory for logits of a tile, their tanh, and their probabilities."""

    def __init__(self, head: _Head, *, needs_p: bool) -> None:
        z = head.weight.new_empty(head.tile_chunk(), head.tile_rows, dtype=head.dtype)
        self._all = z, z if head.outer_scale is None else torch.empty_like(z), torch.empty_like(z) if needs_p else z

    def of(self, rows: slice, tile: Tensor) -> Iterator[Tensor]:
        """Logits, tanh and probabilities. The second and the third are the first if they are not needed."""
        return (buffer[: rows.stop - rows.start, : len(tile)] for buffer in self._all)


def _present(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """The tensors that are not None."""
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _select(rows: slice, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of each tensor."""
    return {name: tensor[rows] for name, tensor in tensors.items()}


def _logit_gradient(
    z: Tensor, p: Tensor, grads: Mapping[str, Tensor], saved: Mapping[str, Tensor], *, first: int
) -> Tensor:
    """The gradient with respect to logits `z`, in their memory; `first` is the id of their first column.

    Overwrites the buffer `p`.
    """
    # Two subtractions, because the sum z_max + log_total would be rounded: 1 - p of a likely token would be imprecise.
    log_p, constant = z.sub_(saved["z_max"]).sub_(saved["log_total"]), saved["constant"]
    if grads.keys().isdisjoint(("entropy", "sum_pi_squared")):
        grad = log_p.exp_().mul_(constant)
    else:
        torch.exp(log_p, out=p)
        slope = log_p.mul_(-grads["entropy"][:, None]).add_(constant) if "entropy" in grads else log_p.copy_(constant)
        if "sum_pi_squared" in grads:
            slope.addcmul_(p, grads["sum_pi_squared"][:, None], value=2)
        grad = slope.mul_(p)
    return _add_at(grad, saved["ids"] - first, saved["selected"])


def _add_at(grad: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Add `values` [n, k] to `grad` in the `columns` [n, k] that it has."""
    is_here = (columns >= 0) & (columns < grad.shape[-1])
    return grad.scatter_add_(-1, columns.clamp(0, grad.shape[-1] - 1), torch.where(is_here, values, 0))
