"""Reductions of the losses of tokens to a scalar.

`reduce(loss, mask, counts)` sums over counted tokens and divides by `counts`, the `Counts` of the whole optimizer step.
The values of the parts of a step therefore add up to the value of the step, for any split. With n_i counted tokens in
row i:

    token_mean                    (1 / tokens) sum_it l_it                every token has the same weight
    token_sum                     sum_it l_it
    sequence_mean_of_token_mean   (1 / rows) sum_i (1 / n_i) sum_t l_it   every row has the same weight
    sequence_mean_of_token_sum    (1 / rows) sum_it l_it
    constant_norm                 (1 / (rows * length)) sum_it l_it       the line above, divided by a constant

`purerl.algos.prompt_weight` turns token_mean into a mean over prompts.

`loss` and `mask` are [rows, time], the result is a scalar. `counts.rows` is the number of rows with at least one
counted token, where all rows of an episode count as one. Without counted tokens, the result and its gradient are 0.
Losses in 16 bits are added up in float32, and the result has their dtype.

>>> mask, counts = torch.tensor([[True, True], [True, False]]), Counts(torch.tensor(3), torch.tensor(2))
>>> loss = torch.tensor([[2.0, 4.0], [6.0, 99.0]])
>>> token_mean(loss, mask, counts), sequence_mean_of_token_mean(loss, mask, counts)
(tensor(4.), tensor(4.5000))
"""

from __future__ import annotations

import torch

from purerl.algos.algebra import Counts
from purerl.algos.parts.elementwise import narrowed, widened
from purerl.kernels.masks import count_true, masked
from purerl.types import Scalar, TokenBool, TokenFloat

__all__ = ["constant_norm", "sequence_mean_of_token_mean", "sequence_mean_of_token_sum", "token_mean", "token_sum"]


def token_sum(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """Sum the loss over counted tokens.

        loss = sum_it m_it l_it

    `counts` is not used. Shapes: `loss` and `mask` are [rows, time]; the result is a scalar.
    """
    return narrowed(_sum(loss, mask), loss)


def token_mean(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """Sum the loss over counted tokens and divide by the number of counted tokens of the step, as in DAPO.

        loss = (1 / tokens) sum_it m_it l_it

    The result is 0 without counted tokens. Shapes: `loss` and `mask` are [rows, time]; the result is a scalar.
    Source: DAPO (2503.14476).
    """
    return narrowed(_sum(loss, mask) / _at_least_one(counts.tokens), loss)


def sequence_mean_of_token_mean(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """Take the mean of the loss over the counted tokens of each row, then sum over rows and divide by `counts.rows`.

        loss = (1 / rows) sum_i (1 / n_i) sum_t m_it l_it

    An episode of several rows counts as one row: n_i is the number of counted tokens of the whole episode. The result
    is 0 without counted tokens. Shapes: `loss` and `mask` are [rows, time]; the result is a scalar.
    Source: GRPO (2402.03300).
    """
    tokens = counts.row_tokens if isinstance(counts.row_tokens, torch.Tensor) else count_true(mask)
    means = widened(masked(loss, mask)).sum(-1) / tokens.clamp(min=1)
    return narrowed(means.sum(-1) / _at_least_one(counts.rows), loss)


def sequence_mean_of_token_sum(loss: TokenFloat, mask: TokenBool, counts: Counts) -> Scalar:
    """Sum the loss over counted tokens and divide by the number of rows of the step.

        loss = (1 / rows) sum_it m_it l_it

    With the loss -A logp, this is the policy gradient of whole sequences. The result is 0 without counted tokens.
    Shapes: `loss` and `mask` are [rows, time]; the result is a scalar.
    """
    return narrowed(_sum(loss, mask) / _at_least_one(counts.rows), loss)


def constant_norm(loss: TokenFloat, mask: TokenBool, counts: Counts, *, length: float) -> Scalar:
    """Sum the loss over counted tokens and divide by the number of rows of the step and by a constant, as in Dr. GRPO.

        loss = (1 / (rows * length)) sum_it m_it l_it

    The result is 0 without counted tokens. Shapes: `loss` and `mask` are [rows, time]; the result is a scalar. `length`
    is in tokens. Source: Dr. GRPO (2503.20783).
    """
    return narrowed(_sum(loss, mask) / _at_least_one(counts.rows) / length, loss)


def _sum(loss: TokenFloat, mask: TokenBool) -> Scalar:
    """The sum over counted tokens; of values in 16 bits, in float32."""
    return torch.atleast_2d(widened(masked(loss, mask))).sum((-2, -1))


def _at_least_one(count: torch.Tensor | int) -> torch.Tensor | int:
    return count.clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1)
