"""Log-probability, entropy and top-k log-probabilities of next-token distributions, computed from hidden states.

    z               = softcap * tanh(scale * (hidden @ weight.T + bias) / softcap) / temperature
    log p           = z - logsumexp(z)
    logp            = log p[token]
    entropy         = -sum(p * log p)
    sum_pi_squared  = sum(p^2)
    topk_logp       = log p[choices]

Without a softcap, z = scale * (hidden @ weight.T + bias) / temperature. The operation contains no loss, so that every
objective can use it.

    reference.py   the definition in plain torch; it keeps tensors of shape [n, v] for the backward pass
    chunked.py     one chunk of tokens at a time; the backward pass recomputes the logits
    fused.py       Triton kernels for CUDA tensors, if triton is installed; see below what they compute
    vocabulary.py  the maximum and the sums over the vocabulary of a head that is split over ranks

The paths agree up to rounding. `token_outputs` uses the reference for small sizes, otherwise fused.py for CUDA tensors
and chunked.py for others. Without `choices`, the k most likely tokens are computed by chunked.py on every device, and
so is everything in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purerl.errors import InputError, nearest
from purerl.kernels.accelerators import uses_triton
from purerl.kernels.logp import chunked, reference
from purerl.kernels.logp.vocabulary import VocabularyShard

__all__ = ["KEPT", "OUTPUTS", "VocabularyShard", "chunk_size", "token_outputs"]

KEPT = 2**24
"""Largest n * v for which `token_outputs` uses the reference. In float32 each [n, v] tensor then takes up to 64 MiB."""

OUTPUTS = ("logp", "entropy", "sum_pi_squared", "topk_logp", "topk_tokens")
"""The outputs of `token_outputs`: what comes from the distribution of the next token."""

_CHUNK_LOGITS, _MIN_CHUNK_TOKENS = 2**22, 128


def chunk_size(vocabulary: int) -> int:
    """Tokens per chunk: 16 MiB of float32 logits to fit a cache, but enough tokens for an efficient matrix product."""
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
    k: int | None = None,
    scale: float,
    softcap: float | None,
    shard: VocabularyShard | None = None,
) -> dict[str, Tensor]:
    """Compute `outputs` of the next-token distribution p = softmax(z) at n positions.

    hidden       [n, d] final hidden states, each at the position before its token; n may be 0
    weight       [v, d] weight of the output head
    bias         [v] bias of the output head, or None
    tokens       [n] int64, the token at each position
    temperature  [n] sampling temperature, greater than 0
    outputs      names of outputs, at least one
    choices      [n, k] int64, the tokens of "topk_logp"; ids may repeat
    k            number of most likely tokens, 1 to v; has no effect if `choices` is passed
    scale        factor of the logits
    softcap      bound of the scaled logits, or None
    shard        which rows of the head this rank has, if it is split over ranks; see `VocabularyShard`

    Outputs:

    logp            [n] log p of the token, in nats
    entropy         [n] entropy of p, in nats
    sum_pi_squared  [n] sum of the squared probabilities
    topk_logp       [n, k] log p of `choices`, or of the k most likely tokens if `choices` is None
    topk_tokens     [n, k] int64 ids of the k most likely tokens, in descending order of probability

    Returns the outputs by name, in the requested order. All but "topk_tokens" have gradients with respect to `hidden`,
    `weight` and `bias`. The selection of the most likely tokens has no gradient, and ties may be in any order.
    Everything is computed in float32, or in float64 if `hidden` is float64. That includes the matrix product, because a
    rounding error of a logit is a rounding error of its log-probability.

    Raises: InputError if an output is unknown, if `choices` and `k` do not fit the outputs, or if `weight` does
    not have the rows of the shard.
    """
    _check(outputs, choices, k, vocabulary=weight.shape[0] if shard is None else shard.size)
    arguments = (hidden, weight, bias, tokens, temperature)
    options = {"outputs": outputs, "choices": choices, "k": k, "scale": scale, "softcap": softcap}
    if shard is not None:
        _check_rows(weight, shard)
    elif tokens.numel() * weight.shape[0] <= KEPT:
        return reference.token_outputs(*arguments, **options)
    needs_k = choices is None and not {"topk_logp", "topk_tokens"}.isdisjoint(outputs)
    if uses_triton(hidden) and not needs_k and hidden.dtype != torch.float64:
        from purerl.kernels.logp import fused

        del options["k"]
        return fused.token_outputs(*arguments, **options, shard=shard)
    chunk = chunk_size(weight.shape[0] if shard is None else shard.max_rows)
    return chunked.token_outputs(*arguments, **options, chunk=chunk, shard=shard)


def _check(outputs: Sequence[str], choices: Tensor | None, k: int | None, *, vocabulary: int) -> None:
    names = ", ".join(OUTPUTS)
    if not outputs:
        raise InputError("token_outputs: outputs", got="an empty sequence", need=f"at least one of {names}")
    for name in outputs:
        if name not in OUTPUTS:
            do = nearest(name, OUTPUTS)
            raise InputError("token_outputs: outputs", got=repr(name), need=f"names out of {names}", do=do)
    if choices is not None:
        if "topk_tokens" in outputs:
            raise InputError(
                "token_outputs: outputs",
                got="'topk_tokens' together with choices",
                need="'topk_tokens' only without choices",
                do="remove 'topk_tokens' from outputs, or pass k instead of choices",
            )
    elif {"topk_logp", "topk_tokens"} & set(outputs) and (k is None or not 1 <= k <= vocabulary):
        raise InputError(
            "token_outputs: k",
            got="neither k nor choices" if k is None else k,
            need=f"an integer from 1 to {vocabulary}, the size of the vocabulary",
            do="pass k, or pass choices to get the log-probabilities of certain tokens",
        )


def _check_rows(weight: Tensor, shard: VocabularyShard) -> None:
    start, stop = shard.rows.start, shard.rows.stop
    if len(weight) != stop - start:
        need = f"{stop - start} rows, {start} to {stop - 1} of {shard.size}"
        do = "pass the rows of this rank: weight[shard.rows]"
        raise InputError("token_outputs: weight", got=f"{len(weight)} rows", need=need, do=do)
