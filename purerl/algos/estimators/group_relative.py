"""Advantages of rows relative to the other rows of their group: completions of the same prompt.

Each is a function f(score, group, counted) -> [rows]; `length_weighted_advantage` also takes the lengths of the rows.
`score` is the total reward of a row, `group` is its label (any int64), and `counted` is False for a row in which no
token is counted. Such a row does not enter any baseline, and gets 0.

For the rewards [1, 0, 0, 0]:

    group_normalized_advantage    1.5  -.5  -.5  -.5      divided by the standard deviation of the group, ddof 1
    group_centered_advantage       .75 -.25 -.25 -.25
    leave_one_out_advantage       1.  -1/3 -1/3 -1/3
    mean_normalized_advantage     3.  -1.  -1.  -1.
    win_rate_advantage           3/8 -1/8 -1/8 -1/8      win rate minus 1/2

In a group of one row, and in a group with equal scores, every advantage is exactly 0. Some libraries keep the score of
a group of one row as its advantage: `singleton_score` of any of these functions does the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.parts.elementwise import square_root
from purerl.algos.parts.groups import group_deviation, group_max, group_mean, group_size, group_std, group_sum
from purerl.algos.parts.selection import has_variance
from purerl.algos.parts.whiten import standard_deviation
from purerl.kernels.masks import as_mask, masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = [
    "batch_normalized_advantage",
    "best_of_group_advantage",
    "gpg_advantage",
    "group_centered_advantage",
    "group_normalized_advantage",
    "group_standardized_advantage",
    "leave_one_out_advantage",
    "length_weighted_advantage",
    "mean_normalized_advantage",
    "singleton_score",
    "win_rate_advantage",
]

EPS = 1e-6
"""Added to a standard deviation before a division; also the smallest relative mean that is used as a divisor."""


def group_centered_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the mean score of the group.

        A_i = s_i - mean_g

    Shapes: [rows] each, in units of reward. Source: Dr. GRPO (2503.20783).
    """
    return group_deviation(score, group, counted)


def group_normalized_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the mean score of the group and divide by its standard deviation, as in GRPO.

        A_i = (s_i - mean_g) / (std_g + 1e-6)

    The standard deviation has the divisor N_g - 1; the paper does not specify it. Shapes: [rows] each.
    Source: GRPO (2402.03300).

    >>> import torch
    >>> counted = torch.tensor([True, True, True, True])
    >>> group_normalized_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([3, 3, 3, 3]), counted)
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000])
    """
    deviation = group_deviation(score, group, counted)
    divisor = (group_size(counted, group, dtype=score.dtype) - 1).clamp(min=1)
    return deviation / (square_root(group_sum(deviation.square(), group) / divisor) + EPS)


def group_standardized_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the mean score of the group and divide by its standard deviation with the divisor N_g.

        A_i = (s_i - mean_g) / std_g    if std_g > 0
              0                         else

    Shapes: [rows] each. Source: TPO (2604.06159).

    >>> counted = torch.tensor([True, True, True, True])
    >>> group_standardized_advantage(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([3, 3, 3, 3]), counted)
    tensor([ 1.,  1., -1., -1.])
    """
    std = group_std(score, group, counted, ddof=0)
    return group_deviation(score, group, counted) / torch.where(std > 0, std, 1)


def best_of_group_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Select the rows with the best score of their group, with the same weight each.

        A_i = rows / best_rows    if s_i = max_g > min_g
              0                   else

    `best_rows` is the number of rows that are selected in the whole batch, and `rows` that of counted rows, so that the
    mean of A is 1. Rows that tie for the best are all selected, but none in a group with equal scores. Shapes: [rows]
    each. Source: RAFT (2304.06767, 2504.11343).

    >>> counted = torch.tensor([True, True, True, True])
    >>> best_of_group_advantage(torch.tensor([1.0, 0.0, 2.0, 2.0]), torch.tensor([3, 3, 5, 5]), counted)
    tensor([4., 0., 0., 0.])
    """
    is_best = counted & (score == group_max(masked(score, counted, -torch.inf), group))
    selected = (is_best & has_variance(score, group, counted)).to(score.dtype)
    rows = counted.to(score.dtype).sum(-1, keepdim=True)
    return selected * rows / selected.sum(-1, keepdim=True).clamp(min=1)


def leave_one_out_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the mean score of the other rows of the group, as in RLOO.

        A_i = (s_i - mean_g) N_g / (N_g - 1)

    Shapes: [rows] each, in units of reward. Source: RLOO (2402.14740).
    """
    size = group_size(counted, group, dtype=score.dtype)
    return group_deviation(score, group, counted) * size / (size - 1).clamp(min=1)


def batch_normalized_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the mean score of the group and divide by the standard deviation of the scores of the whole batch.

        A_i = (s_i - mean_g) / (std(s) + 1e-6)

    The standard deviation is over all counted rows, with divisor n - 1. In contrast to the standard deviation of the
    group, it does not amplify small differences in a group with little variance. Shapes: [rows] each.
    Source: Liu et al. 2025, Tricks or Traps (2508.08221).

    >>> counted, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 5, 5])
    >>> batch_normalized_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, counted)
    tensor([ 1.0000, -1.0000,  0.0000,  0.0000])
    """
    std = standard_deviation(score.unsqueeze(-1), counted.unsqueeze(-1)).unsqueeze(-1)
    return (group_deviation(score, group, counted) / (std + EPS)).reshape(score.shape)


def mean_normalized_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the mean score of the group and divide by it, as in MaxRL.

        A_i = (s_i - mean_g) / mean_g    if mean_g > 1e-6 * max_g(abs(s))
              0                          else

    A mean below this bound is only rounding error of scores of both signs. Shapes: [rows] each.
    Source: MaxRL (2602.02710).

    >>> counted, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> mean_normalized_advantage(torch.tensor([1.0, 0.0]), group, counted)
    tensor([ 1., -1.])
    """
    mean = group_mean(score, group, counted)
    is_positive = mean > EPS * group_max(masked(score.abs(), counted), group)
    return torch.where(is_positive, group_deviation(score, group, counted) / torch.where(is_positive, mean, 1), 0)


def gpg_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the mean score of the group and divide by the fraction of rows that have a gradient, as in GPG.

        alpha = rows / varied_rows
        A_i   = alpha * (s_i - mean_g)

    `varied_rows` is the number of counted rows in groups whose scores differ. Rows of groups with equal scores have no
    gradient, but they are in the denominator of the loss. The factor alpha corrects for them. It is a statistic of the
    whole batch. Shapes: [rows] each, in units of reward.
    Source: GPG (2504.02546).

    >>> counted, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 5, 5])
    >>> gpg_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, counted)
    tensor([ 1., -1.,  0.,  0.])
    """
    varying_rows = (has_variance(score, group, counted) & counted).sum(-1, keepdim=True).clamp(min=1)
    return group_deviation(score, group, counted) * counted.sum(-1, keepdim=True) / varying_rows


def length_weighted_advantage(score: RowFloat, length: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract the length-weighted mean score of the group, as in OPO.

        A_i = s_i - sum_g(n_j s_j) / sum_g(n_j)

    This baseline has the least variance of all baselines with one value per prompt, if the squared gradient of the
    log-probability of a row is proportional to its length. Counted rows must have a length above 0. Shapes: [rows]
    each; `length` in tokens, the others in units of reward. Source: OPO (2505.23585).

    >>> counted, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> length_weighted_advantage(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 3.0]), group, counted)
    tensor([ 0.7500, -0.2500])
    """
    highest = group_max(masked(score, counted, -torch.inf), group)
    shifted, weight = masked(score - highest, counted), masked(length, counted)
    total = group_sum(weight, group)
    mean = group_sum(weight * shifted, group) / torch.where(total > 0, total, 1)
    return masked(shifted - mean, counted)


def singleton_score(
    score: RowFloat, group: RowInt, counted: RowBool, *, estimator: Callable[[RowFloat, RowInt, RowBool], RowFloat]
) -> RowFloat:
    """Compute `estimator`, but keep the score as the advantage in a group with one counted row, as verl does.

    Shapes: [rows] each. Source: verl.

    >>> counted, group = torch.tensor([True, True, True]), torch.tensor([3, 3, 5])
    >>> singleton_score(torch.tensor([1.0, 0.0, 0.5]), group, counted, estimator=group_centered_advantage)
    tensor([ 0.5000, -0.5000,  0.5000])
    """
    is_single = as_mask(counted) & (group_size(counted, group, dtype=score.dtype) == 1)
    return torch.where(is_single, score, estimator(score, group, counted))


def win_rate_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Compute the win rate of each row against the rows of its group, minus 1/2. A tie counts as half a win.

        A_i = P_i - 1/2 = (1 / N_g) sum_j sign(s_i - s_j) / 2

    The sum is over all counted rows j of the group, including row i. Only the order of the scores matters. The function
    needs rows^2 bytes of memory. Shapes: [rows] each; the result is between -1/2 and 1/2.
    Source: SPPO (2405.00675), which uses a preference model instead of a score.

    >>> import torch
    >>> counted = torch.tensor([True, True, True])
    >>> win_rate_advantage(torch.tensor([9.0, 1.0, 1.0]), torch.tensor([3, 3, 3]), counted)
    tensor([ 0.3333, -0.1667, -0.1667])
    """
    shape, (score, group, counted) = score.shape, torch.atleast_1d(score, group, as_mask(counted))
    row, rival = score.unsqueeze(-1), score.unsqueeze(-2)
    is_pair = (group.unsqueeze(-1) == group.unsqueeze(-2)) & counted.unsqueeze(-1) & counted.unsqueeze(-2)
    wins = (is_pair & (row > rival)).sum(-1) - (is_pair & (row < rival)).sum(-1)
    return (wins.to(score.dtype) / (2 * group_size(counted, group, dtype=score.dtype))).reshape(shape)
