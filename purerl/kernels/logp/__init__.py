"""Log-probability and entropy of next-token distributions, from hidden states.

    z       = softcap * tanh(scale * (hidden @ weight.T + bias) / softcap) / temperature
    logp    = z[token] - logsumexp(z)
    entropy = logsumexp(z) - sum(softmax(z) * z)

The op ends at `logp`, never at a loss, so every objective can use it. `reference` is the definition. `chunked` never
holds more than a chunk of the [tokens, vocab] logits: it computes them again in the backward pass. The two agree up to
rounding, so `logp_entropy` chooses by size alone.
"""

from __future__ import annotations

from torch import Tensor

from purerl.kernels.logp import chunked, reference

__all__ = ["KEPT", "chunk_size", "logp_entropy"]

KEPT = 2**24
"""Logits up to which they are all kept for the backward pass: 64 MiB in float32, some five times over."""

_CHUNK, _FEWEST = 2**22, 128


def chunk_size(vocabulary: int) -> int:
    """Tokens of a chunk: 16 MiB of logits in float32, to stay in a cache, but enough tokens for a matrix product."""
    return max(_FEWEST, _CHUNK // vocabulary)


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
    """Log-probability of each token, and entropy of the distribution that it was drawn from, both [n], in nats.

    hidden       [n, d] final hidden states, each at the position before its token
    weight       [v, d] of the output head; `bias` is [v] or None
    tokens       [n] int64
    temperature  [n], above 0
    scale        multiplies the logits; `softcap` bounds them, and None leaves them unbounded

    Both have gradients with respect to `hidden`, `weight` and `bias`. Everything is computed in float32, or in float64
    where `hidden` is, the matrix product included: a rounding of the logits is one of the log-probability. n may be 0.
    """
    if tokens.numel() * weight.shape[0] <= KEPT:
        return reference.logp_entropy(hidden, weight, bias, tokens, temperature, scale=scale, softcap=softcap)
    chunk = chunk_size(weight.shape[0])
    return chunked.logp_entropy(hidden, weight, bias, tokens, temperature, scale=scale, softcap=softcap, chunk=chunk)
