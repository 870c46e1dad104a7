"""From a loss at every token to one number.

`reduce(loss, mask, counts)` sums what `mask` counts and divides by `Counts` of the *whole* optimizer step, which are
given: so parts of a step add up to the step, however it is cut. With n_i the counted tokens of row i:

    token_mean                      sum_it l_it / tokens                  every token weighs the same
    token_sum                       sum_it l_it
    sequence_mean_of_token_mean     sum_i (sum_t l_it / n_i) / rows       every row weighs the same
    sequence_mean_of_token_sum      sum_it l_it / rows
    constant_norm                   sum_it l_it / (rows * length)         the same, divided by a constant

`counts.rows` are rows with at least one counted token. Where nothing is counted the result is 0, and so is its
gradient.

>>> mask, counts = torch.tensor([[True, True], [True, False]]), Counts(torch.tensor(3), torch.tensor(2))
>>> loss = torch.tensor([[2.0, 4.0], [6.0, 99.0]])
>>> token_mean(loss, mask, counts), sequence_mean_of_token_mean(loss, mask, counts)
(tensor(4.), tensor(4.5000))
"""

from __future__ import annotations

import torch

from purerl.algos.algebra import Counts
from purerl.kernels.masks import count_true
from purerl.types import Scalar, TokenBool, TokenFloat

__all__ = [
    "constant_norm",
    "sequence_mean_of_token_mean",
    "sequence_mean_of_token_sum",
    "token_mean",
    "token_sum",
]


def token_sum(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """The sum over counted tokens."""
    return torch.where(mask, loss, 0).sum((-2, -1))


def token_mean(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """The mean over the counted tokens of the step, as in DAPO (2503.14476)."""
    return token_sum(loss, mask, counts) / counts.tokens.clamp(min=1)


def sequence_mean_of_token_mean(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """The mean over rows of each row's mean over its counted tokens, as in GRPO (2402.03300)."""
    means = torch.where(mask, loss, 0).sum(-1) / count_true(mask).clamp(min=1)
    return means.sum(-1) / counts.rows.clamp(min=1)


def sequence_mean_of_token_sum(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """The mean over rows of each row's sum over its counted tokens: log-probabilities become those of sequences."""
    return token_sum(loss, mask, counts) / counts.rows.clamp(min=1)


def constant_norm(loss: TokenFloat, mask: TokenBool, counts: Counts, *, length: float) -> Scalar:
    """`sequence_mean_of_token_sum` divided by a constant, as in Dr. GRPO (2503.20783)."""
    return sequence_mean_of_token_sum(loss, mask, counts) / length
