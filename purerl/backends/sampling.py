"""Sampling of tokens with random numbers that are a pure function of the request's seed and the token's position.

There is no generator state. The tokens of a request do not depend on other requests, on their order, or on a restart.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["choose", "random_bits", "signed", "uniform"]

_STEP = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def signed(number: int) -> int:
    """`number` modulo 2**64, as the int64 with the same bits.

    >>> signed(2**64 - 1), signed(-1), signed(5)
    (-1, -1, 5)
    """
    return (number + 2**63) % 2**64 - 2**63


def random_bits(seed: Tensor, index: Tensor) -> Tensor:
    """64 random bits: number `index` of the stream of `seed`.

        bits = mix(mix(seed) + index * step)

    `mix` and `step` are those of splitmix64. The seed is mixed first, so that consecutive seeds give independent
    streams. `seed` and `index` are int64 tensors that broadcast; any value is a valid seed. The result is int64.
    Source: Vigna's splitmix64, after Steele, Lea and Flood, Fast splittable pseudorandom number generators (2014).
    """
    return _mix(_mix(seed) + index * signed(_STEP))


def uniform(seed: Tensor, index: Tensor) -> Tensor:
    """Uniform random numbers between 0 and 1: number `index` of the stream of `seed`.

        u = (floor(random_bits(seed, index) / 2**41) + 1/2) / 2**23

    u is an odd multiple of 2**-24. It is never 1 and never 0; 0 would draw the first token even if its probability is
    0. `seed` and `index` are as in `random_bits`. The result is float32.

    >>> uniform(torch.tensor([7, 7, 8]), torch.tensor([0, 1, 0]))
    tensor([0.7170, 0.5243, 0.0391])
    """
    return (_logical_shift(random_bits(seed, index), 41).to(torch.float32) + 0.5) * 2.0**-23


def _mix(bits: Tensor) -> Tensor:
    for shift, factor in _MIX:
        bits = (bits ^ _logical_shift(bits, shift)) * signed(factor)
    return bits


def _logical_shift(bits: Tensor, shift: int) -> Tensor:
    return (bits >> shift) & (2 ** (64 - shift) - 1)


def choose(logits: Tensor, temperature: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Sample a token per row by inverting the cumulative distribution; return the tokens and their log-probabilities.

        p = softmax(logits / temperature);  token = min {k : p_0 + ... + p_k > number * (p_0 + ...)};  log p_token

    `number` is uniform between 0 and 1. At temperature 0 the token is the argmax, and p is at temperature 1. A token of
    probability 0 is never sampled: if rounding would select one, the argmax is used. Logits with a NaN give a
    log-probability of NaN.

    Shapes: logits [rows, vocab], the others [rows]. The results are [rows], int64 and float32, in nats.

    >>> choose(torch.tensor([[0.0, 0.0]] * 3), torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.4, 0.6, 0.6]))
    (tensor([0, 1, 0]), tensor([-0.6931, -0.6931, -0.6931]))
    """
    greedy = temperature == 0
    probability = (logits.float() / torch.where(greedy, 1.0, temperature)[:, None]).softmax(-1)
    cumulative = probability.cumsum(-1)
    drawn = torch.searchsorted(cumulative, number[:, None] * cumulative[:, -1:], right=True)
    # Only with NaN, the search returns the index after the last token.
    drawn = drawn.clamp(max=logits.shape[-1] - 1)
    is_valid = (probability.gather(-1, drawn) > 0) & ~greedy[:, None]
    token = torch.where(is_valid, drawn, logits.argmax(-1, keepdim=True))
    return token[:, 0], probability.gather(-1, token)[:, 0].log()
