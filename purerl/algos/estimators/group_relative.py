"""Advantages of rows relative to the other rows of their group: same prompt, other samples.

Each is f(score, group, counted) -> [rows]; one of them also takes the rows' lengths. `score` is a row's total reward,
`group` its label (any int64), and `counted` says whether anything in the row counts: rows that do not count enter no
baseline, and get 0.

For rewards [1, 0, 0, 0], where libraries disagree most:

    group_normalized_advantage    1.5  -.5  -.5  -.5      divided by the group's standard deviation, ddof 1
    group_centered_advantage       .75 -.25 -.25 -.25
    leave_one_out_advantage       1.  -1/3 -1/3 -1/3
    mean_normalized_advantage     3.  -1.  -1.  -1.
    win_rate_advantage           3/8 -1/8 -1/8 -1/8      how often it wins, less 1/2

In a group of one, and in a group whose scores are all equal, every advantage is exactly 0. A library that keeps the
score of a group of one is any of these under `singleton_score`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.parts.groups import group_deviation, group_max, group_mean, group_size, group_sum
from purerl.algos.parts.selection import has_variance
from purerl.algos.parts.whiten import deviation
from purerl.types import RowBool, RowFloat, RowInt

__all__ = [
    "batch_normalized_advantage",
    "gpg_advantage",
    "group_centered_advantage",
    "group_normalized_advantage",
    "leave_one_out_advantage",
    "length_weighted_advantage",
    "mean_normalized_advantage",
    "singleton_score",
    "win_rate_advantage",
]

EPS = 1e-6
"""Added to a standard deviation that is divided by; and what a mean that is divided by must exceed, relatively."""


def group_centered_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """s_i - mean_g. Source: Dr. GRPO (2503.20783)."""
    return group_deviation(score, group, counted)


def group_normalized_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """(s_i - mean_g) / (std_g + 1e-6), with the standard deviation that divides by N_g - 1.

    Source: GRPO (2402.03300), which leaves the divisor of the variance open.

    >>> import torch
    >>> yes = torch.tensor([True, True, True, True])
    >>> group_normalized_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([3, 3, 3, 3]), yes)
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000])
    """
    deviation = group_deviation(score, group, counted)
    others = (group_size(counted, group, dtype=score.dtype) - 1).clamp(min=1)
    return deviation / ((group_sum(deviation.square(), group) / others).sqrt() + EPS)


def leave_one_out_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """s_i minus the mean of the others: (s_i - mean_g) N_g / (N_g - 1). Source: RLOO (2402.14740)."""
    size = group_size(counted, group, dtype=score.dtype)
    return group_deviation(score, group, counted) * size / (size - 1).clamp(min=1)


def batch_normalized_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """(s_i - mean_g) / (std + 1e-6), with the standard deviation of the scores of all rows of the batch.

    It divides by the number of rows less 1. A group that hardly varies is not blown up, as it is by its own standard
    deviation. Source: Liu et al. 2025, Tricks or Traps (2508.08221).

    >>> yes, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 5, 5])
    >>> batch_normalized_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, yes)
    tensor([ 1.0000, -1.0000,  0.0000,  0.0000])
    """
    std = deviation(score.unsqueeze(-1), counted.unsqueeze(-1)).unsqueeze(-1)
    return group_deviation(score, group, counted) / (std + EPS)


def mean_normalized_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """(s_i - mean_g) / mean_g, and 0 where mean_g is not above 1e-6 of the group's largest abs(s).

    Below that a mean of scores of both signs is what rounding left of 0. Source: MaxRL (2602.02710).

    >>> yes, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> mean_normalized_advantage(torch.tensor([1.0, 0.0]), group, yes)
    tensor([ 1., -1.])
    """
    mean = group_mean(score, group, counted)
    some = mean > EPS * group_max(torch.where(counted, score.abs(), 0), group)
    return torch.where(some, group_deviation(score, group, counted) / torch.where(some, mean, 1), 0)


def gpg_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """(s_i - mean_g) alpha, alpha = rows / rows of groups whose scores differ.

    Rows of groups that do not vary have no gradient, and yet they are divided by: alpha makes up for them. It is a
    statistic of the whole batch. Source: GPG (2504.02546).

    >>> yes, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 5, 5])
    >>> gpg_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, yes)
    tensor([ 1., -1.,  0.,  0.])
    """
    varied = (has_variance(score, group, counted) & counted).sum(-1, keepdim=True).clamp(min=1)
    return group_deviation(score, group, counted) * counted.sum(-1, keepdim=True) / varied


def length_weighted_advantage(score: RowFloat, length: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """s_i - sum_g(n_j s_j) / sum_g(n_j): the baseline is a mean in which long rows weigh more.

    Of all baselines that are one number for each prompt it leaves the least variance, if the squared gradient of a
    row's log-probability grows like its length. Source: OPO (2505.23585). Rows that count have a length above 0.

    >>> yes, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> length_weighted_advantage(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 3.0]), group, yes)
    tensor([ 0.7500, -0.2500])
    """
    highest = group_max(torch.where(counted, score, -torch.inf), group)
    below, weight = torch.where(counted, score - highest, 0), torch.where(counted, length, 0)
    total = group_sum(weight, group)
    mean = group_sum(weight * below, group) / torch.where(total > 0, total, 1)
    return torch.where(counted, below - mean, 0)


def singleton_score(
    score: RowFloat, group: RowInt, counted: RowBool, *, estimator: Callable[[RowFloat, RowInt, RowBool], RowFloat]
) -> RowFloat:
    """`estimator`, but in a group of one the score as it is, as in verl: without others there is no baseline.

    >>> yes, group = torch.tensor([True, True, True]), torch.tensor([3, 3, 5])
    >>> singleton_score(torch.tensor([1.0, 0.0, 0.5]), group, yes, estimator=group_centered_advantage)
    tensor([ 0.5000, -0.5000,  0.5000])
    """
    single = counted & (group_size(counted, group, dtype=score.dtype) == 1)
    return torch.where(single, score, estimator(score, group, counted))


def win_rate_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """P_i - 1/2, with P_i how often row i beats a row of its group: those it beats, and half of those it ties with.

        P_i - 1/2 = (1 / N_g) sum_j sign(s_i - s_j) / 2

    The row itself is among the N_g, and ties. Only the order of scores matters. It takes rows^2 of memory, in bytes.
    Source: SPPO (2405.00675), which asks a preference model and not a score.

    >>> import torch
    >>> yes = torch.tensor([True, True, True])
    >>> win_rate_advantage(torch.tensor([9.0, 1.0, 1.0]), torch.tensor([3, 3, 3]), yes)
    tensor([ 0.3333, -0.1667, -0.1667])
    """
    mine, other = score.unsqueeze(-1), score.unsqueeze(-2)
    rival = (group.unsqueeze(-1) == group.unsqueeze(-2)) & counted.unsqueeze(-1) & counted.unsqueeze(-2)
    wins = (rival & (mine > other)).sum(-1) - (rival & (mine < other)).sum(-1)
    return wins.to(score.dtype) / (2 * group_size(counted, group, dtype=score.dtype))
