"""Losses that regress the log-ratio of a whole row on what it should be.

The log-ratio of row i is L_i = sum_t m_it (logp_it - anchor_it), nats, against some anchor. Where a policy gradient
says only in which direction it should go, these say where it should end: there the loss is 0, and nothing is clipped.

Arguments are [rows]: `log_ratio`, with gradient, and `advantage`, in units of reward. `sequence_log_ratio` makes the
first, `row_mean` the second, out of tokens.
"""

from __future__ import annotations

from purerl.algos.parts.groups import group_deviation, group_size
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["gvpo_loss", "sppo_loss"]


def sppo_loss(log_ratio: RowFloat, advantage: RowFloat, *, eta: float) -> RowFloat:
    """(L - eta * A)^2, with the row's win rate less 1/2 as A. Source: SPPO (2405.00675).

    >>> import torch
    >>> sppo_loss(torch.tensor([3.0]), torch.tensor([0.5]), eta=4.0)
    tensor([1.])
    """
    return (log_ratio - eta * advantage).square()


def gvpo_loss(log_ratio: RowFloat, advantage: RowFloat, group: RowInt, counted: RowBool, *, beta: float) -> RowFloat:
    """1/2 N_g/(N_g - 1) (beta (L_i - mean_g L) - A_i)^2, with s_i - mean_g as A_i.

    So the mean over the rows of a group is half the unbiased variance of what the policy still has to learn there. A
    constant in L, such as the logarithm of a partition function, drops out: it need not be known. In a group of one it
    is 0. Source: GVPO (2504.19599).

    >>> import torch
    >>> yes, group = torch.tensor([True, True]), torch.tensor([5, 5])
    >>> gvpo_loss(torch.tensor([2.0, 0.0]), torch.tensor([0.5, -0.5]), group, yes, beta=1.0)
    tensor([0.2500, 0.2500])
    """
    size = group_size(counted, group, dtype=log_ratio.dtype)
    error = beta * group_deviation(log_ratio, group, counted) - advantage
    return error.square() * size / (2 * (size - 1).clamp(min=1))
