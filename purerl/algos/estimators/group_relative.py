"""Advantages of rows relative to the other rows of their group: same prompt, other samples.

Each is f(score, group, counted) -> [rows]. `score` is a row's total reward, `group` its label (any int64), and
`counted` says whether anything in the row counts: rows that do not count enter no baseline, and get 0.

For rewards [1, 0, 0, 0], where libraries disagree most:

    group_normalised_advantage    1.5  -.5  -.5  -.5      divided by the group's standard deviation, ddof 1
    group_centred_advantage       .75 -.25 -.25 -.25
    leave_one_out_advantage       1.  -1/3 -1/3 -1/3
    win_rate_advantage           3/8 -1/8 -1/8 -1/8      how often it wins, less 1/2

In a group of one, and in a group whose scores are all equal, every advantage is exactly 0.
"""

from __future__ import annotations

from purerl.algos.parts.groups import group_deviation, group_size, group_sum
from purerl.types import RowBool, RowFloat, RowInt

__all__ = [
    "group_centred_advantage",
    "group_normalised_advantage",
    "leave_one_out_advantage",
    "win_rate_advantage",
]

EPS = 1e-6
"""Added to a standard deviation that is divided by."""


def group_centred_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """s_i - mean_g. Source: Dr. GRPO (2503.20783)."""
    return group_deviation(score, group, counted)


def group_normalised_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """(s_i - mean_g) / (std_g + 1e-6), with the standard deviation that divides by N_g - 1.

    Source: GRPO (2402.03300), which leaves the divisor of the variance open.

    >>> import torch
    >>> yes = torch.tensor([True, True, True, True])
    >>> group_normalised_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([3, 3, 3, 3]), yes)
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000])
    """
    deviation = group_deviation(score, group, counted)
    others = (group_size(counted, group, dtype=score.dtype) - 1).clamp(min=1)
    return deviation / ((group_sum(deviation.square(), group) / others).sqrt() + EPS)


def leave_one_out_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """s_i minus the mean of the others: (s_i - mean_g) N_g / (N_g - 1). Source: RLOO (2402.14740)."""
    size = group_size(counted, group, dtype=score.dtype)
    return group_deviation(score, group, counted) * size / (size - 1).clamp(min=1)


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
